"""The fields of a file as a tree, with their bytes, within the limits of a page."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, takewhile
from typing import Any

from glft_schema.codec.trace import STEP
from glft_schema.describe.byte_map import ByteMap
from glft_schema.describe.byte_range import FIELD, ByteRange
from glft_schema.describe.page.frame import visible
from glft_schema.describe.schema import struct_of
from glft_schema.display import format_value
from glft_schema.errors import quote
from glft_schema.files.byte_counts import PAYLOADS

MAX_OPENED = 1 << 12  # ranges of a file: with more, none is opened into its parts
MAX_RANGES = 10_000  # of a region; the rest is one row
MAX_PARTS = 8  # of an opened range, from its start
MAX_LEVELS = 2  # of parts
HEAD = 1 << 19  # bytes before the payloads
LONG = 640  # bytes: longer fields lose their middle
ENDS = 256  # bytes at each end of a long field
PAYLOAD_START = 64, 16  # bytes of a payload at most, and at least if there are many payloads
ALL_PAYLOADS = 1 << 16  # bytes of all payloads, about
LINE = 16  # bytes; shorter gaps between runs are not folded
VALUE = 120  # characters
COLUMNS = ("parent", "name", "start", "size", "type", "doc", "value")
MORE = "fields omitted from this page because there are too many"
REST = "rest"  # the part of a field with the bytes that no other part has


class FieldTree:
    """A tree of fields as columns, in byte order, each row after its parent.

    Names, types and sentences are stored once, and columns have their indices.

    Attributes:
        rows: the index of the row that declares a tensor, by name.
        payloads: the index of the row of its payload, by name.
    """

    def __init__(self, map: ByteMap) -> None:
        self._map = map
        self.rows: dict[str, int] = {}
        self.payloads: dict[str, int] = {}
        self._texts: dict[str, int] = {}
        self._tree: list[list[Any]] = []
        self._open: list[tuple[str, int]] = []  # steps of the last path, and their rows
        self._docs = {part.name: part.doc for part in struct_of(map.format.struct).fields}
        is_opened, limit = len(map) <= MAX_OPENED, payload_start(map)
        for byte_range, steps in _with_steps(list(_within_limits(map))):
            row = self._add_path(byte_range, steps)
            if is_opened:
                end = byte_range.end if byte_range.value is not None else min(byte_range.end, byte_range.start + limit)
                self._add_parts(byte_range, row, end, MAX_LEVELS)

    def as_data(self) -> dict[str, Any]:
        columns = {key: [row[i] for row in self._tree] for i, key in enumerate(COLUMNS)}
        return {**columns, "texts": list(self._texts)}

    def _add_path(self, byte_range: ByteRange, steps: list[str]) -> int:
        """Adds a range, and the new levels around it; returns its row."""
        same = takewhile(lambda pair: pair[0][0] == pair[1], zip(self._open, steps[:-1], strict=False))
        del self._open[len(list(same)) :]
        known = len(self._open)
        for _, row in self._open:
            self._tree[row][3] = byte_range.end - self._tree[row][2]
        row = self._open[-1][1] if self._open else -1
        for level, step in enumerate(steps[known:], known):
            if level == len(steps) - 1:
                about = byte_range.type, byte_range.doc, as_text(byte_range.value, byte_range.type)
            else:
                label = byte_range.tensor or byte_range.key if step.isdecimal() else None
                about = "", "" if level else self._docs.get(step, ""), visible(label or "", VALUE)
            row = self._add(row, visible(step), byte_range.start, byte_range.end, *about)
            self._open.append((step, row))
            if level == 1:  # in a region
                for tensor in byte_range.tensors:
                    (self.payloads if is_payload(byte_range) else self.rows).setdefault(tensor, row)
        self._open.pop()
        return row

    def _add_parts(self, byte_range: ByteRange, row: int, end: int, levels: int) -> None:
        for i, part in enumerate(self._map.inside(byte_range, byte_range.start, end) if levels else ()):
            if i == MAX_PARTS:
                return
            below = self._add(row, part.name, part.start, part.end, part.type, part.doc, as_text(part.value, part.type))
            self._add_parts(part, below, min(end, part.end), levels - 1)

    def _add(self, parent: int, name: str, start: int, end: int, type_: str = "", doc: str = "", value: str = "") -> int:
        label, kind, sentence = (self._texts.setdefault(text, len(self._texts)) for text in (name, type_, doc))
        self._tree.append([parent, label, start, end - start, kind, sentence, value])
        return len(self._tree) - 1


def path_steps(byte_range: ByteRange) -> list[str]:
    """Returns the steps of a path. A tensor's name is one step even if it contains arrows."""
    if byte_range.path == PAYLOADS and byte_range.kind != FIELD:
        return [byte_range.path, byte_range.kind]
    label = repr(byte_range.tensor) if byte_range.tensor is not None else ""
    if STEP not in label or label not in byte_range.path:
        return (byte_range.path or byte_range.kind).split(STEP)
    before, _, after = byte_range.path.partition(label)
    return [*before.split(STEP)[:-1], label, *after.split(STEP)[1:]]


