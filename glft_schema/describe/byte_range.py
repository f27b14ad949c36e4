"""A range of bytes in a file, and its parts, one level deep: elements of arrays, fields of structs,
the length and bytes of a text.

Elements of equal size are at multiples of it, and an array of strings knows their ends. All other
parts are located by their own constructs, which parse the range again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, count, pairwise, repeat
from typing import Any

import construct
import numpy as np

import glft_schema.describe.nodes as s
from glft_schema.codec.arrays import StoredNumbers, StoredStrings
from glft_schema.codec.context import BIG, LITTLE, Context, Parameters, byte_order
from glft_schema.codec.expressions import Constant, outermost
from glft_schema.codec.records import Record
from glft_schema.codec.structs import Struct
from glft_schema.codec.text import decode_text
from glft_schema.codec.trace import STEP, Trace
from glft_schema.describe.schema import field_of, struct_of
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.source import Source
from glft_schema.tensor_types.conversions import widen

FIELD, PADDING, GAP, UNCLAIMED = "field", "padding", "gap", "unclaimed"
SHORT = 256  # elements, or bytes: longer values are omitted


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes of a file in ``[start, end)``. Ranges with equal offsets, path and kind are equal.

    Attributes:
        start: the offset of the first byte in the file.
        end: the offset after the last byte.
        path: the path of the field, as in errors: ``header -> version``, ``data -> 'w' -> scales``.
        kind: ``field``, ``padding``, ``gap``, or ``unclaimed``: not covered by the declaration.
        type: the type as text: ``u32``, ``text after u64``, ``f16[out, in // 64]``.
        doc: the field's sentence.
        value: the decoded value; None for payloads, long values, and bytes outside of fields.
        tensors: the names of the tensors whose row or payload it is part of; several if shared.
        key: the key of the metadata entry that it is part of, or None.
        node: the schema node, with alternatives resolved; None for bytes outside of fields.
        context: the fields that the node refers to, as in construct's contexts.
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
    context: Any = field(default=None, compare=False, repr=False)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.end - self.start

    @property
    def tensor(self) -> str | None:
        """The first of `tensors`, or None."""
        return self.tensors[0] if self.tensors else None

    @property
    def name(self) -> str:
        """The last step of the path: the field's own name, or the index of an element."""
        return self.path.rpartition(STEP)[2]

    def part(
        self, name: str, start: int, end: int, node: s.Node, type: str = "", doc: str | None = None, value: Any = None
    ) -> ByteRange:
        """Returns a part of this range, by default of the type of its node."""
        path, doc = f"{self.path}{STEP}{name}", self.doc if doc is None else doc
        type = type or type_text(node, self.context)
        return replace(self, start=start, end=end, path=path, type=type, doc=doc, value=value, node=node)


def select(node: s.Node, context: Any) -> s.Node:
    """Returns the alternative of a node that applies in `context`, or the node itself."""
    while isinstance(node, (s.EitherNode, s.SwitchNode)):
        node = s.choose(node, context)
    return node


def dims_of(node: s.ListNode | s.ArrayNode, context: Any) -> list[int]:
    """Returns the sizes of an array, outermost first. A dim may be a list, such as ``dims``."""
    values = [dim(context) for dim in node.dims]
    return [int(size) for value in values for size in (value if isinstance(value, list) else [value])]


def parts_of(source: Source, whole: ByteRange, low: int, high: int) -> tuple[int, Iterator[ByteRange]]:
    """Returns the number of parts of a range, and an iterator that reads those with a byte in
    ``[low, high)``.

    The iterator also yields others, if they have to be read to find those.
    """
    context = whole.context
    match whole.node:
        case s.ArrayNode() as node if whole.value is not None and math.prod(dims_of(node, context)) == 1:
            pass  # a number, whose value is that of the range
        case s.ArrayNode() | s.ListNode() as node:
            dims = dims_of(node, context)
            return math.prod(dims), _elements(source, whole, node, dims, whole.start, low, high)
        case s.CountedNode() as node:
            number = _number(source, whole, "count", node.count, "how many follow")
            return number.value + 1, chain([number], _elements(source, whole, node, [number.value], number.end, low, high))
        case s.TextNode() as node:
            return 2, _text(source, whole, node)
        case s.RefNode() as node:
            return len(struct_of(node.declared).fields), _fields(source, whole, node.declared)
        case s.LinesNode():
            starts = _line_starts(source, whole)
            names = (f"line {number}" for number in count(1))
            return len(starts) - 1, _texts(source, whole, names, starts, "line key=value")
    return 0, iter(())


