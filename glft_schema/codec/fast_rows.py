"""Fast path for table rows: unpacks fields from a buffer; anything unusual falls back to the full parse.

The full parse, the `_parse` of each field, goes through a stream, knows its position, and words the errors. For a file of many
tensors that is too slow. So a `Reader` of the rows is made of their declaration, once for each table, when byte order, version
and limits are known. It returns what the full parse would, or raises. What it raises does not matter, because the row is then
parsed in full, from its beginning. So the texts and positions of errors stand in one place.

The functions below make the reader of a field, in a context that has all that is known before the first row. `READERS`, at the
end, lists them by construct. A table with other fields is always parsed in full.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import construct
import numpy as np
from construct.core import evaluate

from glft_schema.codec.context import Context, byte_order, limits_of
from glft_schema.codec.numbers import Number, Picked, Sizes, cached_struct
from glft_schema.codec.rules import Check
from glft_schema.codec.structs import Count, Derived, Struct
from glft_schema.codec.text import Text
from glft_schema.codec.type_codes import TypeCode
from glft_schema.storage.cursor import Cursor

MANY_DIMS = 8  # a tensor of so many is unusual

# What reads a field: (bytes, where it begins in them, the context of the Struct that it is in) -> its value, and where it ends.
Reader = Callable[[bytes, int, Context], tuple[Any, int]]


class NotFast(Exception):  # noqa: N818 - it is no error
    """A declaration, or a row, is not for readers."""


def row_reader(row: construct.Construct, context: Context) -> Reader | None:
    """Returns what reads the rows of a table in `context`, each a `row`; None if they are always parsed in full."""
    try:
        return reader(row, context)
    except Exception:  # such as a KeyError, where it depends on the row itself how a field is stored
        return None


def read_ahead(read: Reader, cursor: Cursor, context: Context, rows: list[Any], until: int, starts: array[int] | None) -> None:
    """Parses rows that are in memory already, up to one that is not, or is unusual: there `cursor` stands then.

    Args:
        read: reads one.
        cursor: where the first one begins.
        context: that of the table.
        rows: those before, and these behind them.
        until: how many there are to be at most.
        starts: where each begins is put behind what is there.
    """
    stored, at = cursor.ahead()
    before = cursor.tell() - at
    with suppress(Exception):  # the full parse finds it, too, and words the error
        while len(rows) < until:
            row, end = read(stored, at, context)
            rows.append(row)
            if starts is not None:
                starts.append(before + at)
            at = end
    cursor.seek(before + at)


def reader(field: construct.Construct, context: Context) -> Reader:
    """Returns the reader of a field. Raises `NotFast`, or whatever else, where there is none."""
    make = READERS.get(type(field))  # not of a subclass, which may parse in a way of its own
    if make is None or field.parsed is not None:
        raise NotFast
    return make(field, context)


def _struct(declared: Struct, context: Context) -> Reader:
    if "_root" not in context:  # each row would be a root of its own
        raise NotFast
    given = dict(declared._nested(context, None))
    del given["_io"]  # what looks at the stream finds none, and the row is parsed in full
    ahead, record, new, nested = Context(given), declared.record, object.__new__, Context
    steps = []
    for name, field, slot in declared.needed:
        make = _check if isinstance(field, Check) else reader
        steps.append((name, make(field, ahead), slot and slot.__set__))

    def read(stored: bytes, at: int, context: Context) -> tuple[Any, int]:
        made, own = new(record), nested(given)
        own["_"] = context
        for name, read_field, put in steps:
            value, at = read_field(stored, at, own)
            if put is not None:
                own[name] = value
                put(made, value)
        return made, at

    return read


def _check(rule: Check, context: Context) -> Reader:
    if type(rule)._parse is not Check._parse:
        raise NotFast
    check = rule.check

    def read(stored: bytes, at: int, context: Context) -> tuple[None, int]:
        check(context, "")
        return None, at

    return read


def _inner(field: construct.Subconstruct, context: Context) -> Reader:
    return reader(field.subcon, context)


def _derived(field: Derived, context: Context) -> Reader:
    value = field.value
    return lambda stored, at, context: (value(context), at)


def _unpacked(unpack: Callable[[bytes, int], Any], nbytes: int) -> Reader:
    return lambda stored, at, context: (unpack(stored, at)[0], at + nbytes)


def _format_field(field: construct.FormatField, context: Context) -> Reader:
    return _unpacked(cached_struct(field.fmtstr).unpack_from, field.length)


def _number(field: Number, context: Context) -> Reader:
    order = byte_order(context)
    if not field.is_float:
        return _unpacked(field.unpacker(order), field.itemsize)
    dtype = field.numpy_dtype(order)
    return _unpacked(lambda stored, at: np.frombuffer(stored, dtype, 1, at), field.itemsize)


def _picked(field: Picked, context: Context) -> Reader:
    if not field.can_be_read:  # what else may a function look at?
        raise NotFast
    return reader(field.pick(context), context)


def _sizes(field: Sizes, context: Context) -> Reader:
    read_count, _ = reader(field.count, context), reader(field.size, context)
    count, size = field.count.pick(context), field.size.pick(context)
    if count.is_signed or count.is_float or size.is_signed or size.is_float:
        raise NotFast
    most, order, width = getattr(limits_of(context), field.limit), byte_order(context), size.itemsize
    unpack = [size.unpacker(order, n) for n in range(min(MANY_DIMS, most + 1))]

    def read(stored: bytes, at: int, context: Context) -> tuple[list[int], int]:
        n, first = read_count(stored, at, context)
        return list(unpack[n](stored, first)), first + n * width

    return read


def _after_length(length: Reader, most: float, decode: Callable[[bytes], str]) -> Reader:
    def read(stored: bytes, at: int, context: Context) -> tuple[str, int]:
        nbytes, first = length(stored, at, context)
        end = first + nbytes
        if not 0 <= nbytes <= most or end > len(stored):
            raise NotFast
        return decode(stored[first:end]), end

    return read


def _text(field: Text, context: Context) -> Reader:
    errors = field.errors
    return _after_length(reader(field.length, context), limits_of(context).text, lambda stored: str(stored, "utf-8", errors))


def _string_encoded(field: construct.StringEncoded, context: Context) -> Reader:
    inner, encoding = field.subcon, field.encoding
    if type(inner) is not construct.Prefixed or inner.subcon is not construct.GreedyBytes or inner.includelength:
        raise NotFast
    return _after_length(reader(inner.lengthfield, context), float("inf"), lambda stored: stored.decode(encoding))


def _type_code(field: TypeCode, context: Context) -> Reader:
    code, types = reader(field.subcon, context), field.table

    def read(stored: bytes, at: int, context: Context) -> tuple[Any, int]:
        found, end = code(stored, at, context)
        return types[found], end

    return read


def _switch(field: construct.Switch, context: Context) -> Reader:
    cases: dict[Any, Reader] = {}
    for key, case in field.cases.items():
        with suppress(Exception):
            cases[key] = reader(case, context)
    return lambda stored, at, context: cases[evaluate(field.keyfunc, context)](stored, at, context)


READERS: dict[type, Callable[[Any, Any], Reader]] = {
    Struct: _struct,
    Number: _number,
    Picked: _picked,
    Sizes: _sizes,
    Text: _text,
    TypeCode: _type_code,
    Derived: _derived,
    Count: _inner,
    construct.Renamed: _inner,
    construct.Default: _inner,
    construct.FormatField: _format_field,
    construct.StringEncoded: _string_encoded,
    construct.Switch: _switch,
}
