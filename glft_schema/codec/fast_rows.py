"""Fast path for table rows: unpacks fields from a buffer. Unusual rows fall back to the full parse.

The full parse, the `_parse` of each field, is too slow for a file of many tensors: it reads from a
stream, tracks the position and formats error messages. So each table makes a `Reader` for its rows
as soon as byte order, version and limits are known. A reader returns what the full parse would, or
raises any exception, after which the row is parsed in full. So only the full parse formats and
locates errors.

A class of this package with a fast path defines `_fast_reader` next to its `_parse`. Given a
context with everything that is known before the first row, it returns the reader. `READERS` has the
readers for construct's own classes. A table with other fields is always parsed in full.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import construct
from construct.core import evaluate

from glft_schema.codec.context import Context
from glft_schema.codec.expressions import compiled
from glft_schema.storage.cursor import Cursor

# Parses a field: (buffer, the field's start there, context of its Struct) -> (value, end)
Reader = Callable[[bytes, int, Context], tuple[Any, int]]


class NotFast(Exception):  # noqa: N818 - not an error
    """A declaration or row has no fast path."""


def row_reader(row: construct.Construct, context: Context) -> Reader | None:
    """Returns the reader of a table's rows, declared by `row`, or None if it has no fast path."""
    try:
        return fast_reader(row, context)
    except Exception:  # such as a KeyError, if the storage of a field depends on the row itself
        return None


def read_ahead(read: Reader, cursor: Cursor, context: Context, rows: list[Any], until: int, starts: array[int] | None) -> None:
    """Extends `rows` up to `until` by those in memory, and `starts` by the first byte of each.

    Leaves `cursor` at the first row that is left for the full parse.
    """
    stored, at = cursor.ahead()
    before = cursor.tell() - at
    with suppress(Exception):  # the full parse raises it again, with its path
        while len(rows) < until:
            row, end = read(stored, at, context)
            rows.append(row)
            if starts is not None:
                starts.append(before + at)
            at = end
    cursor.seek(before + at)


def fast_reader(field: construct.Construct, context: Context) -> Reader:
    """Returns the reader of a field. Raises `NotFast`, or any other exception, if it has none."""
    kind = type(field)
    make = READERS.get(kind) or vars(kind).get("_fast_reader")  # never inherited: a subclass may parse otherwise
    if make is None or field.parsed is not None:
        raise NotFast
    reader: Reader = make(field, context)
    return reader


def unpacking_reader(unpack: Callable[[bytes, int], Any], nbytes: int) -> Reader:
    """Returns a reader of the first value that `unpack` returns, of `nbytes` bytes."""
    return lambda stored, at, context: (unpack(stored, at)[0], at + nbytes)


def text_reader(length: Reader, most: float, decode: Callable[[bytes], str]) -> Reader:
    """Returns a reader of texts of at most `most` bytes, each after its length."""

    def read(stored: bytes, at: int, context: Context) -> tuple[str, int]:
        nbytes, first = length(stored, at, context)
        end = first + nbytes
        if not 0 <= nbytes <= most or end > len(stored):
            raise NotFast
        return decode(stored[first:end]), end

    return read


def inner_reader(field: construct.Subconstruct, context: Context) -> Reader:
    """Returns the reader of the construct inside of `field`."""
    return fast_reader(field.subcon, context)


def _format_field(field: construct.FormatField, context: Context) -> Reader:
    return unpacking_reader(struct.Struct(field.fmtstr).unpack_from, field.length)


def _string_encoded(field: construct.StringEncoded, context: Context) -> Reader:
    inner, encoding = field.subcon, field.encoding
    if type(inner) is not construct.Prefixed or inner.subcon is not construct.GreedyBytes or inner.includelength:
        raise NotFast
    return text_reader(fast_reader(inner.lengthfield, context), float("inf"), lambda stored: stored.decode(encoding))


def _bytes(field: construct.Bytes, context: Context) -> Reader:
    length = compiled(field.length) if callable(field.length) else lambda context: field.length

    def read(stored: bytes, at: int, context: Context) -> tuple[bytes, int]:
        end = at + length(context)
        if not at <= end <= len(stored):
            raise NotFast
        return stored[at:end], end

    return read


def _switch(field: construct.Switch, context: Context) -> Reader:
    cases: dict[Any, Reader] = {}
    for key, case in field.cases.items():
        with suppress(Exception):
            cases[key] = fast_reader(case, context)
    return lambda stored, at, context: cases[evaluate(field.keyfunc, context)](stored, at, context)


READERS: dict[type, Callable[[Any, Context], Reader]] = {
    construct.Bytes: _bytes,
    construct.Renamed: inner_reader,
    construct.Default: inner_reader,
    construct.FormatField: _format_field,
    construct.StringEncoded: _string_encoded,
    construct.Switch: _switch,
}
