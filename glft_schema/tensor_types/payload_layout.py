"""Layout of payloads: their fields, one after another, and the bytes of any part of a tensor.

A tensor is seen as a matrix [out, in]. Each field has one row of numbers per row of the matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from construct import this
from numpy.lib.stride_tricks import as_strided

from glft_schema.codec.context import LITTLE, ByteOrder, new_context
from glft_schema.codec.expressions import as_expression
from glft_schema.codec.numbers import Number, TensorField
from glft_schema.codec.records import Record
from glft_schema.codec.structs import Struct
from glft_schema.errors import FormatError
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.dtypes import Array
from glft_schema.storage.source import Source
from glft_schema.storage.tensor_bytes import array_bytes, read_array

# The names that a payload's fields and rules refer to: the dims in torch's order, and the dims of
# the matrix.
DIMS = this._params.dims
OUT = this._params.out
IN = this._params["in"]


Fields = Mapping[str, Array]


def matrix(dims: Sequence[int]) -> tuple[int, int]:
    """Returns `dims` as [out, in]: the first dim and the product of the rest, or one row."""
    return (dims[0], math.prod(dims[1:])) if len(dims) > 1 else (1, math.prod(dims))


class FieldLayout(NamedTuple):
    """A field in the payloads of one shape.

    Attributes:
        name: of the field.
        part: its declaration.
        start: its first byte in the payload.
        nbytes: its size.
        pitch: numbers per row of the matrix.
        is_per_row: whether it has one number per row, which all slices of the row share.
    """

    name: str
    part: TensorField
    start: int
    nbytes: int
    pitch: int
    is_per_row: bool


class ShapeLayout(NamedTuple):
    """The payloads of one shape.

    Attributes:
        columns: of the matrix.
        unit: how many neighbours share a stored number.
        fields: in the payload's order.
    """

    columns: int
    unit: int
    fields: list[FieldLayout]


class PayloadLayout:
    """A payload: its size, and the bytes of its parts.

    Attributes:
        payload: a Struct of `TensorField`s on OUT and IN, and of rules on DIMS.
    """

    payload: Struct

    def fields(self) -> Iterator[tuple[str, TensorField]]:
        """Yields the payload's fields by name, in its order."""
        return ((part.name, part.subcon) for part in self.payload.subcons if part.name)

    @property
    def least_row(self) -> int:
        """The length of the shortest row: a block, a group, or one number."""
        return next(length for length in range(1, 1 << 16) if self.refusal([1, length]) is None)

    def nbytes(self, dims: Sequence[int]) -> int:
        """Returns the size in bytes of a tensor of `dims`, in torch's order.

        Raises:
            FormatError: if the type cannot store such dims; the text says why.
        """
        return _nbytes(self.payload, tuple(dims))

    def refusal(self, dims: Sequence[int]) -> str | None:
        """Returns why the type cannot store a tensor of `dims`, or None if it can."""
        try:
            self.nbytes(dims)
        except FormatError as error:
            return error.problem
        return None

    def unit(self, dims: Sequence[int]) -> int:
        """Returns how many neighbours share a stored number. Slices begin at multiples of it."""
        return _layout(self.payload, tuple(dims)).unit

    def field_spans(self, dims: Sequence[int]) -> dict[str, tuple[int, int]]:
        """Returns the offset of each field from the payload's first byte, and its size in bytes."""
        return {field.name: (field.start, field.nbytes) for field in _layout(self.payload, tuple(dims)).fields}

    def spans_of_row(self, columns: int) -> Iterator[tuple[str, slice, Number]]:
        """Yields each field of a packed row of `columns` numbers: name, byte span and `Number`."""
        for field in _layout(self.payload, (1, columns)).fields:
            yield field.name, slice(field.start, field.start + field.nbytes), field.part.number

    def parse(self, cursor: Cursor, dims: Sequence[int], order: ByteOrder = LITTLE) -> Record:
        """Returns the payload that begins at `cursor`, its fields as arrays."""
        record = self.payload._parse(cursor, _context(dims, order), "(parsing)")
        assert isinstance(record, Record)
        return record

    def write(
        self,
        fields: Fields,
        stream: Any,
        dims: Sequence[int],
        path: str = "(building)",
        order: ByteOrder = LITTLE,
    ) -> None:
        """Writes the payload field by field. Raises FormatError if a field has another type or
        shape."""
        self.payload._build(fields, stream, _context(dims, order), path)

    def pieces(self, fields: Fields, order: ByteOrder = LITTLE) -> Iterator[memoryview]:
        """Yields the bytes of fields that `encode` returned, in the payload's order."""
        for name, part in self.fields():
            yield array_bytes(fields[name] if order == LITTLE else part.swap(fields[name]))

    def cut(
        self,
        source: Source,
        start: int,
        dims: Sequence[int],
        rows: range,
        columns: range,
        order: ByteOrder = LITTLE,
        read: Callable[..., Any] = read_array,
    ) -> dict[str, Any]:
        """Returns the payload's fields [rows, numbers per row] for a part of the matrix.

        Reads, of each requested row, the bytes from the first requested number to the last. The
        fields of a mapped little-endian file are views.

        Args:
            source: the file.
            start: the first byte of the payload.
            dims: of the whole tensor.
            rows: with any positive step.
            columns: with step 1; both ends are multiples of `unit`.
            order: the byte order of the stored numbers.
            read: returns a field whose numbers are contiguous, or the means to read it later, like
                `read_array`.
        """
        layout, fields = _layout(self.payload, tuple(dims)), {}
        for field in layout.fields:
            span = range(field.pitch)
            if not field.is_per_row and layout.columns:
                span = range(columns.start * field.pitch // layout.columns, columns.stop * field.pitch // layout.columns)
            numbers = _read_rows(source, start, field, rows, span, read)
            fields[field.name] = numbers if order == LITTLE else field.part.swap(numbers)
        return fields

    def pack(self, fields: Fields) -> Array:
        """Returns fields [rows, numbers per row] as u8 [rows, bytes of a row]: a payload's bytes,
        row by row. A single field is not copied if its rows are contiguous."""
        parts = [_as_bytes(fields[name]) for name, _ in self.fields()]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)

    def unpack(self, packed: Array, columns: int) -> dict[str, Array]:
        """Returns the fields of packed rows of `columns` numbers. The inverse of `pack`."""
        return {
            name: np.ascontiguousarray(packed[:, span]).view(number.dtype) for name, span, number in self.spans_of_row(columns)
        }

    def empty(self, dims: Sequence[int]) -> dict[str, Array]:
        """Returns memory for the fields of a tensor, [out, numbers per row]."""
        out, fields = matrix(dims)[0], _layout(self.payload, tuple(dims)).fields
        return {field.name: np.empty((out, field.pitch), field.part.number.dtype) for field in fields}

    def check_shapes(self, fields: Mapping[str, Sequence[int]], out: Sequence[int], columns: int) -> None:
        """Checks that fields and weights have the shapes of rows of `columns` numbers. Raises
        ValueError if not, and FormatError if the type has no rows of this length."""
        self.nbytes([1, columns])
        rows = out[0]
        if tuple(out) != (rows, columns):
            raise ValueError(f"expected weights [{rows}, {columns}], found {list(out)}")
        for field in _layout(self.payload, (1, columns)).fields:
            found = fields[field.name]
            if found[0] != rows or math.prod(found) != rows * field.pitch:
                raise ValueError(f"expected {field.name} as [{rows}, {field.pitch}], found {list(found)}")


