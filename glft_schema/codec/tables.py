"""Tables and nested arrays. Counts are checked before reading.

============  ====================================================================================================
`Table`       an array of Structs that numbers its rows in error paths
`NamesOnce`   the rule that no two rows of a table have the same name
`Nested`      what may contain itself, such as arrays of arrays
============  ====================================================================================================
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import construct
from construct.core import evaluate

from glft_schema.codec.context import Context, limits_of
from glft_schema.codec.fast_rows import read_ahead, row_reader
from glft_schema.codec.rules import Check
from glft_schema.codec.structs import Interpreted, check_count
from glft_schema.codec.trace import Located, Trace, without_root
from glft_schema.errors import LimitError
from glft_schema.storage.cursor import Cursor, bytes_left


class Table(Interpreted, construct.Array):
    """`count` rows of one Struct, whose paths read ``table -> 3 -> field``.

    Parses into a list, builds from any sequence. Before parsing a row, refuses a count whose rows do not fit into the bytes
    left, or that exceeds the limit on objects (earlier tables included). Rows with nothing unusual take a fast path, see
    `glft_schema.codec.fast_rows`.
    """

    def _parse(self, stream: Any, context: Context, path: str) -> list[Any]:
        count, params = evaluate(self.count, context), context["_params"]
        check_count(self.count, count, self._least, bytes_left(stream), path)
        count_objects(context, count, path)
        trace: Trace | None = params.get("trace")
        starts = params["starts"].setdefault(path, array("Q")) if "starts" in params and path.count(" -> ") == 1 else None
        if trace is None:
            return self._parse_rows([], count, stream, context, path, starts)
        if starts and (wanted := trace.row_in(without_root(path))) is not None and wanted < len(starts):
            stream.seek(starts[wanted])
            self.subcon._parse(stream, context, f"{path} -> {wanted}")
            raise Located  # there is no need for those after it
        rows: list[Any] = []
        for traced in chain(trace.rows_in(without_root(path), count), (count,)):
            params["trace"] = None
            try:
                self._parse_rows(rows, traced, stream, context, path)
            finally:
                params["trace"] = trace
            if traced < count:
                rows.append(self.subcon._parse(stream, context, f"{path} -> {traced}"))
        return rows

    def _parse_rows(
        self, rows: list[Any], until: int, stream: Any, context: Context, path: str, starts: array[int] | None = None
    ) -> list[Any]:
        """Adds to `rows` until there are so many, the unusual ones in full; where each begins is put into `starts`."""
        read = row_reader(self.subcon, context) if len(rows) < until and isinstance(stream, Cursor) else None
        while True:
            if read is not None:
                read_ahead(read, stream, context, rows, until, starts)
            if len(rows) >= until:
                return rows
            if starts is not None:
                starts.append(stream.tell())
            rows.append(self.subcon._parse(stream, context, f"{path} -> {len(rows)}"))

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> list[Any]:
        count_objects(context, len(obj), path)
        return [self.subcon._build(row, stream, context, f"{path} -> {i}") for i, row in enumerate(obj)]

    @cached_property
    def _least(self) -> int:
        return least_size(self.subcon)


def count_objects(context: Context, number: int, path: str) -> None:
    """Counts objects of the container being parsed or built; raises LimitError where they are more than their limit."""
    params = context["_params"]
    params["objects"] = total = params.get("objects", 0) + number
    limits_of(context).check("objects", total, path, " tensors, entries and arrays")


def least_size(field: construct.Construct) -> int:
    """Returns the fewest bytes that `field` can take, from its declaration alone."""
    if least := getattr(field, "least", None):
        return least_size(least)
    if isinstance(field, (construct.Struct, construct.FocusedSeq)):
        return sum(least_size(part) for part in field.subcons)
    if isinstance(field, construct.Prefixed):
        return least_size(field.lengthfield)
    if isinstance(field, (construct.Array, Check)):
        return 0
    if isinstance(field, construct.Subconstruct):
        return least_size(field.subcon)
    try:
        return int(field.sizeof())
    except construct.SizeofError:
        return 0


class Nested(construct.Construct):
    """What may hold more of its kind, such as arrays in arrays, as deep as the limit on nesting allows.

    Parses into and builds from what its declaration does.

    Args:
        declare: what may be one level below -> the declaration.
        level: its own.
    """

    def __init__(self, declare: Callable[[Nested], construct.Construct], level: int = 1) -> None:
        super().__init__()
        self.declare = declare
        self.level = level

    @cached_property
    def subcon(self) -> construct.Construct:
        """The declaration at its level."""
        return self.declare(Nested(self.declare, self.level + 1))

    @property
    def least(self) -> construct.Construct:
        """What takes as many bytes as it does at least."""
        return self.subcon

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
            error.offset = context["_io"].tell() if context["_parsing"] else None  # it has no field of its own to be found by
            raise


class NamesOnce(Check):
    """The rule that no two rows of a table have the same name, or what else is their key."""

    def __init__(self, id: str, field: str, key: str = "name") -> None:
        super().__init__(id, field)
        self.key = key
        self.expected = f"each {key} once"

    def needs(self) -> set[str]:
        return {self.field}

    def check(self, context: Context, path: str) -> None:
        self.check_rows(context[self.field], context, f"{path} -> {self.field}")

    def check_rows(self, rows: Sequence[Any], context: Context, path: str) -> None:
        """Checks that the key of the rows of the table at `path` is never the same."""
        seen: dict[str, int] = {}
        for i, row in enumerate(rows):
            if (first := seen.setdefault(row[self.key], i)) != i:
                where = f"{path} -> {i} -> {self.key}"
                self.broken(context, f"expected {self.expected}, found that of row {first} again", where)
