"""The short way to the rows of a table: fields straight from bytes in memory, as long as nothing about them is unusual.

The long way, the `_parse` of each field, goes through a stream, knows where it is, and says what is wrong. A file of many
tensors has no time for that. So a `Reader` of its rows is made of their declaration, once for each table, when byte order,
version and limits are known. It gives what the long way would, or raises: what it raises does not matter, because the row is
then parsed the long way, from its beginning. So what errors say, and where, stands there alone.

The functions below make the reader of a field, in a context that has all that is known before the first row. `READERS`, at the
end, says which is for what; a table of other fields has only the long way.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import construct
import numpy as np
from construct.core import evaluate

from glft_schema.bulk import Text, decoded
from glft_schema.fields import Count, Derived, Picked, Sizes, Struct, TypeCode
from glft_schema.limits import limits_of
from glft_schema.numbers import Number, byte_order, packed
from glft_schema.rules import Check
from glft_schema.source import Cursor

MANY_DIMS = 8  # a tensor of so many is unusual

# What reads a field: (bytes, where it begins in them, the context of the Struct that it is in) -> its value, and where it ends.
Reader = Callable[[bytes, int, Any], tuple[Any, int]]


class OnlyTheLongWay(Exception):  # noqa: N818 - it is no error
    """A declaration, or a row, is not for readers."""


def row_reader(row: construct.Construct, context: Any) -> Reader | None:
    """Returns what reads the rows of a table in `context`, each a `row`; None where there is only the long way."""
    try:
        return reader(row, context)
    except Exception:  # such as a KeyError, where it depends on the row itself how a field is stored
        return None


def read_ahead(read: Reader, cursor: Cursor, context: Any, rows: list[Any], until: int, starts: array[int] | None) -> None:
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
    with suppress(Exception):  # the long way finds it, too, and says what it is
        while len(rows) < until:
            row, end = read(stored, at, context)
            rows.append(row)
            if starts is not None:
                starts.append(before + at)
            at = end
    cursor.seek(before + at)


def reader(field: construct.Construct, context: Any) -> Reader:
    """Returns the reader of a field. Raises `OnlyTheLongWay`, or whatever else, where there is none."""
    make = READERS.get(type(field))  # not of a subclass, which may parse in a way of its own
    if make is None or field.parsed is not None:
        raise OnlyTheLongWay
    return make(field, context)


def _struct(declared: Struct, context: Any) -> Reader:
    if "_root" not in context:  # each row would be a root of its own
        raise OnlyTheLongWay
    given = dict(declared._nested(context, None))
    del given["_io"]  # what looks at the stream finds none, and the row goes the long way
    ahead, record, new, nested = construct.Container(given), declared.record, object.__new__, construct.Container
    steps = []
    for name, field, slot in declared.needed:
        make = _check if isinstance(field, Check) else reader
        steps.append((name, make(field, ahead), slot and slot.__set__))

    def read(stored: bytes, at: int, context: Any) -> tuple[Any, int]:
        made, own = new(record), nested(given)
        own["_"] = context
        for name, read_field, put in steps:
            value, at = read_field(stored, at, own)
            if put is not None:
                own[name] = value
                put(made, value)
        return made, at

    return read


def _check(rule: Check, context: Any) -> Reader:
    if type(rule)._parse is not Check._parse:
        raise OnlyTheLongWay
    check = rule.check

    def read(stored: bytes, at: int, context: Any) -> tuple[None, int]:
        check(context, "")
        return None, at

    return read


def _inner(field: construct.Subconstruct, context: Any) -> Reader:
    return reader(field.subcon, context)


def _derived(field: Derived, context: Any) -> Reader:
    value = field.value
    return lambda stored, at, context: (value(context), at)


def _unpacked(unpack: Callable[[bytes, int], Any], nbytes: int) -> Reader:
    return lambda stored, at, context: (unpack(stored, at)[0], at + nbytes)


def _format_field(field: construct.FormatField, context: Any) -> Reader:
    return _unpacked(packed(field.fmtstr).unpack_from, field.length)


def _number(field: Number, context: Any) -> Reader:
    order = byte_order(context)
    if not field.is_float:
        return _unpacked(field.unpacker(order), field.itemsize)
    dtype = field.numpy_dtype(order)
    return _unpacked(lambda stored, at: np.frombuffer(stored, dtype, 1, at), field.itemsize)


def _picked(field: Picked, context: Any) -> Reader:
    if not field.can_be_read:  # what else may a function look at?
        raise OnlyTheLongWay
    return reader(field.pick(context), context)


def _sizes(field: Sizes, context: Any) -> Reader:
    read_count, _ = reader(field.count, context), reader(field.size, context)
    count, size = field.count.pick(context), field.size.pick(context)
    if count.is_signed or count.is_float or size.is_signed or size.is_float:
        raise OnlyTheLongWay
    most, order, width = getattr(limits_of(context), field.limit), byte_order(context), size.itemsize
    unpack = [size.unpacker(order, n) for n in range(min(MANY_DIMS, most + 1))]

    def read(stored: bytes, at: int, context: Any) -> tuple[list[int], int]:
        n, first = read_count(stored, at, context)
        return list(unpack[n](stored, first)), first + n * width

    return read


def _after_length(length: Reader, most: float, decode: Callable[[bytes], str]) -> Reader:
    def read(stored: bytes, at: int, context: Any) -> tuple[str, int]:
        nbytes, first = length(stored, at, context)
        end = first + nbytes
        if not 0 <= nbytes <= most or end > len(stored):
            raise OnlyTheLongWay
        return decode(stored[first:end]), end

    return read


def _text(field: Text, context: Any) -> Reader:
    return _after_length(reader(field.length, context), limits_of(context).text, decoded)


def _string_encoded(field: construct.StringEncoded, context: Any) -> Reader:
    inner, encoding = field.subcon, field.encoding
    if type(inner) is not construct.Prefixed or inner.subcon is not construct.GreedyBytes or inner.includelength:
        raise OnlyTheLongWay
    return _after_length(reader(inner.lengthfield, context), float("inf"), lambda stored: stored.decode(encoding))


def _type_code(field: TypeCode, context: Any) -> Reader:
    code, types = reader(field.subcon, context), field.table

    def read(stored: bytes, at: int, context: Any) -> tuple[Any, int]:
        found, end = code(stored, at, context)
        return types[found], end

    return read


def _switch(field: construct.Switch, context: Any) -> Reader:
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
