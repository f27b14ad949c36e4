"""The parts of a byte range, one level deep: elements of arrays, fields of structs, the length and
bytes of a text.

Elements of equal size are at multiples of it, and an array of strings knows their ends. All other
parts are located by their own constructs, which parse the range again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise, repeat
from typing import Any, NamedTuple

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
from glft_schema.tensor_types.engine.conversions import widen

SHORT = 256  # elements, or bytes: longer values are omitted


class Part(NamedTuple):
    """The bytes of a part in ``[start, end)``. Its path ends with `name`."""

    name: str
    start: int
    end: int
    node: s.Node
    context: Any  # the fields that the node may depend on
    doc: str | None = None  # None: the sentence of the range
    value: Any = None
    type: str = ""  # the type of the node by default


def select(node: s.Node, context: Any) -> s.Node:
    """Returns the alternative of a node that applies in `context`, or the node itself."""
    while isinstance(node, (s.EitherNode, s.SwitchNode)):
        node = s.choose(node, context)
    return node


def dims_of(node: s.ListNode | s.ArrayNode, context: Any) -> list[int]:
    """Returns the sizes of an array, outermost first. A dim may be a list, such as ``dims``."""
    values = [dim(context) for dim in node.dims]
    return [int(size) for value in values for size in (value if isinstance(value, list) else [value])]


def count_parts(source: Source, node: s.Node, start: int, end: int, context: Any) -> int:
    """Returns the number of parts of a range."""
    match node:
        case s.ArrayNode() | s.ListNode():
            return math.prod(dims_of(node, context))
        case s.CountedNode():
            return int(_number(source, node.count, start, context)) + 1
        case s.TextNode():
            return 2
        case s.RefNode():
            return len(struct_of(node.declared).fields)
        case s.LinesNode():
            return len(_line_starts(source, start, end)) - 1
    return 0


def parts_of(
    source: Source, node: s.Node, start: int, end: int, value: Any, context: Any, low: int, high: int
) -> Iterator[Part]:
    """Yields the parts of a range, at least all that have a byte in ``[low, high)``.

    Args:
        source: the file.
        node: the node of the range, with alternatives resolved.
        start: its first byte.
        end: its end.
        value: its parsed value.
        context: the fields that the node depends on.
        low: the start of the requested bytes.
        high: their end.
    """
    match node:
        case s.ArrayNode() | s.ListNode():
            yield from _items(source, node, dims_of(node, context), start, value, context, low, high)
        case s.CountedNode():
            first = start + _size(node.count, context)
            count = int(_number(source, node.count, start, context))
            yield Part("count", start, first, select(node.count, context), context, "how many follow", count)
            yield from _items(source, node, [count], first, value, context, low, high)
        case s.TextNode():
            first = start + _size(node.length, context)
            length = select(node.length, context)
            yield Part("length", start, first, length, context, "bytes of the text", _number(source, length, start, context))
            yield _text("text", source, first, end, context, "UTF-8")
        case s.RefNode():
            yield from _fields(source, node, start, context)
        case s.LinesNode():
            for i, (first, last) in enumerate(pairwise(_line_starts(source, start, end))):
                yield _text(f"line {i + 1}", source, first, last, context, "line key=value")


def _items(
    source: Source,
    node: s.ArrayNode | s.ListNode | s.CountedNode,
    dims: Sequence[int],
    start: int,
    value: Any,
    context: Any,
    low: int,
    high: int,
) -> Iterator[Part]:
    """Yields the elements of an array of these dims from byte `start`."""
    item, count = select(node.item, context), math.prod(dims)
    type_ = type_text(item, context)
    if isinstance(value, StoredStrings):
        ends = value.ends
        for i in range(int(ends.searchsorted(low - start, "right")), count):
            first = start + (int(ends[i - 1]) if i else 0)
            if first >= high:
                return
            yield Part(str(i), first, start + int(ends[i]), item, context, value=value[i], type=type_)
    elif isinstance(item, (s.NumberNode, s.RefNode)) and (size := _size(item, context)):
        indices = range(max((low - start) // size, 0), min(count, -(-(high - start) // size)))
        for i, number in zip(indices, _numbers(source, item, start, indices, context), strict=False):
            first = start + i * size
            yield Part(_index(i, dims), first, first + size, item, context, value=number, type=type_)
    else:
        assert not isinstance(node, s.ArrayNode)  # whose items have one size
        cursor = Cursor(source, start)
        for i in range(count):
            first = cursor.tell()
            if first >= high:
                return
            parsed = node.declared._parse(cursor, context, "(parsing)")
            yield Part(str(i), first, cursor.tell(), item, context, value=plain(parsed), type=type_)


def _fields(source: Source, node: s.RefNode, start: int, context: Any) -> Iterator[Part]:
    """Yields the fields of a struct, from a traced parse."""
    trace = Trace()
    _traced(node.declared)._parse(Cursor(source, start), _nested(context, trace=trace), "(parsing)")
    for span in trace.spans:
        if STEP not in span.path:
            field = field_of(span.context["_subcons"][span.path])
            settled = select(field.node, span.context)
            yield Part(span.path, span.start, span.end or 0, settled, span.context, field.doc, plain(span.value))


@cache
def _traced(declared: construct.Struct) -> Struct:
    """Returns a Struct of construct as one that can be traced."""
    return declared if isinstance(declared, Struct) else Struct(*declared.subcons)


def _nested(context: Any, **params: Any) -> Any:
    return Context({**context, "_params": Parameters({**context["_params"], **params})})


def _text(name: str, source: Source, start: int, end: int, context: Any, type_: str) -> Part:
    text = decode_text(source.view(start, end - start))
    return Part(name, start, end, s.BytesNode(Constant(end - start)), context, value=text, type=type_)


def _size(node: s.Node, context: Any) -> int:
    """Returns the size of a node in bytes; 0 if it varies."""
    node = select(node, context)
    if isinstance(node, s.RefNode):
        return struct_of(node.declared).size or 0
    return s.Schema("").size(node) or 0


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


def _number(source: Source, node: s.Node, start: int, context: Any) -> Any:
    return next(_numbers(source, select(node, context), start, range(1), context))


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
    steps: list[int] = []
    for dim in reversed(dims):
        i, step = divmod(i, dim)
        steps.insert(0, step)
    return STEP.join(map(str, steps)) or "0"


def _line_starts(source: Source, start: int, end: int) -> list[int]:
    """Returns the start of each line, and the end of the last one."""
    ends = start + 1 + np.flatnonzero(np.frombuffer(source.view(start, end - start), np.uint8) == ord("\n"))
    return [start, *ends[ends < end].tolist(), end]


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
