"""Rows of a table by column, so that opening a file creates no record per tensor.

`Struct._parse` reads one row from a stream, with its position and its path for errors. This is too
slow for a file of many tensors. So a table reads most rows with a `ColumnReader`, which makes a
`Reader` of each field as soon as byte order, version and limits are known. At the first row that is
unusual, it stops, and `Struct._parse` reads this row. So only the full parse formats and locates
errors. Tables of other declarations, such as those with a Switch, are always parsed in full.

A construct that can be read so defines, next to its `_parse`:

=================  ============================================================================
`_fast_reader`     context of what is known before the first row -> its `Reader`
`_fast_end`        the same -> finds its end. The values of these fields, dims and types, repeat:
                   they are parsed once for each distinct sequence of bytes
`needs`            the fields of the row that it is computed from, if it has no bytes
=================  ============================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import construct

from glft_schema.codec.context import Context
from glft_schema.codec.records import Record
from glft_schema.codec.structs import Count, Struct
from glft_schema.display import with_display
from glft_schema.errors import FormatError
from glft_schema.storage.cursor import Cursor

# Parses a field: (buffer, the field's start there, context of its row) -> (value, end)
Reader = Callable[[bytes, int, Context], tuple[Any, int]]
End = Callable[[bytes, int], int]  # finds the end of a field: (buffer, the field's start there) -> its end there
TRANSPARENT = (construct.Renamed, construct.Default, Count)  # parse into the value of the construct inside


class NotFast(Exception):  # noqa: N818 - not an error
    """A declaration, or a row, that has to be parsed in full."""


# Why a row is parsed in full: an unusual value, bytes beyond those in memory, a broken rule.
UNUSUAL = (NotFast, struct.error, FormatError)


def fast_reader(field: construct.Construct, context: Context) -> Reader:
    """Returns the reader of a field. Raises NotFast, or KeyError if it depends on the row."""
    make = getattr(field, "_fast_reader", None)
    if make is None or field.parsed is not None or _owner(field, "_fast_reader") is not _owner(field, "_parse"):
        raise NotFast  # of a class that parses otherwise than its base
    reader: Reader = make(context)
    return reader


def _owner(field: construct.Construct, method: str) -> type:
    return next(kind for kind in type(field).__mro__ if method in vars(kind))


def _bare(field: construct.Construct) -> Any:
    """Returns a declaration without its name, its default and its way of counting."""
    while type(field) in TRANSPARENT and field.parsed is None:
        field = field.subcon
    return field


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
        self._entries = dict(row.nest(context, None))
        self._known = Context(self._entries)
        self._checked = Context(self._entries)
        self._fields: list[tuple[str, Reader]] = []  # of fields that do not repeat, before and after those that do
        self._repeated: list[tuple[str | None, Reader]] = []  # repeated fields, and what depends on them
        self._checks: list[Reader] = []  # of other fields
        self._ends: list[End] = []
        self._before = 0  # number of `_fields` before those that repeat
        names = {name for name, _, slot in row.needed if slot is not None}
        for name, field, _ in row.needed:
            self._add(name, _bare(field), names)
        if not self._ends:
            raise NotFast
        self.rows = Rows(row, [name for name, _ in self._repeated if name])
        self._kinds: dict[bytes, int] = {}

    def _add(self, name: str | None, field: Any, names: set[str]) -> None:
        read = fast_reader(field, self._known)
        if hasattr(field, "needs"):
            needs, repeated = field.needs(), {name for name, _ in self._repeated if name}
            if needs is not None and needs & names <= repeated:
                self._repeated.append((name, read))
            elif needs is not None and name is None and not needs & repeated:
                self._checks.append(read)
            else:
                raise NotFast
        elif hasattr(field, "_fast_end") and (not self._ends or len(self._fields) == self._before):
            self._before = len(self._fields)
            self._ends.append(field._fast_end(self._known))
            self._repeated.append((name, read))
        elif name is None:
            raise NotFast
        else:
            self._fields.append((name, read))

    def read_ahead(self, cursor: Cursor, until: int) -> None:
        """Parses rows that are in memory, up to row `until`.

        Leaves `cursor` at the first row that needs the full parse.
        """
        stored, at = cursor.ahead()
        before = cursor.tell() - at
        rows, context, kinds, ends = self.rows, self._known, self._kinds, self._ends
        steps = [(read, rows.others[name].append) for name, read in self._fields]
        first, last = steps[: self._before], steps[self._before :]
        done = start = at
        try:
            while len(rows.kind) < until:
                for read, store in first:
                    value, at = read(stored, at, context)
                    store(value)
                start = at
                for end in ends:
                    at = end(stored, at)
                kind = kinds.get(stored[start:at])
                if kind is None:
                    kind = self._new_kind(stored, start, at)
                for read, store in last:
                    value, at = read(stored, at, context)
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

    def _new_kind(self, stored: bytes, start: int, end: int) -> int:
        own, at = Context(self._entries), start
        for name, read in self._repeated:
            value, at = read(stored, at, own)
            if name:
                own[name] = value
        assert at == end
        self._kinds[stored[start:end]] = number = len(self.rows.kinds)
        self.rows.kinds.append(tuple(own[name] for name in self.rows.repeated))
        return number

    def _check(self, number: int) -> None:
        for name, _ in self._fields:
            self._checked[name] = self.rows.others[name][number]
        for check in self._checks:
            check(b"", 0, self._checked)


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
