"""Column-wise storage of table rows, so that opening a file creates no record per tensor.

Distinct values of fields that repeat, such as dims and types, are parsed once, and cached by the
bytes of these fields. Fields whose class defines `_fast_end` are treated as repeating.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, overload

import construct

from glft_schema.codec.context import Context
from glft_schema.codec.expressions import fields_in
from glft_schema.codec.fast_rows import NotFast, Reader, fast_reader
from glft_schema.codec.numbers import Number, Picked, Sizes
from glft_schema.codec.records import Record
from glft_schema.codec.rules import Check
from glft_schema.codec.structs import Count, Derived, Struct, check_reader, unwrap
from glft_schema.codec.text import Text
from glft_schema.codec.type_codes import TypeCode
from glft_schema.display import with_display
from glft_schema.storage.cursor import Cursor

End = Callable[[bytes, int], int]  # finds the end of a field: (buffer, the field's start there) -> its end there


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
        NotFast, or any other exception: if the declaration cannot be read by column.
    """

    def __init__(self, row: construct.Construct, context: Context) -> None:
        if type(row) is not Struct or row.parsed is not None or not all(_is_independent(field) for _, field, _ in row.needed):
            raise NotFast
        self._entries = row.row_contexts(context)
        self._known = Context(self._entries)
        self._fields: list[tuple[str, Reader]] = []  # of fields that do not repeat, before and after those that do
        self._repeated: list[tuple[str | None, Reader]] = []  # repeated fields, and what depends on them
        self._checks: list[Reader] = []  # of other fields
        self._ends: list[End] = []
        self._before = 0  # number of `_fields` before those that repeat
        names = {name for name, _, slot in row.needed if slot is not None}
        for name, field, _ in row.needed:
            self._add(name, unwrap(field), field, names)
        if not self._ends:
            raise NotFast
        self.rows = Rows(row, [name for name, _ in self._repeated if name])
        self._kinds: dict[bytes, int] = {}

    def _add(self, name: str | None, field: Any, named: construct.Construct, names: set[str]) -> None:
        repeated = {name for name, _ in self._repeated if name}
        if isinstance(field, (Check, Derived)):
            needs = field.needs() if isinstance(field, Check) else fields_in(field.of) if callable(field.of) else set()
            if needs is None:
                raise NotFast
            read = check_reader(field, self._known) if isinstance(field, Check) else fast_reader(named, self._known)
            if needs & names <= repeated:
                self._repeated.append((name, read))
            elif isinstance(field, Check) and not needs & repeated:
                self._checks.append(read)
            else:
                raise NotFast
        elif (end := vars(type(field)).get("_fast_end")) and (not self._ends or len(self._fields) == self._before):
            self._before = len(self._fields)
            self._ends.append(end(field, self._known))
            self._repeated.append((name, fast_reader(named, self._known)))
        elif name is None:
            raise NotFast
        else:
            self._fields.append((name, fast_reader(named, self._known)))

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
        with suppress(Exception):  # the full parse raises it again, with its path
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
        own = Context(self._entries)
        for name, _ in self._fields:
            own[name] = self.rows.others[name][number]
        for check in self._checks:
            check(b"", 0, own)


def _is_independent(field: construct.Construct) -> bool:
    """Tells whether a field is computed, or its value depends on no other field of its row."""
    while type(field) in (construct.Renamed, construct.Default, Count, TypeCode):
        field = field.subcon
    return isinstance(field, (Check, Derived)) or type(field) in (Number, Picked, Text, Sizes, construct.FormatField)


def column_reader(row: construct.Construct, context: Context) -> ColumnReader | None:
    """Returns the column reader of a table's rows, or None if they cannot be read by column."""
    try:
        return ColumnReader(row, context)
    except Exception:  # such as a KeyError, if the storage of a field depends on the row itself
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
