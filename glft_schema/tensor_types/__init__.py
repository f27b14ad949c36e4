"""Every tensor type, declared once: its code, the Struct of its payload, and the formulas between codes and numbers.

`unquantized` holds floats as they are, `symmetric` GLFT's Q8 and Q4. A new type is one declaration added to the table of its
format; sizes, slices, documentation and tests follow from it.
"""

from glft_schema.tensor_types.tensor_type import TensorType

__all__ = ["TensorType"]
