"""Damaged bytes: files that are cut off or changed at random, by aspect, and what must be reported.

The aspect of a rule or byte follows from the schema node of its region.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import construct
from hypothesis import strategies as st

import glft_schema.describe.nodes as s
from glft_schema.codec.arrays import StoredArray
from glft_schema.codec.context import Context
from glft_schema.codec.expressions import Reference
from glft_schema.codec.tables import least_size
from glft_schema.codec.trace import STEP, FieldSpan
from glft_schema.codec.typed_values import ARRAY
from glft_schema.describe.byte_range import select
from glft_schema.describe.schema import rows_of, struct_of
from glft_schema.errors import FormatError, TruncatedError, quote
from glft_schema.files.container import Container
from glft_schema.files.file import File
from glft_schema.files.parsing import check_rules, trace_fields, trace_source
from glft_schema.formats.format import Format
from glft_schema.formats.registry import MAGIC, find_format, format_of
from glft_schema.storage.source import BytesSource

T = TypeVar("T")

METADATA, TENSOR_INFO, HEADER = "metadata", "tensor info", "header"
CONSISTENCY = "consistency"  # between parts of a file: counts, duplicate names and keys, overlaps
ALIGNMENT, DATA = "alignment", "data"

WEIGHTS = {METADATA: 35, TENSOR_INFO: 35, HEADER: 10, CONSISTENCY: 10, ALIGNMENT: 5, DATA: 5}  # percent

SPREAD = 1 << 24  # hypothesis draws evenly from this many numbers, but prefers the first of a few
WORDS = [b"\0" * 8, b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\xff" * 7 + b"\x7f", b"\1" + b"\0" * 7, b"\0" * 7 + b"\1"]


@dataclass(frozen=True, repr=False)
class Corruption:
    """A file with exactly one rule or one field broken.

    Attributes:
        stored: its bytes.
        sentence: what is wrong with it.
        path: the field that must be reported.
        offset: the first byte of that field, from the start of the file; None if it is not known.
            A TruncatedError may be at a later byte of the field.
        rule: the id of the broken rule; None for a field without one.
        error: the error that reading must raise; None if the file can be read and has findings.
        reported: the error's rule id, or None; for a rule of a tensor type, the id of the row's
            rule.
        within: whether the error may also be about a field within `path`.
        sets: the rule sets that are checked for findings.
        findings: rule ids and paths of all findings of these sets, in any order.
    """

    stored: bytes
    sentence: str
    path: str
    offset: int | None = None
    rule: str | None = None
    error: type[FormatError] | None = None
    reported: str | None = None
    within: bool = False
    sets: tuple[str, ...] = ()
    findings: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"<{len(self.stored)} bytes, {self.sentence}; expected {self.expected}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Prints the corruption in hypothesis's reports without its bytes."""
        printer.text(repr(self))

    @property
    def expected(self) -> str:
        """The expected errors or findings as text."""
        if self.error is None:
            findings = " and ".join(f"{rule} at {path}" for rule, path in self.findings)
            return f"the findings of {' and '.join(self.sets)}: {findings}"
        return f"{self.error.__name__}{f' of {self.reported}' if self.reported else ''} at {self.path}"

    def problem(self) -> str | None:
        """Reads the file. Returns how its error or findings differ from the expected, or None."""
        try:
            file = Container.parse(self.stored)
        except FormatError as error:
            return self._other_error(error)
        if self.error is not None:
            return f"expected {self.expected}, found no error"
        findings = check_rules(file, self.sets)
        found = [(finding.rule, finding.path) for finding in findings]
        if Counter(found) != Counter(self.findings):
            return f"expected {self.expected}, found {found}"
        offsets = [finding.offset for finding in findings if finding.path == self.path]
        if self.offset is not None and self.offset not in offsets:
            return f"expected {self.expected} at byte {self.offset}, found it at {offsets}"
        return None

    def _other_error(self, error: FormatError) -> str | None:
        """Returns how an error differs from the expected one, or None."""
        found = f"found {type(error).__name__}{f' of {error.rule}' if error.rule else ''}: {error.text}"
        if self.within and isinstance(error, self.error or ()) and f"{error.path}{STEP}".startswith(f"{self.path}{STEP}"):
            return None
        if not isinstance(error, self.error or ()) or (error.path, error.rule) != (self.path, self.reported):
            return f"expected {self.expected}, {found}"
        is_later = isinstance(error, TruncatedError) and (error.offset or 0) > (self.offset or 0)
        if self.offset is not None and error.offset != self.offset and not is_later:
            return f"expected {self.expected} at byte {self.offset}, {found}"
        return None


