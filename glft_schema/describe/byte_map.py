"""Every byte of a file, and what it belongs to: a field, padding, or a gap.

    with glft_schema.open("model.gguf") as file:
        for stretch in byte_map(file):
            print(stretch.start, stretch.path, stretch.type, stretch.value)

Positions are those of a parse with a trace; what they mean is read from the declaration. Long arrays and payloads are one
stretch each, which `ByteMap.inside` opens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np

import glft_schema.describe.nodes as s
from glft_schema.codec.context import LITTLE
from glft_schema.codec.trace import Span
from glft_schema.describe.node_reader import NodeReader, Scope, type_text
from glft_schema.describe.schema import container_schema, node_of
from glft_schema.errors import FormatError, OptionError, shown
from glft_schema.files.file import File
from glft_schema.files.parsing import trace_fields, trace_source
from glft_schema.formats.format import Format
from glft_schema.formats.registry import format_of
from glft_schema.storage.source import Source
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.engine.chunks import matrix
from glft_schema.tensors.region import TensorMap

FIELD, PADDING, GAP, UNCLAIMED = "field", "padding", "gap", "unclaimed"
STEP = " -> "
PAYLOAD = "payload"  # the struct of a tensor type's payload


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes `start` to `end` of a file, and what they are. Equal where place, path and kind are.

    Attributes:
        start: the first byte, from the start of the file.
        end: that after the last.
        path: the field, as in errors: ``header -> version``, ``data -> 'blk.0.attn_q.weight' -> scales``.
        kind: ``field``; ``padding`` and ``gap``, which belong to none; ``unclaimed``, which nothing declared takes.
        type: what it is: ``u32``, ``text after u64``, ``f16[out, in // 64]``.
        doc: the field's sentence.
        value: decoded; None of payloads, of what is long, and of what is no field.
        tensors: the names of the tensors whose row or payload it is in; of a payload that several share, each of them.
        key: that of the metadata's entry that it is in, or None.
        node: the node of the schema, settled; None of what is no field.
        scope: what the node depends on.
    """

    start: int
    end: int
    path: str
    kind: str = FIELD
    type: str = field(default="bytes", compare=False)
    doc: str = field(default="", compare=False)
    value: Any = field(default=None, compare=False)
    tensors: tuple[str, ...] = field(default=(), compare=False)
    key: str | None = field(default=None, compare=False)
    node: s.Node | None = field(default=None, compare=False, repr=False)
    scope: Scope | None = field(default=None, compare=False, repr=False)

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.end - self.start

    @property
    def tensor(self) -> str | None:
        """The first of `tensors`, or None."""
        return self.tensors[0] if self.tensors else None

    @property
    def name(self) -> str:
        """The last part of its path: the field's own name, or the number of an element."""
        return self.path.rpartition(STEP)[2]