@lru_cache(maxsize=1 << 12)  # a model has many tensors of few shapes
def _nbytes(payload: Struct, dims: tuple[int, ...]) -> int:
    return int(payload.sizeof(**_params(dims)))


@lru_cache(maxsize=1 << 12)
def _layout(payload: Struct, dims: tuple[int, ...]) -> ShapeLayout:
    context, start, units, fields = _context(dims), 0, [1], list[FieldLayout]()
    out, columns = matrix(dims)
    for declared in payload.subcons:
        if declared.name:
            part = declared.subcon
            shape, nbytes = part.shape(context), part._sizeof(context, "")
            if len(part.dims) > 1 and shape[1]:
                units.append(columns // shape[1])
            is_per_row = part.dims == (as_expression(OUT),)
            fields.append(FieldLayout(declared.name, part, start, nbytes, math.prod(shape) // max(out, 1), is_per_row))
            start += nbytes
    return ShapeLayout(columns, math.lcm(*units) or 1, fields)


def _as_bytes(field: Array) -> Array:
    """Returns [rows, numbers] as u8 [rows, bytes], a view if each row is contiguous."""
    return field.view(np.uint8) if field.strides[1] == field.itemsize else np.ascontiguousarray(field).view(np.uint8)


def _read_rows(source: Source, start: int, field: FieldLayout, rows: range, span: range, read: Callable[..., Any]) -> Any:
    """Returns the numbers `span` of rows of a field, of a payload that begins at `start`."""
    dtype, size, pitch = field.part.number.dtype, field.part.number.itemsize, field.pitch

    def numbers(first: int, last: int) -> Array:
        return read_array(source, start + field.start + first * size, dtype, [last - first])

    if not rows or not span:
        return np.empty((len(rows), len(span)), dtype)
    if len(rows) == 1 or (rows.step == 1 and len(span) == pitch):
        first = rows[0] * pitch + span.start
        return read(source, start + field.start + first * size, dtype, [len(rows), len(span)])
    if source.mapped:
        whole = numbers(rows[0] * pitch + span.start, rows[-1] * pitch + span.stop)
        return as_strided(whole, (len(rows), len(span)), (rows.step * pitch * size, size))
    return np.stack([numbers(row * pitch + span.start, row * pitch + span.stop) for row in rows])


def _params(dims: Sequence[int]) -> dict[str, Any]:
    out, columns = matrix(dims)
    return {"dims": list(dims), "out": out, "in": columns}


def _context(dims: Sequence[int], order: ByteOrder = LITTLE) -> Any:
    return new_context(True, **_params(dims), byte_order=order)
