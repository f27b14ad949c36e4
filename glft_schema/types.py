"""Tensor types: those of ggml, and tools to declare your own; see `tensor_types`."""

from glft_schema.tensor_types.engine.bits import pack, unpack
from glft_schema.tensor_types.engine.compiled import compile_formulas
from glft_schema.tensor_types.engine.scaled import Scaled
from glft_schema.tensor_types.ggml import GGML_TYPES, register_type
from glft_schema.tensor_types.tensor_type import Reserved, TensorType

__all__ = ["GGML_TYPES", "Reserved", "Scaled", "TensorType", "compile_formulas", "pack", "register_type", "unpack"]
