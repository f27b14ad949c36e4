"""Tensor types, each declared once: its code, the Struct of its payload, and the formulas between
codes and numbers.

Each family of types is a page: its blocks first, then its formulas. `unquantized` has floats and
integers, `symmetric` GLFT's Q8 and Q4, the others ggml's quantized types. Sizes, slices,
documentation and tests follow from a declaration.
"""

from glft_schema.tensor_types.tensor_type import TensorType

__all__ = ["TensorType"]
