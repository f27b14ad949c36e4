"""Tables and nested arrays. Counts are checked before reading.

============  ======================================================
`Table`       an array of Structs, with row numbers in error paths
`NamesOnce`   the rule that the names of a table's rows are unique
`Nested`      a recursive declaration, such as arrays of arrays
============  ======================================================
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import construct

from glft_schema.codec.columns import Rows, column, column_reader
from glft_schema.codec.context import Context, limits_of
from glft_schema.codec.expressions import as_expression
from glft_schema.codec.numbers import Picked, Sizes
from glft_schema.codec.rules import Check
from glft_schema.codec.structs import Interpreted, check_count, check_length
from glft_schema.codec.text import Text
from glft_schema.codec.trace import Trace, without_root
from glft_schema.errors import LimitError
from glft_schema.storage.cursor import Cursor, bytes_left


class Table(Interpreted, construct.Array):
    """`count` rows of one Struct, with paths such as ``table -> 3 -> field``.

    Parses into a sequence, builds from any. Refuses a count before reading if its rows do not
    fit into the bytes left, or exceed the limit on objects together with earlier tables. Most rows
    are read by `ColumnReader`.
    """

    def __init__(self, count: Any, row: construct.Construct) -> None:
        super().__init__(as_expression(count), row)

    def _parse(self, stream: Any, context: Context, path: str) -> Sequence[Any]:
        params = context["_params"]
        count = self.count(context)
        check_count(self.count, count, self._least, bytes_left(stream), path)
        count_objects(context, count, path)
        trace: Trace | None = params.get("trace")
        traced = trace.rows_in(without_root(path), count) if trace else ()
        is_fast = len(traced) < count and isinstance(stream, Cursor)
        columns = column_reader(self.subcon, context) if is_fast else None
        rows: Rows | list[Any] = columns.rows if columns else []
        add = rows.add if isinstance(rows, Rows) else rows.append
        while len(rows) < count:
            at = bisect_left(traced, len(rows))
            wanted = traced[at] if at < len(traced) else count
            if columns:
                columns.read_ahead(stream, wanted)
            if len(rows) < count:
                params["trace"] = trace if len(rows) == wanted else None
                add(self.subcon._parse(stream, context, f"{path} -> {len(rows)}"))
                params["trace"] = trace
        return rows

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> list[Any]:
        check_length(self.count, obj, "rows", context, path)
        count_objects(context, len(obj), path)
        return [self.subcon._build(row, stream, context, f"{path} -> {i}") for i, row in enumerate(obj)]

    @cached_property
    def _least(self) -> int:
        return least_size(self.subcon)


def count_objects(context: Context, number: int, path: str) -> None:
    """Counts objects of the container. Raises LimitError if their total exceeds the limit."""
    params = context["_params"]
    params["objects"] = total = params.get("objects", 0) + number
    limits_of(context).check("objects", total, path, " tensors, entries and arrays")


def least_size(field: construct.Construct) -> int:
    """Returns the minimum size of `field` in bytes, from its declaration alone."""
    match field:
        case construct.Struct() | construct.FocusedSeq():
            return sum(map(least_size, field.subcons))
        case Picked():
            return least_size(field.then)
        case Text():
            return least_size(field.length)
        case Sizes():
            return least_size(field.count)
        case construct.Prefixed():
            return least_size(field.lengthfield)
        case construct.Array() | Check():
            return 0
        case construct.Subconstruct() | Nested():
            return least_size(field.subcon)
    try:
        return int(field.sizeof())
    except construct.SizeofError:
        return 0


class Nested(construct.Construct):
    """A declaration that may contain itself, such as arrays of arrays, up to the limit on nesting.

    Args:
        declare: the `Nested` of the next level -> the declaration.
        level: its level, counted from 1.
    """

    def __init__(self, declare: Callable[[Nested], construct.Construct], level: int = 1) -> None:
        super().__init__()
        self.declare = declare
        self.level = level

    @cached_property
    def subcon(self) -> construct.Construct:
        """The declaration at this level."""
        return self.declare(Nested(self.declare, self.level + 1))

    def _parse(self, stream: Any, context: Context, path: str) -> Any:
        self._check(context, path)
        return self.subcon._parse(stream, context, path)

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        self._check(context, path)
        return self.subcon._build(obj, stream, context, path)

    def _check(self, context: Context, path: str) -> None:
        try:
            limits_of(context).check("nesting", self.level, path, " levels of arrays")
        except LimitError as error:
            error.offset = context["_io"].tell() if context["_parsing"] else None  # not a field that a trace could find
            raise


class NamesOnce(Check):
    """The rule that the names of a table's rows, or values of another field, are unique."""

    def __init__(self, id: str, field: str, key: str = "name") -> None:
        super().__init__(id, field)
        self.key = key
        self.expected = f"each {key} once"

    def needs(self) -> set[str]:
        return {self.field}

    def check(self, context: Context, path: str) -> None:
        self.check_rows(context[self.field], context, f"{path} -> {self.field}")

    def check_rows(self, rows: Sequence[Any], context: Context, path: str) -> None:
        """Checks that the keys of the rows at `path` are unique."""
        keys = column(rows, self.key)
        if len(set(keys)) == len(keys):
            return
        seen: dict[str, int] = {}
        for i, key in enumerate(keys):
            if (first := seen.setdefault(key, i)) != i:
                where = f"{path} -> {i} -> {self.key}"
                self.report(context, f"expected {self.expected}, found the {self.key} of row {first} again", where)
