"""Fast path for rows: unpacks fields from a buffer, or takes them from decoded JSON.

The full parse, the `_parse` of each field, is too slow for a file of many tensors: it reads from a
stream, tracks the position and formats error messages. So a table makes a `Reader` for its rows, or
for each column, as soon as byte order, version and limits are known. A reader returns what the full
parse would, or raises any exception, after which the row is parsed in full. So only the full parse
formats and locates errors.

A class of this package with a fast path defines `_fast_reader` next to its `_parse`. Given a
context with everything that is known before the first row, it returns the reader. `READERS` has the
readers for construct's own classes. A table with other fields is always parsed in full.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import construct
from construct.core import evaluate

from glft_schema.codec.context import Context
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


def read_ahead(read: Reader, cursor: Cursor, context: Context, rows: Any, until: int) -> None:
    """Parses rows that are in memory, up to row `until`. Leaves `cursor` at the first other row."""
    stored, at = cursor.ahead()
    before = cursor.tell() - at
    with suppress(Exception):  # the full parse raises it again, with its path
        while len(rows) < until:
            row, end = read(stored, at, context)
            rows.append(row)
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


def inner_reader(field: construct.Subconstruct, context: Context) -> Reader:
    """Returns the reader of the construct inside of `field`."""
    return fast_reader(field.subcon, context)


def _format_field(field: construct.FormatField, context: Context) -> Reader:
    return unpacking_reader(struct.Struct(field.fmtstr).unpack_from, field.length)


def _switch(field: construct.Switch, context: Context) -> Reader:
    cases: dict[Any, Reader] = {}
    for key, case in field.cases.items():
        with suppress(Exception):
            cases[key] = fast_reader(case, context)
    return lambda stored, at, context: cases[evaluate(field.keyfunc, context)](stored, at, context)


READERS: dict[type, Callable[[Any, Context], Reader]] = {
    construct.Renamed: inner_reader,
    construct.Default: inner_reader,
    construct.FormatField: _format_field,
    construct.Switch: _switch,
}
