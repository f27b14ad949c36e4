"""Tensor types, each declared once: its code, the Struct of its payload, a formula that decodes it,
and an encoder.

Each group of types is one module, in which each block is followed by its formula. The encoders are
in `encoders`. `ggml` has the modules of ggml's types, `copied` declares the numbers that only other
formats have, and `symmetric` declares GLFT's Q8 and Q4. `running` decodes and encodes.
Sizes, slices, documentation and tests follow from the declaration of a type.
"""

from glft_schema.tensor_types.tensor_type import TensorType

__all__ = ["TensorType"]
