"""Tensor types: those of ggml, and tools to declare your own; see `tensor_types`."""

from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.compiling import compile
from glft_schema.tensor_types.engine.bits import pack, unpack
from glft_schema.tensor_types.ggml import GGML_TYPES, register_type
from glft_schema.tensor_types.tensor_type import DIMS, IN, OUT, Reserved, TensorType, formula_of

__all__ = [
    "DIMS",
    "GGML_TYPES",
    "IN",
    "OUT",
    "Reserved",
    "TensorType",
    "block_type",
    "compile",
    "formula_of",
    "pack",
    "register_type",
    "unpack",
]
