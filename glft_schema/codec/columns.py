"""Rows of a table by column, so that opening a file creates no record per tensor.

The declared constructs parse a row: `Struct._parse`, from a stream, with positions and paths for
errors. This is too slow for a file of many tensors, so a table reads most rows with a
`ColumnReader`, which derives a vectorised reading from the same declaration, as soon as byte order,
version and limits are known:

- Dims and types repeat. Their bytes are located, and the constructs parse them once for each
  distinct sequence of bytes, with the fields and rules that depend only on them.
- Texts and integers are unpacked from a buffer.

At the first row that is unusual, the reader stops, and `Struct._parse` reads this row. So only the
full parse formats and locates errors. Tables with any other field are always parsed in full.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import construct

from glft_schema.codec.context import Context, byte_order, limits_of
from glft_schema.codec.expressions import fields_in
from glft_schema.codec.numbers import Number, Picked, Sizes
from glft_schema.codec.records import Record
from glft_schema.codec.rules import Check
from glft_schema.codec.structs import Count, Derived, Struct
from glft_schema.codec.text import Text
from glft_schema.codec.type_codes import TypeCode
from glft_schema.display import with_display
from glft_schema.errors import FormatError
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.source import BytesSource

Reader = Callable[[bytes, int], tuple[Any, int]]  # parses a field: (buffer, its start there) -> (value, end)
End = Callable[[bytes, int], int]  # finds the end of a field: (buffer, its start there) -> its end there
TRANSPARENT = (construct.Renamed, construct.Default, Count)  # parse into the value of the construct inside


class NotFast(Exception):  # noqa: N818 - not an error
    """A declaration, or a row, that has to be parsed in full."""


# Why a row is parsed in full: an unusual value, bytes beyond those in memory, a broken rule.
UNUSUAL = (NotFast, struct.error, FormatError)


@with_display
class Rows(Sequence[Record]):
    """The rows of a table. A record is created on access. A pickle contains a list of records.

    Attributes:
        kinds: the distinct values of the fields in `repeated`, in any order.
        kind: the index of each row's values in `kinds`.
        repeated: the names of the fields whose values repeat.
        others: the values of all other fields, by name.
    """

    def __init__(self, row: Struct, repeated: Sequence[str]) -> None:
        slots = {name: slot.__set__ for name, _, slot in row.needed if slot is not None}
        self.kinds: list[tuple[Any, ...]] = []
        self.kind: list[int] = []
        self.repeated = tuple(repeated)
        self.others: dict[str, list[Any]] = {name: [] for name in slots if name not in repeated}
        self._record = row.record
        self._put_others = [(slots[name], values) for name, values in self.others.items()]
        self._put_repeated = [slots[name] for name in self.repeated]

    def column(self, name: str) -> Sequence[Any]:
        """Returns the values of a field, which callers must not change."""
        if name in self.others:
            return self.others[name]
        at = self.repeated.index(name)
        values = [kind[at] for kind in self.kinds]
        return [values[kind] for kind in self.kind]

    def add(self, row: Record) -> None:
        """Appends a row that was parsed in full."""
        for name, values in self.others.items():
            values.append(row[name])
        self.kind.append(len(self.kinds))
        self.kinds.append(tuple(row[name] for name in self.repeated))

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        shared = self.kinds[self.kind[index]]
        record: Record = object.__new__(self._record)
        for store, values in self._put_others:
            store(record, values[index])
        for store, value in zip(self._put_repeated, shared, strict=True):
            store(record, value[:] if type(value) is list else value)
        return record

    def __len__(self) -> int:
        return len(self.kind)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, (Rows, list)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class ColumnReader:
    """Reads rows in memory into the columns of `Rows`.

    Raises:
        NotFast, or KeyError if the storage of a field depends on the row itself: if the declaration
            cannot be read by column.
    """

    def __init__(self, row: construct.Construct, context: Context) -> None:
        if type(row) is not Struct or row.parsed is not None or "_root" not in context:  # or each row is a root of its own
            raise NotFast
        self._context = row.nest(context, None)
        self._first: list[tuple[str, Reader]] = []  # fields before those that repeat,
        self._last: list[tuple[str, Reader]] = []  # and after them
        self._repeated: list[tuple[str | None, Any]] = []  # repeated fields, and what depends on them
        self._checks: list[Check] = []  # of other fields
        self._ends: list[End] = []
        names = {name for name, _, slot in row.needed if slot is not None}
        for name, field, _ in row.needed:
            self._add(name, _bare(field), names)
        if not self._ends:
            raise NotFast
        self.rows = Rows(row, [name for name, _ in self._repeated if name])
        self._kinds: dict[bytes, int] = {}

    def _add(self, name: str | None, field: Any, names: set[str]) -> None:
        if field.parsed is not None:
            raise NotFast
        if isinstance(field, (Derived, Check)):
            needs, repeated = field.needs(), {name for name, _ in self._repeated if name}
            if needs is not None and needs & names <= repeated:
                self._repeated.append((name, field))
            elif needs is not None and isinstance(field, Check) and not needs & repeated:
                self._checks.append(field)
            else:
                raise NotFast
        elif type(field) in (Sizes, TypeCode) and not self._last:
            self._ends.append(_end_of(field, self._context))
            self._repeated.append((name, field))
        elif name is None:
            raise NotFast
        else:
            (self._last if self._ends else self._first).append((name, _reader_of(field, self._context)))

    def read_ahead(self, cursor: Cursor, until: int) -> None:
        """Parses rows that are in memory, up to row `until`.

        Leaves `cursor` at the first row that needs the full parse.
        """
        stored, at = cursor.ahead()
        before = cursor.tell() - at
        rows, kinds, ends = self.rows, self._kinds, self._ends
        first, last = ([(read, rows.others[name].append) for name, read in of] for of in (self._first, self._last))
        done = start = at
        try:
            while len(rows.kind) < until:
                for read, store in first:
                    value, at = read(stored, at)
                    store(value)
                start = at
                for end in ends:
                    at = end(stored, at)
                kind = kinds.get(stored[start:at])
                if kind is None:
                    kind = self._new_kind(stored[start:at])
                for read, store in last:
                    value, at = read(stored, at)
                    store(value)
                if self._checks:
                    self._check(len(rows.kind))
                rows.kind.append(kind)
                done = at
        except UNUSUAL:  # the full parse raises it again, with its path
            pass
        for values in rows.others.values():  # of a row that failed
            del values[len(rows) :]
        cursor.seek(before + done)

    def _new_kind(self, stored: bytes) -> int:
        own, cursor = Context(self._context), Cursor(BytesSource(stored))
        for name, field in self._repeated:
            value = field._parse(cursor, own, "")
            if name:
                own[name] = value
        self._kinds[stored] = number = len(self.rows.kinds)
        self.rows.kinds.append(tuple(own[name] for name in self.rows.repeated))
        return number

    def _check(self, number: int) -> None:
        own = Context(self._context)
        for name, _ in (*self._first, *self._last):
            own[name] = self.rows.others[name][number]
        for check in self._checks:
            check._parse(None, own, "")


def _bare(field: construct.Construct) -> Any:
    """Returns a declaration without its name, its default and its way of counting."""
    while type(field) in TRANSPARENT and field.parsed is None:
        field = field.subcon
    return field


def _number_of(field: Any, context: Context) -> Number:
    """Returns the number of all rows. Raises NotFast, or KeyError if it depends on the row."""
    if type(field) is Picked and fields_in(field.condition) is not None:  # a function may depend on the row
        field = field.pick(context)
    if type(field) is not Number or field.is_float:
        raise NotFast
    return field


def _end_of(field: Sizes | TypeCode, context: Context) -> End:
    """Returns a function that finds the end of a field whose values repeat."""
    if isinstance(field, TypeCode):
        nbytes = _number_of(field.subcon, context).itemsize
        return lambda stored, at: at + nbytes
    count, width = _number_of(field.count, context), _number_of(field.size, context).itemsize
    if not count.is_unsigned:
        raise NotFast
    unpack, start = count.unpacker(byte_order(context)), count.itemsize
    return lambda stored, at: at + start + width * unpack(stored, at)[0]


def _reader_of(field: Any, context: Context) -> Reader:
    """Returns the reader of a text or an integer."""
    if type(field) is Text:
        return _text_reader(field, context)
    number = _number_of(field, context)
    unpack, nbytes = number.unpacker(byte_order(context)), number.itemsize
    return lambda stored, at: (unpack(stored, at)[0], at + nbytes)


def _text_reader(text: Text, context: Context) -> Reader:
    length, most, errors = _reader_of(text.length, context), limits_of(context).text, text.errors

    def read(stored: bytes, at: int) -> tuple[str, int]:
        nbytes, first = length(stored, at)
        end = first + nbytes
        if not 0 <= nbytes <= most or end > len(stored):
            raise NotFast
        try:
            return str(stored[first:end], "utf-8", errors), end
        except UnicodeDecodeError:
            raise NotFast from None

    return read


def column_reader(row: construct.Construct, context: Context) -> ColumnReader | None:
    """Returns the column reader of a table's rows, or None if they cannot be read by column."""
    try:
        return ColumnReader(row, context)
    except (NotFast, KeyError):
        return None


def column(rows: Iterable[Any], name: str) -> Sequence[Any]:
    """Returns the values of a field in all rows of a table, which callers must not change."""
    return rows.column(name) if isinstance(rows, Rows) else [row[name] for row in rows]


def kinds(rows: Sequence[Any], *names: str) -> tuple[Sequence[int], list[tuple[Any, ...]]]:
    """Returns the index of each row's values of some fields, and these values by index."""
    if isinstance(rows, Rows) and set(names) <= set(rows.repeated):
        places = [rows.repeated.index(name) for name in names]
        return rows.kind, [tuple(kind[place] for place in places) for kind in rows.kinds]
    return range(len(rows)), list(zip(*(column(rows, name) for name in names), strict=True))
