"""Tensor types, each declared once: its code, the Struct of its payload, a formula that decodes it,
and an encoder.

Each group of types is one module, in which each block is followed by its formula. The encoders are
in `encoders`. `unquantized` and `copied` declare floats and integers, `symmetric` declares GLFT's
Q8 and Q4, and `legacy`, `k_quants`, `i_quants`, `ternary` and `fp4` declare ggml's quantized types.
Sizes, slices, documentation and tests follow from the declaration of a type.
"""

from glft_schema.tensor_types.tensor_type import TensorType

__all__ = ["TensorType"]