def _with_steps(byte_ranges: list[ByteRange]) -> Iterator[tuple[ByteRange, list[str]]]:
    """Yields ranges with the steps of their paths in the tree.

    Bytes of a field outside its parts, such as the punctuation of JSON, become a part `REST` of the
    innermost field around them.
    """
    paths = [path_steps(byte_range) for byte_range in byte_ranges]
    following: list[list[str]] = []  # of each, the next path of a part
    after: list[str] = []
    for steps in reversed(paths):
        following.append(after)
        after = steps if len(steps) > 1 else after
    before: list[str] = []
    for byte_range, steps, after in zip(byte_ranges, paths, reversed(following), strict=True):
        around = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(before[:-1], after[:-1], strict=False))]
        if len(around) >= len(steps):
            steps = [*around, REST]
        elif steps in (before[:-1][: len(steps)], after[:-1][: len(steps)]):
            steps = [*steps, REST]
        yield byte_range, steps
        before = steps


def _within_limits(map: ByteMap) -> Iterator[ByteRange]:
    """Yields the ranges of a page. Those of a region beyond `MAX_RANGES` become one range."""
    counts = Counter[str]()
    for region, group in groupby(map, lambda byte_range: path_steps(byte_range)[0]):
        byte_ranges = list(group)
        room = max(MAX_RANGES - counts[region], 0)
        counts[region] += len(byte_ranges)
        yield from byte_ranges[:room]
        if rest := byte_ranges[room:]:
            yield ByteRange(rest[0].start, rest[-1].end, f"{region}{STEP}more", FIELD, "bytes", MORE)


def as_text(value: Any, type_: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return visible(value, VALUE)
    return visible(quote(format_value(value, type_), VALUE), VALUE + 20)


def payload_start(map: ByteMap) -> int:
    """Returns the number of bytes that a page has from the start of each payload field."""
    payloads, (most, least) = sum(is_payload(byte_range) for byte_range in map), PAYLOAD_START
    return max(min(most, ALL_PAYLOADS // max(payloads, 1) // LINE * LINE), least)


def is_payload(byte_range: ByteRange) -> bool:
    """Tells whether a range is in the region of payloads: a field, padding or a gap."""
    return path_steps(byte_range)[0] == PAYLOADS


def segments(map: ByteMap) -> list[tuple[int, str]]:
    """Returns the bytes on a page as runs, each with its offset, in base64."""
    runs: list[list[int]] = []
    limit, head = payload_start(map), HEAD
    for byte_range in _within_limits(map):
        for start, end in _ends(byte_range, limit):
            if not is_payload(byte_range):
                end = min(end, start + head)
                head -= end - start
            start, end = start // LINE * LINE, min(-(-end // LINE) * LINE, map.nbytes)
            if runs and start <= runs[-1][1] + 2 * LINE:
                runs[-1][1] = max(end, runs[-1][1])
            elif end > start:
                runs.append([start, end])
    return [(start, base64.b64encode(map.source.read(start, end - start)).decode("ascii")) for start, end in runs]


def _ends(byte_range: ByteRange, limit: int) -> list[tuple[int, int]]:
    if byte_range.doc == MORE:
        return []
    if is_payload(byte_range):
        return [(byte_range.start, min(byte_range.end, byte_range.start + limit))]
    if byte_range.nbytes <= LONG:
        return [(byte_range.start, byte_range.end)]
    return [(byte_range.start, byte_range.start + ENDS), (byte_range.end - ENDS, byte_range.end)]