class ByteMap(Sequence[Stretch]):
    """The stretches of a file, in order: together they are the whole file, and none shares a byte with another.

    Attributes:
        nbytes: those of the file.
        format: the format that it is in.
        source: where its bytes come from; what is inside of long stretches is read when asked for, as long as it is open.
    """

    def __init__(self, format: Format, source: Source, stretches: Sequence[Stretch], reader: NodeReader) -> None:
        self.format = format
        self.source = source
        self.nbytes = source.size
        self._stretches = stretches
        self._starts = [stretch.start for stretch in stretches]
        self._reader = reader
        self._of_tensor: dict[str, list[Stretch]] | None = None

    @overload
    def __getitem__(self, index: int) -> Stretch: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Stretch]: ...
    def __getitem__(self, index: int | slice) -> Stretch | Sequence[Stretch]:
        return self._stretches[index]

    def __len__(self) -> int:
        return len(self._stretches)

    def __repr__(self) -> str:
        return f"<byte map of {shown(self.source.name)}: {len(self)} stretches, {self.nbytes} bytes>"

    def at(self, offset: int) -> Stretch:
        """Returns the stretch that the byte at `offset` is in. Raises IndexError where the file has no such byte."""
        if not 0 <= offset < self.nbytes:
            raise IndexError(f"byte {offset} is not one of the {self.nbytes} bytes of {self.source.name}")
        return self._stretches[bisect_right(self._starts, offset) - 1]

    def between(self, start: int, end: int) -> Sequence[Stretch]:
        """Returns the stretches that have a byte in ``[start, end)``."""
        if start >= end:
            return ()
        return self._stretches[max(bisect_right(self._starts, start) - 1, 0) : bisect_left(self._starts, end)]

    def of_tensor(self, name: str) -> list[Stretch]:
        """Returns the stretches of a tensor: of its row in the table, then of its payload. Raises KeyError for another name."""
        return self.tensors[name]

    @property
    def byte_order(self) -> str:
        """The byte order of the file's numbers."""
        return self._reader.order

    @property
    def tensors(self) -> Mapping[str, list[Stretch]]:
        """The stretches of each tensor by its name: of its row in the table, then of its payload."""
        if self._of_tensor is None:
            found: defaultdict[str, list[Stretch]] = defaultdict(list)
            for stretch in self._stretches:
                for tensor in stretch.tensors:
                    found[tensor].append(stretch)
            self._of_tensor = dict(found)
        return self._of_tensor

    @property
    def unclaimed(self) -> list[Stretch]:
        """The bytes that nothing declared takes. There are none in a well-formed file: gaps between payloads are legal."""
        return [stretch for stretch in self._stretches if stretch.kind == UNCLAIMED]

    def parts(self, stretch: Stretch) -> int:
        """Returns how many stretches `inside` has of it; 0 where it cannot be opened.

        Lists of texts, lines and the like, which have elements of different sizes, tell without being walked over.
        """
        if stretch.node is None or stretch.scope is None:
            return 0
        count = self._reader.count(stretch.node, stretch.start, stretch.end, stretch.scope)
        return 0 if isinstance(stretch.node, s.Numbers) and count == 1 and stretch.value is not None else count

    def inside(self, stretch: Stretch, start: int | None = None, end: int | None = None) -> Iterator[Stretch]:
        """Yields what a stretch is made of, one level deep: what has a byte in ``[start, end)`` of the file, in order.

        A text has its length and its bytes; an array its elements; a payload its numbers or blocks; a block its fields; a
        field of several numbers these numbers. Each can be opened in turn. Numbers of an array are counted as the payload's
        tensors are indexed: ``scales -> 3 -> 5`` is ``payload.scales[3, 5]``.

        Args:
            stretch: of this map, or from here.
            start: the first byte wanted; the stretch's own unless given.
            end: that after the last one; the stretch's own unless given.

        Raises:
            ClosedError: after the file was closed.
        """
        if stretch.node is None or stretch.scope is None or not self.parts(stretch):
            return
        low = stretch.start if start is None else max(start, stretch.start)
        high = stretch.end if end is None else min(end, stretch.end)
        if low >= high:
            return
        for part in self._reader.parts(stretch.node, stretch.start, stretch.end, stretch.scope, low, high, stretch.doc):
            yield Stretch(
                part.start,
                part.end,
                f"{stretch.path}{STEP}{part.name}",
                stretch.kind,
                part.type or type_text(part.node, part.scope, self._reader),
                part.doc,
                self._reader.part_value(part),
                stretch.tensors,
                stretch.key,
                part.node,
                part.scope,
            )

    def leaves(self, start: int = 0, end: int | None = None) -> Iterator[Stretch]:
        """Yields the stretches with a byte in ``[start, end)``, each opened as far as it goes."""
        end = self.nbytes if end is None else end
        levels: list[Iterator[Stretch]] = [iter(self.between(start, end))]
        while levels:
            if (stretch := next(levels[-1], None)) is None:
                levels.pop()
            elif self.parts(stretch):
                levels.append(self.inside(stretch, start, end))
            else:
                yield stretch


def byte_map(file: File) -> ByteMap:
    """Attributes every byte of a file to a field, padding or gap.

    The file is parsed again, with a trace; payloads are not looked at. Of a set of files each has a map of its own:
    ``[byte_map(shard) for shard in file.shards]``.

    Args:
        file: an open file.

    Raises:
        OptionError: for a set of several files.
        ClosedError: after the file was closed.
    """
    if len(file.shards) > 1:
        raise OptionError(f"expected one file, found a set of {len(file.shards)}: byte_map takes each of file.shards")
    file.source.check_open()
    return _mapped(file.format, file.source, trace_fields(file))


