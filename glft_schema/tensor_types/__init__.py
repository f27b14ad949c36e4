"""Tensor types, each declared once: its code, the Struct of its payload, a formula that decodes it,
and an encoder.

Each group of types is one module, in which each block is followed by its formula; `encoders` has
the encoders. `unquantized` has floats and integers, `symmetric` has GLFT's Q8 and Q4, and the
others have ggml's quantized types. Sizes, slices, documentation and tests follow from the
declaration of a type.
"""

from glft_schema.tensor_types.tensor_type import TensorType

__all__ = ["TensorType"]
