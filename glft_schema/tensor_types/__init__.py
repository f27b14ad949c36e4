"""Tensor types, each declared once: its code, the Struct of its payload, and the formulas between
codes and numbers.

Each family of types is one module: each block is followed by its formula. `unquantized` has floats
and integers, `symmetric` has GLFT's Q8 and Q4, and the others have ggml's quantized types. Sizes,
slices, documentation and tests follow from the declaration of a type.
"""

from glft_schema.tensor_types.tensor_type import TensorType

__all__ = ["TensorType"]