def byte_map_of(source: Source) -> tuple[ByteMap, FormatError | None]:
    """Attributes every byte of a file that may be broken: what comes after the break is unclaimed.

    Args:
        source: the file's bytes, as `glft_schema.open_source` gives them.

    Returns:
        The map, and why the file cannot be read; None where it can.

    Raises:
        FormatError: where the first bytes are those of no format.
    """
    format = format_of(source)
    spans, error = trace_source(format, source)
    return _mapped(format, source, spans), error


def _mapped(format: Format, source: Source, spans: Sequence[Span]) -> ByteMap:
    fields = _ParsedFields(format, source, spans)
    stretches: list[Stretch] = []
    end = 0
    for stretch in fields.stretches():
        if stretch.start > end:
            stretches.append(fields.between(end, stretch.start))
        if stretch.end > end:
            stretches.append(stretch)
            end = stretch.end
    if end < source.size:
        stretches.append(fields.between(end, source.size))
    return ByteMap(format, source, stretches, fields.reader)


@dataclass
class _Row:
    """The fields of a parsed struct: their declarations, and what tells them from those of other rows."""

    scope: Scope
    fields: dict[str, s.Field]
    label: str  # the field that says which row it is, or none
    of_tensor: bool


class _ParsedFields:
    """The fields of a parse, each with its declaration."""

    def __init__(self, format: Format, source: Source, spans: Sequence[Span]) -> None:
        self._schema = container_schema(format)
        self.reader = NodeReader(source, LITTLE)
        nodes = [part.node for part in self._schema.structs[s.FILE].fields]
        self._tables = {node.table for node in nodes if isinstance(node, s.Payloads)}
        self._rows: dict[str, _Row | None] = {"": self._row(s.FILE, None, "", False)}
        self._folded: set[str] = set()  # fields whose parts have other paths than the declaration gives them
        self._spans = spans
        self._leaves: list[tuple[Span, _Row, s.Field]] = []
        for span in self._spans:
            parent, _, name = span.path.rpartition(STEP)
            if (row := self._enter(parent)) is None:
                continue
            row.scope.fields[name] = span.value
            if isinstance(row.fields[name].node, s.ByteOrder):
                self.reader.order = span.value
            folded = span.path in self._folded
            if (folded or not span.has_parts) and span.end != span.start:
                self._leaves.append((replace(span, value=None) if folded else span, row, row.fields[name]))

    def _row(self, struct: str, outer: Scope | None, label: str, of_tensor: bool) -> _Row:
        fields = {part.name: part for part in self._schema.structs[struct].fields}
        return _Row(Scope(self._schema, {}, outer), fields, label, of_tensor)

    def _enter(self, path: str) -> _Row | None:
        """Returns the struct at `path`, a field or an element of one, of which the first field has been parsed.

        None where construct's own lists are on the way, whose paths are others: such a list is one stretch, to be opened.
        """
        if path in self._rows:
            return self._rows[path]
        self._rows[path] = None
        field_path, _, name = path.rpartition(STEP)
        indices = 0
        while name.isdecimal():
            field_path, _, name = field_path.rpartition(STEP)
            indices += 1
        if (outer := self._enter(field_path)) is None:
            return None
        node, label = self.reader.settled(outer.fields[name].node, outer.scope), outer.label
        of_tensor = outer.of_tensor or (not field_path and name in self._tables)
        for _ in range(indices):
            if isinstance(node, s.List):
                label = node.key or ("name" if of_tensor else label)
                node = self.reader.settled(node.item, outer.scope)
        if not isinstance(node, s.Ref):
            self._folded.add(STEP.join((field_path, name)) if field_path else name)
            return None
        self._rows[path] = row = self._row(node.name, outer.scope, label, of_tensor)
        return row

    def stretches(self) -> Iterator[Stretch]:
        """Yields a stretch for each field that takes bytes and is not made of others, in order."""
        for span, row, declared in sorted(self._leaves, key=lambda leaf: leaf[0].start):
            node = self.reader.settled(declared.node, row.scope)
            if isinstance(node, s.Payloads):
                yield from self._payloads(span, node, row.scope)
            else:
                yield self._stretch(span, row, declared, node)

    def _stretch(self, span: Span, row: _Row, declared: s.Field, node: s.Node) -> Stretch:
        kind, value, count = FIELD, list(span.value) if isinstance(span.value, list) else span.value, None
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(node, s.Padding):
            kind, value = PADDING, None
        elif isinstance(node, s.List) and value is not None:
            count = len(value)
        scope: Scope | None = row.scope
        while scope and row.label and row.label not in scope.fields:
            scope = scope.outer
        label = scope.fields[row.label] if scope and row.label else None
        tensors, key = ((label,), None) if row.of_tensor and label is not None else ((), label)
        type_ = type_text(node, row.scope, self.reader, count)
        return Stretch(span.start, span.end or 0, span.path, kind, type_, declared.doc, value, tensors, key, node, row.scope)

    def between(self, start: int, end: int) -> Stretch:
        """Returns what no field has for itself: bytes of the innermost field around them, or unclaimed ones."""
        for span in self._spans:
            if span.has_parts and span.start <= start and end <= (span.end or 0):
                parent, _, name = span.path.rpartition(STEP)
                if row := self._rows[parent]:
                    return Stretch(start, end, span.path, FIELD, "bytes", row.fields[name].doc)
        return Stretch(start, end, "", UNCLAIMED, "bytes", "of no field that is declared")

    def _payloads(self, span: Span, node: s.Payloads, scope: Scope) -> Iterator[Stretch]:
        tensors = span.value
        assert isinstance(tensors, TensorMap)
        names: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
        types: dict[int, tuple[TensorType, tuple[int, ...]]] = {}
        for name, place in tensors.places().items():
            if place.nbytes:
                names[place.offset, place.nbytes].append(name)
                types[place.offset] = place.dtype, place.shape
        made: dict[tuple[TensorType, tuple[int, ...]], list[tuple[int, int, s.Field, str, Scope]]] = {}
        to, end = scope.evaluate(node.to) if node.to else 1, span.start
        for (offset, nbytes), named in sorted(names.items()):
            start = span.start + offset
            yield from self._gap(span.path, end, start, to, first=end == span.start)
            end = start + nbytes
            place_of = types[offset]
            if place_of not in made:
                made[place_of] = self._fields_of(*place_of)
            path = f"{span.path}{STEP}{named[0]!r}"  # whole: two long names may begin alike
            if not made[place_of]:
                yield Stretch(start, end, path, FIELD, "bytes", "of a type that is not known", None, tuple(named))
            for at, size, declared, type_, inner in made[place_of]:
                first = start + at
                yield Stretch(
                    first,
                    first + size,
                    f"{path}{STEP}{declared.name}",
                    FIELD,
                    type_,
                    declared.doc,
                    None,
                    tuple(named),
                    None,
                    declared.node,
                    inner,
                )
        yield from self._gap(span.path, end, span.end or 0, to, first=not names)

    def _gap(self, path: str, start: int, end: int, to: int, first: bool) -> Iterator[Stretch]:
        """Yields the padding after a payload, as far as the format says that there is some, and what is beyond it."""
        padded = start + (-start % to)
        if first or padded > end:
            padded = start
        if padded > start:
            yield Stretch(start, padded, path, PADDING, f"padding to {to}", "after a payload, up to where the next may begin")
        if end > padded:
            yield Stretch(padded, end, path, GAP, "bytes", "of no tensor; kept as they are")

    def _fields_of(self, type_: TensorType, shape: tuple[int, ...]) -> list[tuple[int, int, s.Field, str, Scope]]:
        """Returns the fields of a payload: first byte, counted from the payload's, bytes, declaration, type, and its scope."""
        schema = s.Schema(type_.name)
        node_of(type_.payload, schema, PAYLOAD)
        out, columns = matrix(shape)
        scope = Scope(schema, {"dims": list(shape), "out": out, "in": columns})
        places = type_.field_spans(shape)
        return [
            (*places[part.name], part, type_text(part.node, scope, self.reader), scope)
            for part in schema.structs[PAYLOAD].fields
            if places[part.name][1]
        ]
