"""The positions of parsed fields.

A plain parse keeps no positions. It is repeated with a `Trace`, for instance to locate an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

LABELS = ("name", "key")  # fields that identify a row
ROOTS = ("(parsing)", "(building)", "(sizeof)", "(???)")  # of compiled constructs: the last


def without_root(path: str | None) -> str:
    """Strips the root of construct's paths: ``(parsing) -> header`` becomes ``header``."""
    root, _, rest = (path or "").partition(" -> ")
    return rest if root in ROOTS else path or ""  # a root alone has no rest


@dataclass
class Span:
    """A field's bytes, `start` to `end` in the container; `end` is None during its parse."""

    path: str
    start: int
    end: int | None = None
    value: Any = None
    has_parts: bool = False  # whether its parts have spans, too


class Located(Exception):  # noqa: N818 - not an error
    """The wanted field of a trace has been parsed, so parsing can stop."""


class Trace:
    """Positions of fields being parsed, and of finished siblings of the last one and of `wanted`.

    Args:
        wanted: the path to locate; None if it is not known yet.
        starts: filled with the first byte of each field whose path is a key.

    Attributes:
        open: the fields being parsed, outermost first.
    """

    def __init__(self, wanted: str | None = None, starts: dict[str, int | None] | None = None) -> None:
        self._starts = starts
        self._wanted_parent = _parent(wanted) if wanted else None
        self._wanted = [wanted] if wanted else list(starts or ())
        self._rows: dict[str, set[int]] = {}  # with wanted fields, by table
        for names in (path.split(" -> ") for path in self._wanted):
            for i, name in enumerate(names):
                if name.isdecimal():
                    self._rows.setdefault(" -> ".join(names[:i]), set()).add(int(name))
        self._last_parent = ""
        self._last: dict[str, Span] = {}
        self._kept: dict[str, Span] = {}
        self._labels: dict[str, tuple[str, Any]] = {}
        self.open: list[Span] = []

    @contextmanager
    def field(self, path: str, stream: Any) -> Iterator[Span]:
        """Records the field at `path`, which the block parses."""
        span = Span(without_root(path), stream.tell())
        self.open.append(span)
        if self._starts is not None and span.path in self._starts:
            self._starts[span.path] = span.start
        yield span
        span.end = stream.tell()
        self.open.pop()
        parent, _, name = span.path.rpartition(" -> ")
        if name in LABELS:
            self._labels[name] = parent, span.value
        if parent == self._wanted_parent:
            self._kept[span.path] = span
        if parent != self._last_parent:
            self._last_parent, self._last = parent, {}
        self._last[span.path] = span

    def rows_in(self, table: str, count: int) -> Sequence[int]:
        """Returns the indices of a table's rows with wanted fields; all if these are not known."""
        return sorted(row for row in self._rows.get(table, ()) if row < count) if self._wanted else range(count)

    def row_in(self, table: str) -> int | None:
        """Returns the index of the only row with wanted fields, or None."""
        rows = self._rows.get(table, ())
        return next(iter(rows)) if len(rows) == 1 else None

    def label(self, name: str, path: str) -> Any:
        """Returns the value of `name`, one of `LABELS`, in the row that `path` is in, or None."""
        if sibling := self.find(f"{_parent(path)} -> {name}"):
            return sibling.value
        row, value = self._labels.get(name, ("", None))
        return value if row and path.startswith(f"{row} -> ") else None

    def find(self, path: str) -> Span | None:
        """Returns the field at `path`, or None if it is not remembered."""
        return self._kept.get(path) or self._last.get(path) or {span.path: span for span in self.open}.get(path)


class FullTrace(Trace):
    """A trace that keeps every field.

    Attributes:
        spans: the finished fields, each after its parts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[Span] = []

    @contextmanager
    def field(self, path: str, stream: Any) -> Iterator[Span]:
        """Keeps the field at `path`, which the block parses."""
        span, before = Span(without_root(path), stream.tell()), len(self.spans)
        yield span
        span.end = stream.tell()
        span.has_parts = len(self.spans) > before
        self.spans.append(span)


def _parent(path: str) -> str:
    return path.rpartition(" -> ")[0]
