"""Scalar formulas of tensor types: their layouts, and all of them as one unit of C."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from glft_schema.scalar.as_c import Unit
from glft_schema.scalar.checking import check
from glft_schema.scalar.layout import Field, Layout

if TYPE_CHECKING:
    from glft_schema.tensor_types.tensor_type import TensorType

ROW = 1 << 20  # the length of a row, which tells the weights per number of each field


def layout_of(type_: TensorType) -> Layout:
    """Returns what the formula of a type reads: the fields of a block, or of a row."""
    if type_.block is not None:
        parts = [(field, field.subcon.number) for field in type_.block.subcons]
        fields = [Field(field.name, str(number), field.sizeof() // number.itemsize, field.docs) for field, number in parts]
        return Layout(type_.scheme, tuple(fields), type_.unit([1, ROW]))
    fields, spans = [], type_.field_spans([1, ROW])
    for name, part in type_.fields():
        count = spans[name][1] // part.number.itemsize
        fields.append(Field(name, str(part.number), 1 if count == 1 else None, weights=ROW // count))
    return Layout(type_.scheme, tuple(fields), None)


def check_formula(type_: TensorType) -> None:
    """Checks a scalar formula. Raises ScalarError if it does not follow the language."""
    check(type_.formula, layout_of(type_).arrays())


def printed(types: Iterable[TensorType]) -> str:
    """Returns the scalar formulas of types as a translation unit of C, see `Unit.decoder`."""
    unit = Unit()
    for type_ in types:
        if type_.is_scalar:
            unit.decoder(layout_of(type_), type_.formula)
    return str(unit)
