"""Which bytes each field of a parse takes.

A plain parse keeps no positions: it is run again with a `Trace` when they are wanted, to say where a file is broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

LABELS = ("name", "key")  # fields that say which row of a table one is
ROOTS = ("(parsing)", "(building)", "(sizeof)", "(???)")  # the last where construct's compiler has forgotten it


def without_root(path: str | None) -> str:
    """Returns construct's path without its root: ``(parsing) -> header -> version`` becomes ``header -> version``."""
    root, _, rest = (path or "").partition(" -> ")
    return rest if root in ROOTS else path or ""  # a root alone has no rest


@dataclass
class Span:
    """A field's place: bytes `start` to `end` of the container; `end` is None while it is being parsed."""

    path: str
    start: int
    end: int | None = None
    value: Any = None
    has_parts: bool = False  # it is made of fields that have spans of their own


class Located(Exception):  # noqa: N818 - it is no error
    """What a trace looked for has been parsed; there is no need to go on."""


class Trace:
    """The fields being parsed, outermost first, and the finished ones beside the last of them and beside `wanted`.

    Args:
        wanted: the path to be located, or None where it is not known yet.
        starts: where the fields whose paths are its keys begin is put here.
    """

    def __init__(self, wanted: str | None = None, starts: dict[str, int | None] | None = None) -> None:
        self._starts = starts
        self._wanted_parent = _parent(wanted) if wanted else None
        self._looked_for = [wanted] if wanted else list(starts or ())
        self._rows: dict[str, list[int]] = {}  # that what is looked for is in, by table
        rows = (path.rpartition(" -> ") for path in {part for path in self._looked_for for part in _with_parents(path)})
        for row, table in sorted((int(name), table) for table, _, name in rows if name.isdecimal()):
            self._rows.setdefault(table, []).append(row)
        self._last_parent = ""
        self._last: dict[str, Span] = {}
        self._kept: dict[str, Span] = {}
        self._labels: dict[str, tuple[str, Any]] = {}
        self.open: list[Span] = []

    @contextmanager
    def field(self, path: str, stream: Any) -> Iterator[Span]:
        """Notes that the field at `path` begins where `stream` stands, and ends where it stands when the block is left."""
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
        """Returns the numbers of the rows of a table that what is looked for is in; where that is not known, of all `count`."""
        return [row for row in self._rows.get(table, ()) if row < count] if self._looked_for else range(count)

    def row_in(self, table: str) -> int | None:
        """Returns the number of the one row of a table that what is looked for is in; None where there is none, or not one."""
        found = self._rows.get(table, ())
        return found[0] if len(found) == 1 else None

    def label(self, name: str, path: str) -> Any:
        """Returns the field `name`, one of `LABELS`, of the row that `path` is in, or None where there is none."""
        if beside := self.find(f"{_parent(path)} -> {name}"):
            return beside.value
        row, value = self._labels.get(name, ("", None))
        return value if row and path.startswith(f"{row} -> ") else None

    def find(self, path: str) -> Span | None:
        """Returns the field at `path`, where it is one of those remembered."""
        being_parsed = {span.path: span for span in self.open}
        return self._kept.get(path) or self._last.get(path) or being_parsed.get(path)


class FullTrace(Trace):
    """A trace that keeps every field.

    Attributes:
        spans: the finished fields, each after those that it is made of.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[Span] = []

    @contextmanager
    def field(self, path: str, stream: Any) -> Iterator[Span]:
        """Keeps the field at `path`, which begins where `stream` stands, once the block is left."""
        span, before = Span(without_root(path), stream.tell()), len(self.spans)
        yield span
        span.end = stream.tell()
        span.has_parts = len(self.spans) > before
        self.spans.append(span)


def _with_parents(path: str) -> list[str]:
    """Returns a path and those of the fields that it is in."""
    names = path.split(" -> ")
    return [" -> ".join(names[: i + 1]) for i in range(len(names))]


def _parent(path: str) -> str:
    return path.rpartition(" -> ")[0]