def _elements(
    source: Source,
    whole: ByteRange,
    node: s.ArrayNode | s.ListNode | s.CountedNode,
    dims: Sequence[int],
    start: int,
    low: int,
    high: int,
) -> Iterator[ByteRange]:
    """Yields the elements of an array of these dims from byte `start`."""
    item, total = select(node.item, whole.context), math.prod(dims)
    type_ = type_text(item, whole.context)
    if isinstance(whole.value, StoredStrings):
        ends = whole.value.ends
        for i in range(int(ends.searchsorted(low - start, "right")), total):
            first = start + (int(ends[i - 1]) if i else 0)
            yield whole.part(str(i), first, start + int(ends[i]), item, type_, value=whole.value[i])
    elif isinstance(item, (s.NumberNode, s.RefNode)) and (size := _size(item, whole.context)):
        indices = range(max((low - start) // size, 0), min(total, -(-(high - start) // size)))
        for i, number in zip(indices, _numbers(source, item, start, indices, whole.context), strict=False):
            first = start + i * size
            yield whole.part(_index(i, dims), first, first + size, item, type_, value=number)
    else:
        assert not isinstance(node, s.ArrayNode)  # whose items have one size
        cursor = Cursor(source, start)
        for i in range(total):
            first, parsed = cursor.tell(), node.declared._parse(cursor, whole.context, "(parsing)")
            yield whole.part(str(i), first, cursor.tell(), item, type_, value=plain(parsed))


def _fields(source: Source, whole: ByteRange, declared: construct.Struct) -> Iterator[ByteRange]:
    """Yields the fields of a struct, from a traced parse."""
    trace, context = Trace(), whole.context
    params = Parameters({**context["_params"], "trace": trace})
    _traced(declared)._parse(Cursor(source, whole.start), Context({**context, "_params": params}), "(parsing)")
    for span in trace.spans:
        if STEP not in span.path:
            field = field_of(span.context["_subcons"][span.path])
            node = select(field.node, span.context)
            inner = replace(whole, context=span.context)
            yield inner.part(span.path, span.start, span.end or 0, node, doc=field.doc, value=plain(span.value))


@cache
def _traced(declared: construct.Struct) -> Struct:
    """Returns a Struct of construct as one that can be traced."""
    return declared if isinstance(declared, Struct) else Struct(*declared.subcons)


def _text(source: Source, whole: ByteRange, node: s.TextNode) -> Iterator[ByteRange]:
    """Yields the length and the bytes of a text."""
    length = _number(source, whole, "length", node.length, "bytes of the text")
    yield length
    yield from _texts(source, whole, ["text"], [length.end, whole.end], "UTF-8")


def _texts(source: Source, whole: ByteRange, names: Iterable[str], starts: Sequence[int], type_: str) -> Iterator[ByteRange]:
    """Yields texts that follow each other, given their starts and the end of the last one."""
    for name, (start, end) in zip(names, pairwise(starts), strict=False):
        text = decode_text(source.view(start, end - start))
        yield whole.part(name, start, end, s.BytesNode(Constant(end - start)), type_, value=text)


def _line_starts(source: Source, whole: ByteRange) -> list[int]:
    """Returns the start of each line, and the end of the last one."""
    ends = whole.start + 1 + np.flatnonzero(np.frombuffer(source.view(whole.start, whole.nbytes), np.uint8) == ord("\n"))
    return [whole.start, *ends[ends < whole.end].tolist(), whole.end]


def _size(node: s.Node, context: Any) -> int:
    """Returns the size of a node in bytes; 0 if it varies."""
    node = select(node, context)
    if isinstance(node, s.RefNode):
        return struct_of(node.declared).size or 0
    return s.Schema("").size(node) or 0


def _number(source: Source, whole: ByteRange, name: str, declared: s.Node, doc: str) -> ByteRange:
    """Returns the number at the start of a range."""
    node = select(declared, whole.context)
    value = next(_numbers(source, node, whole.start, range(1), whole.context))
    return whole.part(name, whole.start, whole.start + _size(node, whole.context), node, doc=doc, value=value)


def _numbers(source: Source, node: s.Node, start: int, indices: range, context: Any) -> Iterator[Any]:
    """Yields the numbers at `indices` of an array at byte `start`; None if cut, and for blocks."""
    if isinstance(node, s.NumberNode):
        order = byte_order(context) if node.order == "file" else BIG if node.order == BIG else LITTLE
        stored = StoredNumbers(source, start, max(source.size - start, 0) // node.size, node.of, order)
        for first in range(indices.start, indices.stop, SHORT):
            array = stored[first : min(first + SHORT, indices.stop)]
            if node.kind.startswith(("bf16", "f8")):
                array = widen(array.astype(array.dtype.newbyteorder("=")).view(node.of.dtype))
            yield from array.tolist()
    yield from repeat(None)


def plain(value: Any) -> Any:
    """Returns a parsed value as Python's own; None if it is long or a struct."""
    if isinstance(value, np.ndarray):
        numbers = widen(value).reshape(-1).tolist() if value.size <= SHORT else None
        return numbers[0] if numbers and len(numbers) == 1 else numbers
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (dict, Record)) or (isinstance(value, (bytes, list)) and len(value) > SHORT):
        return None
    return value


def _index(i: int, dims: Sequence[int]) -> str:
    """Returns the indices of element `i`, one for each dim, as in paths."""
    return STEP.join(map(str, np.unravel_index(i, dims))) or "0"


def type_text(node: s.Node, context: Any, count: int | None = None) -> str:
    """Returns the type of a node: ``u32``, ``text after u64``, ``f16[out, in // 64]``."""
    node = select(node, context)

    def inner(part: s.Node) -> str:
        text = type_text(part, context)
        return f"({text})" if " " in text else text

    match node:
        case s.NumberNode():
            return node.kind
        case s.CodeNode():
            return f"{inner(node.number)} ({node.table.kind} type)"
        case s.TextNode():
            return f"text after {inner(node.length)}"
        case s.ListNode():
            return f"{inner(node.item)}[{node.count if count is None else count}]"
        case s.CountedNode():
            return f"{inner(node.item)}[] after {inner(node.count)}"
        case s.ArrayNode():
            return f"{inner(node.item)}[{', '.join(map(outermost, node.dims))}]"
        case s.PaddingNode():
            return f"padding to {node.to(context)}"
        case s.LinesNode():
            return "lines key=value"
        case s.JsonNode():
            return f"JSON {node.kind}"
        case s.RefNode():
            return node.name
    return type(node).__name__.removesuffix("Node").lower()
