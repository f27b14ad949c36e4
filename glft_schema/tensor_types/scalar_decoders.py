"""Decoders of tensor types as scalar functions: their layouts, and all of them as one unit of C."""

from __future__ import annotations

from collections.abc import Iterable

from glft_schema.scalar.as_c import Field, Layout, Unit
from glft_schema.tensor_types.tensor_type import TensorType

ROW = 1 << 20  # the length of a row, which tells the weights per number of each field


def layout_of(type_: TensorType) -> Layout:
    """Returns what the decoder of a type reads: the fields of a block, or of a row."""
    if type_.block is not None:
        parts = [(part, part.subcon.number) for part in type_.block.subcons]
        block = [Field(part.name, str(number), part.sizeof() // number.itemsize, part.docs) for part, number in parts]
        return Layout(type_.scheme, tuple(block), type_.least_row)
    row = []
    for name, part in type_.fields():
        count = type_.field_spans([1, ROW])[name][1] // part.number.itemsize
        row.append(Field(name, str(part.number), 1 if count == 1 else None, weights=ROW // count))
    return Layout(type_.scheme, tuple(row), None)


def printed(types: Iterable[TensorType]) -> str:
    """Returns the decoders of types as a translation unit of C, see `Unit.decoder`."""
    unit = Unit()
    for type_ in types:
        if type_.decoder is not None:
            unit.decoder(layout_of(type_), type_.decoder)
    return str(unit)
