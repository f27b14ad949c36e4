"""The fields of a file and their bytes, as many as fit on a page: a tree made of the file's byte map."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np

import glft_schema.describe.nodes as s
from glft_schema.describe.byte_map import FIELD, STEP, ByteMap, Stretch
from glft_schema.describe.page.text import visible
from glft_schema.describe.schema import container_schema
from glft_schema.errors import shown
from glft_schema.storage.source import Source

PAYLOADS_REGION = "data"  # of each format
FEW = 1 << 12  # stretches up to which each is opened: a text into length and bytes, a payload into its first numbers
MOST = 10_000  # stretches of a region that are on a page; those after them are left to the region as a whole
PARTS = 8  # of an opened stretch, from its beginning
DEEP = 2  # levels of them
HEAD = 1 << 19  # bytes before the payloads that are on a page
LONG = 640  # bytes above which the middle of a field is left out
ENDS = 256  # bytes at each end of such a field that stay
BEGINNING = 64  # bytes of a payload that are on a page, where there are few payloads; ever fewer down to
LEAST = 16
PAYLOADS = 1 << 16  # bytes of all payloads together, about
LINE = 16  # bytes; what lies between two runs must be worth folding
VALUE = 120  # characters


class FieldTree:
    """A tree of fields as columns: each row after the one that it is inside of, in the order of the bytes.

    Texts that come often, such as names and sentences, are in `texts`, and their numbers in the columns.

    Attributes:
        rows: the number of the row that declares a tensor, by its name.
        payloads: that of its payload.
    """

    def __init__(self, map: ByteMap) -> None:
        self._map = map
        self.rows: dict[str, int] = {}
        self.payloads: dict[str, int] = {}
        self._texts: dict[str, int] = {}
        self.columns: dict[str, list[Any]] = {key: [] for key in ("parent", "name", "start", "size", "type", "doc", "value")}
        self._open: list[tuple[str, int]] = []  # the steps of the last path, and their rows
        self._docs = _docs_of_regions(map)
        is_opened, beginning = len(map) <= FEW, beginning_of_payloads(map)
        for stretch in _within_limits(map):
            row = self._add_path(stretch)
            if is_opened:
                end = stretch.end if stretch.value is not None else min(stretch.end, stretch.start + beginning)
                self._add_parts(stretch, row, end, DEEP)

    def as_data(self) -> dict[str, Any]:
        """Returns the columns and the texts that they refer to."""
        return {**self.columns, "texts": list(self._texts)}

    def _add_path(self, stretch: Stretch) -> int:
        """Adds a stretch, and what is around it where that is new; returns its row."""
        steps = path_steps(stretch)
        if [step for step, _ in self._open[: len(steps)]] == steps:
            steps.append("rest")  # of something that is made of fields
        known = 0
        while known < min(len(self._open), len(steps) - 1) and self._open[known][0] == steps[known]:
            self._grow(self._open[known][1], stretch.end)
            known += 1
        del self._open[known:]
        row = self._open[-1][1] if self._open else -1
        for level, step in enumerate(steps[known:], known):
            if level == len(steps) - 1:
                about = stretch.type, stretch.doc, as_text(stretch.value)
            else:
                label = stretch.tensor or stretch.key if step.isdecimal() else None
                about = "", "" if level else self._docs.get(step, ""), visible(label or "", VALUE)
            row = self._add(row, visible(step), stretch.start, stretch.end, *about)
            self._open.append((step, row))
            if level == 1:  # in a region
                for tensor in stretch.tensors:
                    (self.payloads if is_payload(stretch) else self.rows).setdefault(tensor, row)
        self._open.pop()
        return row

    def _add_parts(self, stretch: Stretch, row: int, end: int, levels: int) -> None:
        for i, part in enumerate(self._map.inside(stretch, stretch.start, end) if levels else ()):
            if i == PARTS:
                return
            below = self._add(row, part.name, part.start, part.end, part.type, part.doc, as_text(part.value))
            self._add_parts(part, below, min(end, part.end), levels - 1)

    def _add(self, parent: int, name: str, start: int, end: int, type_: str = "", doc: str = "", value: str = "") -> int:
        texts = {"name": name, "type": type_, "doc": doc}
        row = {"parent": parent, "start": start, "size": end - start, "value": value}
        for key, text in texts.items():
            row[key] = self._texts.setdefault(text, len(self._texts))
        for key, column in self.columns.items():
            column.append(row[key])
        return len(self.columns["parent"]) - 1

    def _grow(self, row: int, end: int) -> None:
        self.columns["size"][row] = end - self.columns["start"][row]


def _docs_of_regions(map: ByteMap) -> dict[str, str]:
    """Returns the sentence of each region."""
    return {part.name: part.doc for part in container_schema(map.format).structs[s.FILE].fields}


def path_steps(stretch: Stretch) -> list[str]:
    """Returns the steps of a path; a tensor's name in it is one, whatever it has in it."""
    if stretch.path == PAYLOADS_REGION and stretch.kind != FIELD:
        return [stretch.path, stretch.kind]
    label = repr(stretch.tensor) if stretch.tensor is not None else ""
    if STEP not in label or label not in stretch.path:
        return (stretch.path or stretch.kind).split(STEP)
    before, _, after = stretch.path.partition(label)
    return [*before.split(STEP)[:-1], label, *after.split(STEP)[1:]]


