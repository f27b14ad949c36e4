"""Model-weight formats: GGUF, GLFT and your own. Each is declared once; parsing, building, checking
and documentation follow from the declaration.

    import glft_schema as glft

    open, load_file, load_into                     open a file, load its weights
    save_file, convert, edit, split, merge         write files
    plan, quantize, read_importance                quantize
    check_rules, check_values, compare, byte_map   check, compare, describe
    Container, File, Tensor, Typed, Limits         open files, their parts, and limits
    FormatError, OptionError, ...                  errors

    glft.adapters       LoRA adapters, merged into quantized models
    glft.architectures  pages of models' architectures, and how to declare one
    glft.checks         checks of files: manifests, derivation, differences
    glft.codec          constructs for declaring formats
    glft.describe       declarations as data, pages and code in other languages
    glft.diffusers      models of diffusers, packed
    glft.distributed    files read and written by all ranks of torch.distributed
    glft.errors         exceptions and warnings
    glft.formats        the formats, and how to declare one
    glft.gguf_reader    gguf-py's GGUFReader, faster
    glft.lab            the quantizers, file writer and reader that GLFT comes from
    glft.models         models that run in torch, measured on texts
    glft.nn             modules whose weights stay packed
    glft.numpy          weights as arrays of numpy, without torch
    glft.quantizer      recipes, and plans of quantized models
    glft.scalar         the language of tensor types' decoders and encoders
    glft.storage        sources of bytes
    glft.testing        declarations as test data; requires hypothesis
    glft.transformers   models of transformers, from and to GGUF files
    glft.types          tensor types, and how to declare one
    glft.weights        checkpoints, importance matrices, edits

All other modules are private.
"""

from typing import TYPE_CHECKING

from glft_schema import codec, formats, scalar, types
from glft_schema.codec.typed_values import Typed
from glft_schema.errors import (
    ClosedError,
    FormatError,
    LimitError,
    OptionError,
    SchemeError,
    TensorError,
    TruncatedError,
)
from glft_schema.files.container import Container, open
from glft_schema.files.file import File
from glft_schema.files.splitting import merge, split
from glft_schema.files.state_dict import load_file
from glft_schema.lazy import on_first_use
from glft_schema.limits import Limits
from glft_schema.tensors.tensor import Tensor

if TYPE_CHECKING:
    from glft_schema import (
        adapters,
        architectures,
        checks,
        describe,
        diffusers,
        distributed,
        errors,
        gguf_reader,
        lab,
        models,
        nn,
        numpy,
        quantizer,
        storage,
        transformers,
        weights,
    )
    from glft_schema.checks.compare import compare
    from glft_schema.checks.rule_sets import check_rules
    from glft_schema.checks.values import check_values
    from glft_schema.describe.byte_map import byte_map
    from glft_schema.nn.load_into import load_into
    from glft_schema.quantizer.plan import plan
    from glft_schema.quantizer.quantize import quantize
    from glft_schema.weights.convert import convert
    from glft_schema.weights.edit import edit
    from glft_schema.weights.importance import read_importance
    from glft_schema.weights.save import save_file

__version__ = "0.1.0"

__all__ = [
    "ClosedError",
    "Container",
    "File",
    "FormatError",
    "LimitError",
    "Limits",
    "OptionError",
    "SchemeError",
    "Tensor",
    "TensorError",
    "TruncatedError",
    "Typed",
    "byte_map",
    "check_rules",
    "check_values",
    "compare",
    "convert",
    "edit",
    "load_file",
    "load_into",
    "merge",
    "open",
    "plan",
    "quantize",
    "read_importance",
    "save_file",
    "split",
]

PARTS = (  # public modules; testing, diffusers and transformers require other libraries
    *("adapters", "architectures", "checks", "codec", "describe", "diffusers", "distributed", "errors", "formats"),
    *("gguf_reader", "lab", "models", "nn", "numpy", "quantizer", "scalar", "storage", "testing", "transformers", "types"),
    "weights",
)
LATER = {  # names by the module that is imported when one is used, so that opening a file stays fast
    "checks.compare": "compare",
    "checks.rule_sets": "check_rules",
    "checks.values": "check_values",
    "describe.byte_map": "byte_map",
    "nn.load_into": "load_into",
    "quantizer.plan": "plan",
    "quantizer.quantize": "quantize",
    "weights.convert": "convert",
    "weights.edit": "edit",
    "weights.importance": "read_importance",
    "weights.save": "save_file",
}
__getattr__, __dir__ = on_first_use(globals(), LATER, PARTS)
