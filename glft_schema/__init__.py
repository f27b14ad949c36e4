"""Model-weight containers, GLFT and GGUF, declared once: one construct schema parses, builds, checks and documents each."""

from glft_schema.container import Container, open
from glft_schema.convert import convert
from glft_schema.describe.byte_map import ByteMap, Stretch, byte_map
from glft_schema.errors import (
    ClosedError,
    FormatError,
    LimitError,
    QuantizationWarning,
    SchemeError,
    TensorError,
    TiedWarning,
    TruncatedError,
)
from glft_schema.export import save_file, write_gguf_lite
from glft_schema.file import File
from glft_schema.importance import read_importance
from glft_schema.limits import Limits
from glft_schema.load import load_file, read_gguf_lite
from glft_schema.quantize import (
    Quantized,
    dequantize_symmetric,
    fake_quantize,
    quantize_symmetric_per_channel,
    quantize_symmetric_per_group,
)
from glft_schema.tensor_types.compiled import compile_formulas
from glft_schema.tensor_types.ggml import register_type
from glft_schema.tensors import Tensor
from glft_schema.typed_values import Typed

__version__ = "0.1.0"

__all__ = [
    "ByteMap",
    "ClosedError",
    "Container",
    "File",
    "FormatError",
    "LimitError",
    "Limits",
    "QuantizationWarning",
    "Quantized",
    "SchemeError",
    "Stretch",
    "Tensor",
    "TensorError",
    "TiedWarning",
    "TruncatedError",
    "Typed",
    "byte_map",
    "compile_formulas",
    "convert",
    "dequantize_symmetric",
    "fake_quantize",
    "load_file",
    "open",
    "quantize_symmetric_per_channel",
    "quantize_symmetric_per_group",
    "read_gguf_lite",
    "read_importance",
    "register_type",
    "save_file",
    "write_gguf_lite",
]
