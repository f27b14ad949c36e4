"""The positions of parsed fields.

A plain parse keeps no positions. It is repeated with a `Trace`, for instance to locate an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STEP = " -> "  # between the names in a path
LABELS = ("name", "key")  # fields that identify a row
ROOTS = ("(parsing)", "(building)", "(sizeof)", "(???)")  # the last is used by compiled constructs


def without_root(path: str | None) -> str:
    """Strips the root of construct's paths: ``(parsing) -> header`` becomes ``header``."""
    root, _, rest = (path or "").partition(STEP)
    return rest if root in ROOTS else path or ""  # a root alone has no rest


def parent_of(path: str) -> str:
    """Returns the path of the field or row that contains a field; empty for a region."""
    return path.rpartition(STEP)[0]


@dataclass(slots=True)
class FieldSpan:
    """A field's bytes, `start` to `end` in the container; `end` is None during its parse."""

    path: str
    start: int
    end: int | None = None
    value: Any = None
    has_parts: bool = False  # whether its parts have spans, too
    context: Any = field(default=None, compare=False, repr=False)  # of its Struct, with the fields of the Struct


class Trace:
    """The spans of the fields of a parse.

    Args:
        wanted: the paths to trace, by default all. Of a table, only rows with one of them are
            traced.

    Attributes:
        spans: the finished fields, each after its parts.
        open: the fields being parsed, outermost first.
    """

    def __init__(self, *wanted: str) -> None:
        self.wanted = wanted
        self.spans: list[FieldSpan] = []
        self.open: list[FieldSpan] = []
        self._by_path: dict[str, FieldSpan] = {}

    def begin(self, path: str, start: int, context: Any) -> None:
        """Records the start of the field at `path`, of the Struct with this context."""
        self.open.append(span := FieldSpan(without_root(path), start, context=context))
        self._by_path[span.path] = span

    def end(self, value: Any, end: int) -> None:
        """Records the end and the value of the innermost open field."""
        span = self.open.pop()
        span.end, span.value = end, value
        self.spans.append(span)
        if self.open:
            self.open[-1].has_parts = True

    def rows_in(self, table: str, count: int) -> Sequence[int]:
        """Returns the indices of the rows of a table that have to be traced."""
        if not self.wanted:
            return range(count)
        below = (path.removeprefix(table + STEP) for path in self.wanted if path.startswith(table + STEP))
        rows = {int(row) for path in below if (row := path.partition(STEP)[0]).isdecimal()}
        return sorted(row for row in rows if row < count)

    def find(self, path: str) -> FieldSpan | None:
        """Returns the span of the field at `path`, or None if it was not traced."""
        return self._by_path.get(path)

    def label(self, name: str, path: str) -> Any:
        """Returns the value of `name` (in `LABELS`) in the innermost row around `path`, or None."""
        return label_of(self._by_path, name, path)


def label_of(spans: Mapping[str, FieldSpan], name: str, path: str) -> Any:
    """Returns the value of `name` in the innermost row around `path`, or None; spans by path."""
    while path := parent_of(path):
        if span := spans.get(path + STEP + name):
            return span.value
    return None
