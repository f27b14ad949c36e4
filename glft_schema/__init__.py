"""Model-weight formats: GGUF, GLFT and your own. Each is declared once; parsing, building, checking
and documentation follow from the declaration.

    import glft_schema as glft

    glft.open, load_file, save_file, convert ...   files and weights
    glft.types         tensor types, and how to declare one
    glft.codec         constructs for declaring formats
    glft.formats       the formats, and how to declare one
    glft.describe      declarations as data, pages and code in other languages
    glft.distributed   files read and written by all ranks of torch.distributed
    glft.gguf_reader   gguf-py's GGUFReader, faster
    glft.manifests     SHA-256 of files and tensors
    glft.nn            modules whose weights stay packed
    glft.numpy         weights as arrays of numpy, without torch
    glft.scalar        the language of tensor types' decoders and encoders
    glft.testing       declarations as test data; requires hypothesis
    glft.transformers  models and tokenizers of transformers, from GGUF files
    glft.lab           functions of the quantization lab

All other modules are private.
"""

from typing import TYPE_CHECKING

from glft_schema import codec, formats, scalar, types
from glft_schema.codec.typed_values import Typed
from glft_schema.errors import (
    ClosedError,
    Finding,
    FormatError,
    LimitError,
    MetadataWarning,
    OptionError,
    PluginWarning,
    QuantizationWarning,
    SchemeError,
    SimilarKeyWarning,
    TensorError,
    TiedWarning,
    TruncatedError,
)
from glft_schema.files.container import Container, open
from glft_schema.files.file import File
from glft_schema.files.parsing import parse_source
from glft_schema.files.splitting import merge, split
from glft_schema.files.state_dict import load_file
from glft_schema.formats.registry import register_format
from glft_schema.lazy import on_first_use
from glft_schema.limits import Limits
from glft_schema.storage.file_source import open_source
from glft_schema.storage.source import Source
from glft_schema.tensors.tensor import Tensor

if TYPE_CHECKING:
    from glft_schema import describe, distributed, gguf_reader, lab, manifests, nn, numpy, transformers
    from glft_schema.adapters.merging import MergedTensor, merge_lora
    from glft_schema.checks.compare import Comparison, MetadataChange, TensorComparison, TensorVersion, compare
    from glft_schema.checks.derivation import Derivation, check_derivation
    from glft_schema.checks.manifests import hash_file
    from glft_schema.checks.roles import check_fit
    from glft_schema.checks.rules import check_rules
    from glft_schema.checks.values import Oddity, check_values
    from glft_schema.describe.byte_map import ByteMap, Stretch, byte_map
    from glft_schema.lab.gguf_lite import read_gguf_lite, write_gguf_lite
    from glft_schema.lab.quantizing import fake_quantize
    from glft_schema.models.activations import measure_importance
    from glft_schema.models.predictions import Perplexity, Predictions, compare_predictions, perplexity
    from glft_schema.quantizer.plan import Candidate, Mix, Plan, TensorPlan, plan
    from glft_schema.quantizer.quantize import Quantized, quantize
    from glft_schema.quantizer.rules import Recipe
    from glft_schema.tensor_types.engine.differences import NumberErrors
    from glft_schema.tensors.stored_tensor import StoredTensor
    from glft_schema.weights.checkpoints import open_checkpoint
    from glft_schema.weights.convert import convert
    from glft_schema.weights.edit import Change, Edited, edit
    from glft_schema.weights.importance import ColumnSums, ImportanceMatrix, read_importance
    from glft_schema.weights.importance_statistics import ColumnStatistics
    from glft_schema.weights.payloads import WrittenTensor
    from glft_schema.weights.save import save_file

__version__ = "0.1.0"

__all__ = [
    "ByteMap", "Candidate", "Change", "ClosedError", "ColumnStatistics", "ColumnSums", "Comparison", "Container",
    "Derivation", "Edited", "File", "Finding", "FormatError", "ImportanceMatrix", "LimitError", "Limits",
    "MergedTensor", "MetadataChange", "MetadataWarning", "Mix", "NumberErrors", "Oddity", "OptionError", "Perplexity",
    "Plan", "PluginWarning", "Predictions", "QuantizationWarning", "Quantized", "Recipe", "SchemeError",
    "SimilarKeyWarning", "Source", "StoredTensor", "Stretch", "Tensor", "TensorComparison", "TensorError", "TensorPlan",
    "TensorVersion", "TiedWarning", "TruncatedError", "Typed", "Unmatched", "WrittenTensor", "byte_map",
    "check_derivation", "check_fit", "check_rules", "check_values", "codec", "compare", "compare_predictions",
    "convert", "describe", "distributed", "edit", "fake_quantize", "formats", "gguf_reader", "hash_file",
    "lab", "load_file", "load_into", "manifests", "measure_importance", "merge", "merge_lora", "nn", "numpy", "open",
    "open_checkpoint", "open_source", "parse_source", "perplexity", "plan", "quantize", "read_gguf_lite",
    "read_importance", "register_format", "save_file", "scalar", "split", "transformers", "types", "write_gguf_lite",
]  # fmt: skip


# Testing requires hypothesis, transformers that library: optional dependencies.
PARTS = ("describe", "distributed", "gguf_reader", "lab", "manifests", "nn", "numpy", "testing", "transformers")
LATER = {  # names by the module that is imported when one is used, so that opening a file stays fast
    "adapters.merging": "MergedTensor merge_lora",
    "checks.compare": "Comparison MetadataChange TensorComparison TensorVersion compare",
    "checks.derivation": "Derivation check_derivation",
    "checks.manifests": "hash_file",
    "checks.roles": "check_fit",
    "checks.rules": "check_rules",
    "checks.values": "Oddity check_values",
    "describe.byte_map": "ByteMap Stretch byte_map",
    "lab.gguf_lite": "read_gguf_lite write_gguf_lite",
    "lab.quantizing": "fake_quantize",
    "models.activations": "measure_importance",
    "models.predictions": "Perplexity Predictions compare_predictions perplexity",
    "nn.loading": "Unmatched load_into",
    "quantizer.plan": "Candidate Mix Plan TensorPlan plan",
    "quantizer.quantize": "Quantized quantize",
    "quantizer.rules": "Recipe",
    "tensor_types.engine.differences": "NumberErrors",
    "weights.checkpoints": "open_checkpoint",
    "weights.convert": "convert",
    "weights.edit": "Change Edited edit",
    "weights.importance": "ColumnSums ImportanceMatrix read_importance",
    "weights.importance_statistics": "ColumnStatistics",
    "weights.payloads": "WrittenTensor",
    "weights.save": "save_file",
    "tensors.stored_tensor": "StoredTensor",
}
MODULES = {name: module for module, names in LATER.items() for name in names.split()}
__getattr__, __dir__ = on_first_use(globals(), MODULES, PARTS)
