"""Decoders of tensor types as scalar functions: their layouts, and all of them as one unit of C."""

from __future__ import annotations

from collections.abc import Iterable

from glft_schema.scalar.as_c import Unit
from glft_schema.scalar.layout import Field, Layout
from glft_schema.tensor_types.blocks import Blocks
from glft_schema.tensor_types.tensor_type import TensorType

ROW = 1 << 20  # the length of a row, which tells the weights per number of each field


def layout_of(type_: TensorType) -> Layout:
    """Returns what the decoder of a type reads: the fields of a block, or of a row."""
    fields, weights = [], None
    for name, part in type_.fields():
        if isinstance(part, Blocks):
            parts, weights = [(field, field.subcon.number) for field in part.block.subcons], part.weights
            fields = [Field(field.name, str(number), field.sizeof() // number.itemsize, field.docs) for field, number in parts]
        else:
            count = type_.field_spans([1, ROW])[name][1] // part.number.itemsize
            fields.append(Field(name, str(part.number), 1 if count == 1 else None, weights=ROW // count))
    return Layout(type_.scheme, tuple(fields), weights)


def printed(types: Iterable[TensorType]) -> str:
    """Returns the decoders of types as a translation unit of C, see `Unit.decoder`."""
    unit = Unit()
    for type_ in types:
        if type_.decoder is not None:
            unit.decoder(layout_of(type_), type_.decoder)
    return str(unit)