# Aspects


def evenly(draw: st.DrawFn, choices: Sequence[T]) -> T:
    """Draws one of the choices with equal probability.

    Draws a sum, since hypothesis often repeats numbers or draws 0, but rarely for all terms.
    """
    return choices[sum(draw(st.integers(0, SPREAD - 1)) for _ in range(3)) % len(choices)]


def draw_aspect(draw: st.DrawFn, among: Collection[str] = WEIGHTS.keys()) -> str:
    """Draws an aspect by its weight in `WEIGHTS`."""
    return evenly(draw, [aspect for aspect, weight in WEIGHTS.items() if aspect in among for _ in range(weight)])


# Draw aspects before the file: hypothesis also tries prefixes of examples, followed by zeros.
aspects = st.composite(draw_aspect)


def aspect_of_region(format: Format, region: str) -> str:
    """Returns the aspect of a region as a whole."""
    node = struct_of(format.struct).field(region).node
    if isinstance(node, s.PaddingNode):
        return ALIGNMENT
    if isinstance(node, s.PayloadsNode):
        return DATA
    if isinstance(node, s.RefNode):
        return HEADER
    return TENSOR_INFO if region == format.table else METADATA


@lru_cache(maxsize=16)
def spans_by_aspect(stored: bytes) -> dict[str, list[tuple[int, int]]]:
    """Returns start and end of each field, by aspect; a file of an unknown format is data."""
    source = BytesSource(stored)
    try:
        format = format_of(source)
    except FormatError:
        return {DATA: [(0, len(stored))]}
    nodes = [part.node for part in struct_of(format.struct).fields]
    headers = [struct_of(node.declared) for node in nodes if isinstance(node, s.RefNode)]
    counts = {part.name for header in headers for part in header.fields if part.is_count}
    keys = dict[str, str]()
    spans: dict[str, list[tuple[int, int]]] = {}
    for span in trace_source(format, source)[0]:
        row, _, name = span.path.rpartition(STEP)
        if name == "key":
            keys[row] = span.value
        if span.has_parts or span.end in (None, span.start):
            continue
        aspect = aspect_of_region(format, span.path.partition(STEP)[0])
        if aspect == HEADER and name in counts:
            aspect = CONSISTENCY
        elif aspect == METADATA and row in keys and keys[row] == format.alignment_key:
            aspect = ALIGNMENT
        spans.setdefault(aspect, []).append((span.start, span.end or span.start))
    return spans or {DATA: [(0, len(stored))]}


# Damage


@st.composite
def damaged(draw: st.DrawFn, stored: bytes, aspect: str | None = None) -> bytes:
    """Damages a file at random: changes, cuts off, removes, inserts or copies bytes.

    Positions are drawn by aspect. If `aspect` is given, the first position is in it.
    """
    spans = spans_by_aspect(stored)
    for _ in range(draw(st.integers(1, 3))):
        start, end = evenly(draw, spans[aspect if aspect in spans else draw_aspect(draw, spans)])
        aspect = None
        at, to = min(draw(st.integers(start, end)), len(stored)), draw(st.integers(0, len(stored)))
        match draw(st.sampled_from(["byte", "byte", "bit", "word", "end", "out", "copy"])):
            case "byte":
                stored = stored[:at] + bytes([draw(st.integers(0, 255))]) + stored[at + 1 :]
            case "bit" if at < len(stored):
                stored = stored[:at] + bytes([stored[at] ^ 1 << draw(st.integers(0, 7))]) + stored[at + 1 :]
            case "word":
                stored = stored[:at] + draw(st.sampled_from(WORDS)) + stored[at + 8 :]
            case "end":
                stored = stored[:at]
            case "out":
                stored = stored[: min(at, to)] + stored[max(at, to) :]
            case "copy":
                part = stored[to : to + draw(st.integers(1, 64))]
                stored = stored[:at] + part + stored[at + draw(st.sampled_from([0, len(part)])) :]
    return stored


