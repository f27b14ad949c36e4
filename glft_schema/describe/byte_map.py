"""Attributes every byte of a file to a field, padding or a gap.

    with glft_schema.open("model.gguf") as file:
        for byte_range in byte_map(file):
            print(byte_range.start, byte_range.path, byte_range.type, byte_range.value)

Offsets come from a traced parse, meanings from the declaration. A long array or a payload is a
single range, which `ByteMap.inside` expands.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

import glft_schema.describe.nodes as s
from glft_schema.codec.context import LITTLE, ByteOrder, byte_order, new_context
from glft_schema.codec.json_text import JsonPart
from glft_schema.codec.text import decode_text
from glft_schema.codec.trace import STEP, FieldSpan, label_of, parent_of
from glft_schema.describe.byte_range import FIELD, GAP, PADDING, UNCLAIMED, ByteRange, parts_of, select, type_text
from glft_schema.describe.schema import field_of, struct_of
from glft_schema.display import Part, chart, format_count, records_table, size_text, with_display
from glft_schema.errors import FormatError, OptionError, quote
from glft_schema.files.container import as_file
from glft_schema.files.file import File
from glft_schema.files.parsing import trace_fields, trace_source
from glft_schema.formats.format import Format
from glft_schema.formats.registry import format_of
from glft_schema.lazy import outside_graphs
from glft_schema.storage.source import Source, StrPath
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.payload_layout import matrix
from glft_schema.tensors.region import TensorMap
from glft_schema.tensors.tensor import PayloadLocation

JSON_SYNTAX = "JSON syntax and known keys"
REPLACED_ENTRY = "replaced by a later entry of this name"
REPLACED_VALUE = "replaced by a later value of this key"
UNKNOWN_KEY = "of an unknown key; preserved"


@with_display
class ByteMap(list[ByteRange]):
    """The ranges of a file, in order. They cover the whole file and do not overlap.

    Attributes:
        nbytes: the size of the file.
        format: the format of the file.
        source: the file's bytes. `inside` reads them, so the source must be open.
        byte_order: the byte order of the file's numbers.
        tensors: the ranges of each tensor by name: its row in the table, then its payload.
    """

    def __init__(self, format: Format, source: Source, byte_ranges: Iterable[ByteRange], order: ByteOrder) -> None:
        super().__init__(byte_ranges)
        self.format = format
        self.source = source
        self.nbytes = source.size
        self.byte_order = order
        self.tensors: dict[str, list[ByteRange]] = {}
        for byte_range in self:
            for tensor in byte_range.tensors:
                self.tensors.setdefault(tensor, []).append(byte_range)
        self._starts = [byte_range.start for byte_range in self]

    def _display(self) -> Iterator[Part]:
        yield f"{quote(self.source.name)}, {format_count(self, 'range')}, {self.nbytes:,} bytes"
        sizes = Counter[str]()
        for part in self:
            sizes[part.path.partition(STEP)[0] or part.kind] += part.nbytes
        yield chart("bytes by region", [(f"{name} {size_text(nbytes)}", nbytes) for name, nbytes in sizes.items()])
        columns = ("path", "type", "value", "doc", "start", "nbytes")
        yield records_table("ranges", [{name: getattr(part, name) for name in columns} for part in self])

    def at(self, offset: int) -> ByteRange:
        """Returns the range at `offset`. Raises IndexError if the file has no such byte."""
        if not 0 <= offset < self.nbytes:
            raise IndexError(f"byte {offset} is out of range: {self.source.name} has {self.nbytes} bytes")
        return self[bisect_right(self._starts, offset) - 1]

    def between(self, start: int, end: int) -> Sequence[ByteRange]:
        """Returns the ranges that have a byte in ``[start, end)``."""
        if start >= end:
            return ()
        return self[max(bisect_right(self._starts, start) - 1, 0) : bisect_left(self._starts, end)]

    @property
    def unclaimed(self) -> list[ByteRange]:
        """The bytes that no declaration covers. Well-formed files have none; gaps are legal."""
        return [byte_range for byte_range in self if byte_range.kind == UNCLAIMED]

    def parts(self, byte_range: ByteRange) -> int:
        """Returns the number of parts of a range without reading them; 0 if it has none."""
        return parts_of(self.source, byte_range, byte_range.start, byte_range.end)[0]

    def inside(self, byte_range: ByteRange, start: int | None = None, end: int | None = None) -> Iterator[ByteRange]:
        """Yields the parts of a range that have a byte in ``[start, end)``, one level deep.

        The parts of a text are its length and bytes; those of an array, its elements; of a payload
        field, numbers or blocks; of a block, its fields. Parts may have parts. Indices are those of
        the payload's tensors: ``scales -> 3 -> 5`` is ``payload.scales[3, 5]``.

        Args:
            byte_range: a range of this map, or a part from this method.
            start: the first offset, by default that of the range.
            end: the offset after the last, by default that of the range.

        Raises:
            ClosedError: if the file is closed.
        """
        low = byte_range.start if start is None else max(start, byte_range.start)
        high = byte_range.end if end is None else min(end, byte_range.end)
        if low >= high:
            return
        for part in parts_of(self.source, byte_range, low, high)[1]:
            if part.start >= high:
                return
            if part.end > self.nbytes:
                yield replace(part, end=self.nbytes, doc="truncated", value=None, node=None)
            elif part.end > max(part.start, low):
                yield part

    def leaves(self, start: int = 0, end: int | None = None) -> Iterator[ByteRange]:
        """Yields the innermost parts of all ranges that have a byte in ``[start, end)``."""
        end = self.nbytes if end is None else end
        levels: list[Iterator[ByteRange]] = [iter(self.between(start, end))]
        while levels:
            if (byte_range := next(levels[-1], None)) is None:
                levels.pop()
            elif self.parts(byte_range):
                levels.append(self.inside(byte_range, start, end))
            else:
                yield byte_range


@outside_graphs
def byte_map(file: File | StrPath) -> ByteMap:
    """Attributes every byte of a file to a field, padding or gap.

    The file is parsed again, with a trace. Payloads are not read. Each file of a set has
    its own map: ``[byte_map(shard) for shard in file.shards]``.

    Args:
        file: an open file or a path.

    Raises:
        OptionError: if the file is a set of several files.
        ClosedError: if the file is closed.
        FormatError, OSError: if the file at a path cannot be opened.
    """
    file = as_file(file)
    if len(file.shards) > 1:
        raise OptionError(f"expected one file, found a set of {len(file.shards)}: call byte_map on each of file.shards")
    file.source.check_open()
    return _map_spans(file.format, file.source, trace_fields(file))


def byte_map_of(source: Source) -> tuple[ByteMap, FormatError | None]:
    """Attributes every byte of a possibly broken file.

    The bytes after the error are unclaimed, except payloads of a truncated file.

    Args:
        source: the file's bytes, from `glft_schema.storage.open_source`.

    Returns:
        The map, and the error that ends the parse, or None.

    Raises:
        FormatError: if no format is found for the file's first bytes or extension.
    """
    format = format_of(source)
    spans, error = trace_source(format, source)
    return _map_spans(format, source, spans), error


def _map_spans(format: Format, source: Source, spans: Sequence[FieldSpan]) -> ByteMap:
    fields = _ParsedFields(format, source, spans)
    byte_ranges: list[ByteRange] = []
    end = 0
    for byte_range in fields.byte_ranges():
        if byte_range.start >= source.size:  # of a truncated file
            break
        if byte_range.start > end:
            byte_ranges.append(fields.between(end, byte_range.start))
        if byte_range.end > end:
            end = min(byte_range.end, source.size)
            byte_ranges.append(byte_range if byte_range.end == end else replace(byte_range, end=end))
    if end < source.size:
        byte_ranges.append(fields.between(end, source.size))
    return ByteMap(format, source, byte_ranges, fields.order)


class _ParsedFields:
    """The fields of a parse, each with its declaration."""

    def __init__(self, format: Format, source: Source, spans: Sequence[FieldSpan]) -> None:
        self.order = byte_order(spans[0].context) if spans else LITTLE
        self._source = source
        self._table = format.table
        self._by_path = {span.path: span for span in spans}
        around = {self._enclosing(path) for path in set(map(parent_of, self._by_path))} & self._by_path.keys()
        # Lists of construct's own, whose elements have no paths: each is one range.
        self._lists = {path for path in around if not isinstance(self._node(self._by_path[path]), s.RefNode)}
        in_lists = tuple(path + STEP for path in self._lists)
        self._leaves: list[FieldSpan] = []
        self._tables_in_json: list[FieldSpan] = []
        for span in spans:
            if span.path.startswith(in_lists):
                continue
            if isinstance(self._node(span), s.JsonTableNode):
                self._tables_in_json.append(span)
            elif (span.path in self._lists or not span.has_parts) and span.end != span.start:
                self._leaves.append(span)
        table = format.field(self._table)
        if table and not self._tables_in_json and isinstance(field_of(table).node, s.JsonTableNode):
            ends = {span.path.partition(STEP)[0] == self._table: span.end for span in self._leaves}  # the last of each
            if True in ends:  # a table up to an error in one of its rows
                self._tables_in_json.append(FieldSpan(self._table, ends.get(False) or 0, ends[True]))

    def _field(self, span: FieldSpan) -> s.Field:
        return field_of(span.context["_subcons"][span.path.rpartition(STEP)[2]])

    def _node(self, span: FieldSpan) -> s.Node:
        return select(self._field(span).node, span.context)

    def _enclosing(self, path: str) -> str:
        """Returns the path of the field around the parts of construct's own lists, ``items``."""
        while path and path not in self._by_path and not path.rpartition(STEP)[2].isdecimal():
            path = parent_of(path)
        return path

    def byte_ranges(self) -> list[ByteRange]:
        """Returns a range for each innermost field that takes bytes, in order."""
        ranges = [
            byte_range for span in self._tables_in_json if span.value is not None for byte_range in self._json_parts(span)
        ]
        for span in self._leaves:
            node = self._node(span)
            if isinstance(node, s.PayloadsNode):
                ranges += self._payloads(span, node)
            else:
                ranges.append(self._byte_range(span, node))
        return sorted(ranges, key=lambda byte_range: byte_range.start)

    def _byte_range(self, span: FieldSpan, node: s.Node) -> ByteRange:
        kind, value, count = FIELD, None, None
        if isinstance(node, s.PaddingNode):
            kind = PADDING
        elif span.path not in self._lists:
            value = span.value.item() if isinstance(span.value, np.generic) else span.value
            count = len(value) if isinstance(node, s.ListNode) else None
        of_tensor = span.path.partition(STEP)[0] == self._table
        label = label_of(self._by_path, "name" if of_tensor else "key", span.path)
        tensors, key = ((label,), None) if of_tensor and label is not None else ((), label)
        type_ = type_text(node, span.context, count)
        doc = self._field(span).doc
        return ByteRange(span.start, span.end or 0, span.path, kind, type_, doc, value, tensors, key, node, span.context)

    def between(self, start: int, end: int) -> ByteRange:
        """Returns a range for bytes that no leaf covers: of the field around them, or unclaimed."""
        for span in self._tables_in_json:
            if span.start <= start and end <= (span.end or 0):
                return self._json(start, end, span.path, JSON_SYNTAX)
        for span in self._by_path.values():
            if span.has_parts and span.start <= start and end <= (span.end or 0):
                return ByteRange(start, end, span.path, FIELD, "bytes", self._field(span).doc)
        return ByteRange(start, end, "", UNCLAIMED, "bytes", "not covered by any declared field")

    def _json_parts(self, span: FieldSpan) -> Iterator[ByteRange]:
        """Yields the parts of a JSON text other than rows: entries, values of keys, and padding."""
        rows, number = span.value, 0

        def json(part: JsonPart, doc: str, name: str | None, *steps: str) -> ByteRange:
            byte_range = self._json(rows.start + part.key, rows.start + part.end, STEP.join((span.path, *steps)), doc)
            return replace(byte_range, tensors=(name or "",) if span.path == self._table else ())

        keys = rows.table.keys
        for entry in rows.members:
            if rows.last[entry.name] is not entry:
                yield json(entry, REPLACED_ENTRY, entry.name, quote(entry.name))
            elif entry.name != rows.table.reserved:
                fields = rows.fields_of(entry)
                values = {part.name: part for part in fields}
                for part in fields:
                    if part.name not in keys or values[part.name] is not part:
                        doc = REPLACED_VALUE if part.name in keys else UNKNOWN_KEY
                        yield json(part, doc, entry.name, str(number), quote(part.name))
                number += 1
        start, end = (rows.start + len(stored) for stored in (rows.stored.rstrip(b" \t\n\r"), rows.stored))
        if start < end:
            yield ByteRange(start, end, span.path, PADDING, "spaces", "after the JSON object")

    def _json(self, start: int, end: int, path: str, doc: str) -> ByteRange:
        return ByteRange(start, end, path, FIELD, "JSON", doc, decode_text(self._source.view(start, end - start)))

    def _payloads(self, span: FieldSpan, node: s.PayloadsNode) -> Iterator[ByteRange]:
        assert isinstance(span.value, TensorMap)
        names: defaultdict[PayloadLocation, list[str]] = defaultdict(list)
        for name, location in span.value.places().items():
            if location.nbytes:
                names[location].append(name)
        fields_of = cache(self._payload_fields)
        to, end = node.to(span.context) if node.to else 1, span.start
        for location, sharing in sorted(names.items(), key=lambda item: item[0].offset):
            start = span.start + location.offset
            yield from self._gap(span.path, end, start, to, first=end == span.start)
            end = start + location.nbytes
            path, tensors = f"{span.path}{STEP}{sharing[0]!r}", tuple(sharing)  # not shortened: long names may begin alike
            whole = ByteRange(start, end, path, FIELD, "bytes", "of an unknown type", None, tensors)
            fields = fields_of(location.type, location.shape)
            if not fields:
                yield whole
            for (at, size), type_, part, context in fields:
                about = part.node, type_, part.doc
                yield replace(whole, context=context).part(part.name, start + at, start + at + size, *about)
        yield from self._gap(span.path, end, span.end or 0, to, first=not names)

    def _gap(self, path: str, start: int, end: int, to: int, first: bool) -> Iterator[ByteRange]:
        """Yields the padding after a payload, if any, and the gap after the padding."""
        padded = start + (-start % to)
        if first or padded > end:
            padded = start
        if padded > start:
            yield ByteRange(start, padded, path, PADDING, f"padding to {to}", "from the end of a payload to the next multiple")
        if end > padded:
            yield ByteRange(padded, end, path, GAP, "bytes", "of no tensor; preserved")

    def _payload_fields(self, type_: TensorType, shape: tuple[int, ...]) -> list[tuple[tuple[int, int], str, s.Field, Any]]:
        """Returns the offset and size, type, declaration and context of each non-empty field."""
        out, columns = matrix(shape)
        context = new_context(True, dims=list(shape), out=out, byte_order=self.order, **{"in": columns})
        spans, fields = type_.field_spans(shape), struct_of(type_.payload).fields
        declared = [(spans[part.name], type_text(part.node, context), part, context) for part in fields]
        return [field for field in declared if field[0][1]]