def _within_limits(map: ByteMap) -> Iterator[Stretch]:
    """Yields the stretches of a page, and of each region with more of them the rest as one."""
    counts: dict[str, int] = {}
    rest: list[Stretch] = []
    for stretch in map:
        region = path_steps(stretch)[0]
        counts[region] = counts.get(region, 0) + 1
        if rest and path_steps(rest[0])[0] != region:
            yield _joined(rest)
            rest = []
        if counts[region] > MOST:
            rest = [rest[0] if rest else stretch, stretch]
        else:
            yield stretch
    if rest:
        yield _joined(rest)


def _joined(rest: list[Stretch]) -> Stretch:
    first, last = rest[0], rest[-1]
    path = f"{path_steps(first)[0]}{STEP}more"
    return Stretch(first.start, last.end, path, FIELD, "bytes", "fields that are left out of this page, as there are so many")


def as_text(value: Any) -> str:
    """Returns a value as text that can be seen."""
    if value is None:
        return ""
    if isinstance(value, str):
        return visible(value, VALUE)
    return visible(str(value) if isinstance(value, (np.generic, int)) else shown(value, VALUE), VALUE + 20)


def beginning_of_payloads(map: ByteMap) -> int:
    """Returns how many bytes of each field of a payload are on a page."""
    payloads = sum(is_payload(stretch) for stretch in map)
    return max(min(BEGINNING, PAYLOADS // max(payloads, 1) // LINE * LINE), LEAST)


def is_payload(stretch: Stretch) -> bool:
    """Tells whether a stretch is of the payloads: a field of one, or what lies between them."""
    return path_steps(stretch)[0] == PAYLOADS_REGION


def segments(map: ByteMap) -> list[tuple[int, str]]:
    """Returns the bytes that are on a page, as runs: the first byte and base64."""
    runs: list[list[int]] = []
    beginning, head = beginning_of_payloads(map), HEAD
    for stretch in _within_limits(map):
        for start, end in _ends(stretch, beginning):
            if not is_payload(stretch):
                end = min(end, start + head)
                head -= end - start
            start, end = start // LINE * LINE, min(-(-end // LINE) * LINE, map.nbytes)
            if runs and start <= runs[-1][1] + 2 * LINE:
                runs[-1][1] = max(end, runs[-1][1])
            elif end > start:
                runs.append([start, end])
    return [(start, encoded(map.source, start, end)) for start, end in runs]


def _ends(stretch: Stretch, beginning: int) -> list[tuple[int, int]]:
    """Returns which bytes of a stretch are on a page."""
    if stretch.type == "bytes" and stretch.name == "more":
        return []
    if is_payload(stretch):
        return [(stretch.start, min(stretch.end, stretch.start + beginning))]
    if stretch.nbytes <= LONG:
        return [(stretch.start, stretch.end)]
    return [(stretch.start, stretch.start + ENDS), (stretch.end - ENDS, stretch.end)]


def encoded(source: Source, start: int, end: int) -> str:
    """Returns bytes of a source as base64."""
    return base64.b64encode(source.read(start, end - start)).decode("ascii")