@st.composite
def truncated(draw: st.DrawFn, file: File, aspect: str | None = None) -> Corruption | None:
    """Cuts a file off within a field, of `aspect` if given. None if it has no such field."""
    spans, regions = spans_of(file), Context({**file.regions, **file.regions.counts})
    starts, reported, fields = dict[str, int](), dict[int, str](), list[FieldSpan]()
    for span in spans:
        starts[span.path], node = span.start, _node_at(file.format, regions, span.path)
        if isinstance(node, s.ByteOrderNode) and node.number:  # it reads the number after it
            reported[span.start] = span.path
        may_lack = isinstance(node, s.PaddingNode) and node.may_lack and node.may_lack(regions)
        may_lack = may_lack or (isinstance(node, s.BytesNode) and node.size is None)
        if not span.has_parts and span.path != "data" and (span.end or 0) > span.start and not may_lack:
            fields.append(span)
    if aspect is not None:
        fields = [span for span in fields if aspect_of_region(file.format, span.path.partition(STEP)[0]) == aspect]
    if not fields:
        return None
    span = fields[draw(st.integers(0, len(fields) - 1))]
    at = draw(st.integers(span.start, (span.end or 0) - 1))
    too_few = (count for first, nbytes, count in _counts(file, spans, regions) if first <= at < first + nbytes)
    path = next(too_few, reported.get(span.start, span.path))
    error: type[FormatError] = TruncatedError
    stored = bytes(file.source.view(0, at))
    if (claiming := find_format(BytesSource(stored))) is not file.format:  # as its magic begins with the same bytes
        path, error = _first_field(claiming) if claiming else MAGIC, FormatError
    return Corruption(stored, f"cut off at byte {at}, in {span.path}", path, starts.get(path, 0), error=error)


def spans_of(file: File) -> list[FieldSpan]:
    """Returns the span of each field, parts before the whole, also in payloads of known types."""
    spans, seen = trace_fields(file), set()
    for tensor in file.tensors.values():
        if tensor.identity not in seen and tensor.type.is_known:
            seen.add(tensor.identity)
            for name, (at, nbytes) in tensor.type.field_spans(tensor.shape).items():
                start = tensor.position + at
                spans.append(FieldSpan(f"data -> {quote(tensor.name)} -> {name}", start, start + nbytes))
    return spans


def _first_field(format: Format) -> str:
    first = struct_of(format.struct).fields[0]
    inner = struct_of(first.node.declared).fields[:1] if isinstance(first.node, s.RefNode) else []
    return STEP.join([first.name, *(part.name for part in inner)])


def _counts(file: File, spans: Sequence[FieldSpan], regions: Context) -> Iterator[tuple[int, int, str]]:
    """Yields the start, the minimum size and the path of the count of each table and array.

    In file order, outer ones first. The first count whose elements do not fit gets the error.
    """
    for span in sorted(spans, key=lambda span: (span.start, -(span.end or 0))):
        value, node = span.value, _node_at(file.format, regions, span.path)
        if isinstance(node, s.JsonTableNode):
            yield span.start, (span.end or 0) - span.start, span.path
        elif node and (rows := rows_of(node)):
            if type(file.format.field(span.path)) is construct.Array:  # which does not check its count
                continue
            yield span.start, len(value) * least_size(rows.declared), count_path(node, span.path)
        elif span.path.endswith(f"{STEP}elements"):
            item = value.number if isinstance(value, StoredArray) else file.format.metadata.types[ARRAY].field
            yield span.start, len(value) * least_size(item), f"{span.path.rpartition(STEP)[0]}{STEP}n"
        elif isinstance(value, StoredArray) and node:
            yield span.start, len(value) * least_size(value.number), count_path(node, span.path)


def _node_at(format: Format, regions: Context, path: str) -> s.Node | None:
    """Returns the node of a field by its path, also in rows; None for a struct and for the parts of
    a field. If a region has several cases, `regions` says which one the file has."""
    struct, node = struct_of(format.struct), None
    for depth, step in enumerate(path.split(STEP)):
        if step.isdecimal() and node and (row := rows_of(node)):
            struct, node = row, None
        elif node is None and step in (part.name for part in struct.fields):
            node = struct.field(step).node
            node = node if depth else select(node, regions)
            if isinstance(node, s.RefNode):
                struct, node = struct_of(node.declared), None
        else:
            return None
    return node


def count_path(node: s.Node, path: str) -> str:
    """Returns the path of the count of a field's elements, or of the field if it counts bytes."""
    count = node.count if isinstance(node, s.ListNode) else None
    if not isinstance(count, Reference) or (count.up and not count.of_root):
        return path
    return STEP.join([*(() if count.of_root else path.split(STEP)[:-1]), *count.names])
