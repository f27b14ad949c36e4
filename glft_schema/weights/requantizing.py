"""Requantization: the errors of the old and the new type add up."""

from __future__ import annotations

from collections.abc import Mapping

from glft_schema.display import format_count
from glft_schema.errors import quote
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.stored_tensor import StoredTensor


def type_before(tensor: StoredTensor, type_: TensorType) -> TensorType | None:
    """Returns the quantized type that a tensor has, if `type_` is another one, otherwise None."""
    return None if type_.exact or type_ == tensor.quantized else tensor.quantized


def counted_types(types: Mapping[str, TensorType]) -> str:
    """Returns the count of tensors and their types: ``3 tensors (Q4_1, Q8_0)``."""
    names = ", ".join(dict.fromkeys(type_.name for type_ in types.values()))
    return f"{format_count(types, 'tensor')} ({names})"


def note_on_errors(types: Mapping[str, TensorType]) -> str:
    """Returns what errors against quantized tensors do not cover, or an empty text without any."""
    found = f"quantized already: {counted_types(types)}; errors are against these, not the original weights"
    return found if types else ""


def refusal(types: Mapping[str, TensorType]) -> str:
    """Returns the error text for quantized tensors that schemes would requantize."""
    problem = (
        f"{counted_types(types)} {'is' if len(types) == 1 else 'are'} quantized already, such as {quote(next(iter(types)))}"
    )
    return f"{problem}: requantizing adds error; allow_requantize (--allow-requantize) permits it"
