"""Reads the values and parts of a file according to the nodes of its schema.

A node may depend on earlier fields; a `Scope` has their values. Only the requested bytes are read.
Elements of different sizes, such as texts, are all located at the first request.
"""

from __future__ import annotations

import math
import operator
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from construct.expr import opnames

import glft_schema.codec.expressions as e
import glft_schema.describe.nodes as s
from glft_schema.codec.arrays import StoredStrings
from glft_schema.codec.context import BIG, LITTLE, ByteOrder
from glft_schema.storage.source import Source
from glft_schema.tensor_types.engine.conversions import widen

COUNT = "count"  # the part before the elements of a list
SHORT = 256  # elements: longer lists have no value
OPERATORS = {sign: operation for operation, sign in opnames.items() if operation not in (operator.neg, operator.pos)}


def evaluate(expression: e.Expression, find: Callable[[e.Reference], Any]) -> Any:
    """Returns the value of an expression; `find` returns the values of references."""
    match expression:
        case e.Constant():
            return expression.value
        case e.Reference():
            return find(expression)
        case e.Operation():
            return OPERATORS[expression.sign](evaluate(expression.left, find), evaluate(expression.right, find))
        case e.Length():
            of = evaluate(expression.of, find)
            return e.nbytes(of) if expression.in_bytes else len(of)
        case e.Reversed():
            return evaluate(expression.of, find)[::-1]
        case e.ValueOfKey():
            return evaluate(expression.mapping, find).get(expression.key, expression.default)
        case e.Matches():
            return re.fullmatch(expression.pattern, evaluate(expression.of, find)) is not None


def sizes(dims: Iterable[e.Expression], evaluate: Callable[[e.Expression], Any]) -> list[int]:
    """Returns the sizes of an array, outermost first. A dim may be a list, such as ``dims``."""
    values = [evaluate(dim) for dim in dims]
    return [size for value in values for size in (value if isinstance(value, list) else [value])]


@dataclass
class Scope:
    """The fields that an expression may refer to.

    Attributes:
        schema: the schema of the structs.
        fields: the values of a struct's known fields, by name.
        outer: the scope of the struct around it.
    """

    schema: s.Schema
    fields: dict[str, Any] = field(default_factory=dict)
    outer: Scope | None = None

    def evaluate(self, expression: e.Expression) -> Any:
        """Returns the value of an expression. Raises KeyError for an unknown field."""
        return evaluate(expression, self._field)

    def _field(self, reference: e.Reference) -> Any:
        scope = self
        for _ in range(reference.up):
            scope = scope.outer or scope
        while reference.of_root and scope.outer:
            scope = scope.outer
        value: Any = scope.fields
        for name in reference.names:
            value = value[name]
        return value


@dataclass(frozen=True)
class NodePart:
    """A part of a span: the bytes in ``[start, end)``. Its path ends with `name`."""

    name: str
    start: int
    end: int
    node: s.Node
    scope: Scope
    doc: str = ""
    type: str = ""  # only of a text's bytes and of a line


class NodeReader:
    """Reads nodes from `source`; `order` is the byte order of the file."""

    def __init__(self, source: Source, order: ByteOrder) -> None:
        self._source = source
        self.order = order
        self._starts: dict[int, Sequence[int]] = {}  # of a list's elements and its end, by its first byte

    def select(self, node: s.Node, scope: Scope) -> s.Node:
        """Returns the alternative of a node that `scope` selects, or the node itself."""
        while isinstance(node, (s.EitherNode, s.SwitchNode)):
            node = s.choose(node, scope.evaluate)
        return node

    def size(self, node: s.Node, scope: Scope) -> int | None:
        """Returns the size of a node in bytes; None if it depends on the bytes."""
        node = self.select(node, scope)
        if isinstance(node, (s.BytesNode, s.LinesNode, s.JsonTableNode)):
            return int(scope.evaluate(node.size)) if node.size else None
        if isinstance(node, (s.NumbersNode, s.BlockArrayNode)):
            item = node.number if isinstance(node, s.NumbersNode) else node
            return math.prod(sizes(node.dims, scope.evaluate)) * item.size
        return scope.schema.size(node)

    def end(self, node: s.Node, start: int, scope: Scope) -> int:
        """Returns the end of a node that starts at byte `start`."""
        node = self.select(node, scope)
        if (size := self.size(node, scope)) is not None:
            return start + size
        if isinstance(node, s.TextNode):
            first = self.end(node.length, start, scope)
            return first + int(self.value(node.length, start, first, scope))
        if isinstance(node, s.PaddingNode):
            return start + -start % int(scope.evaluate(node.to))
        if isinstance(node, (s.BytesNode, s.PayloadsNode)):
            return self._source.size
        last = start
        for part in self.parts(node, start, None, scope):
            last = part.end
        return last

    def value(self, node: s.Node, start: int, end: int, scope: Scope) -> Any:
        """Returns the value of a node; None if it is long or a struct."""
        node = self.select(node, scope)
        match node:
            case s.NumberNode():
                return self.numbers(node, start, 1)[0]
            case s.DerivedNode() if node.value:
                return scope.evaluate(node.value)
            case s.CodeNode():
                code = self.value(node.number, start, end, scope)
                return node.table[code] if code in node.table else code  # noqa: SIM401 - it is no dict
            case s.TextNode():
                first = self.end(node.length, start, scope)
                return self.text(first, end)
            case s.BytesNode():
                return bytes(self._source.view(start, end - start)) if end - start <= SHORT else None
            case s.NumbersNode() if end - start <= SHORT * node.number.size:
                numbers = self.numbers(node.number, start, (end - start) // node.number.size)
                return numbers[0] if len(numbers) == 1 else numbers
            case s.ListNode() | s.CountedNode():
                parts = (part for part in self.parts(node, start, end, scope) if part.name != COUNT)
                begin = list(islice(parts, SHORT + 1))
                if len(begin) <= SHORT and all(isinstance(part.node, PLAIN) for part in begin):
                    return [self.value(part.node, part.start, part.end, part.scope) for part in begin]
        return None

    def part_value(self, part: NodePart) -> Any:
        """Returns the value of a part, as `value` does."""
        if part.type:
            return self.text(part.start, part.end)
        return self.value(part.node, part.start, part.end, part.scope)

    def text(self, start: int, end: int) -> str:
        """Returns the bytes from `start` to `end` as UTF-8 text."""
        return str(self._source.view(start, end - start), "utf-8", "surrogateescape")

    def numbers(self, number: s.NumberNode, start: int, count: int) -> list[Any]:
        """Returns `count` numbers from byte `start`."""
        view = self._source.view(start, count * number.size)
        stored = np.frombuffer(view, number.of.numpy_dtype(self._order_of(number)))
        if number.kind.startswith(("bf16", "f8")):
            stored = widen(stored.astype(stored.dtype.newbyteorder("=")).view(number.of.dtype))
        return list(stored.tolist())

    def _order_of(self, number: s.NumberNode) -> ByteOrder:
        return self.order if number.order == "file" else BIG if number.order == BIG else LITTLE

    def count(self, node: s.Node, start: int, end: int, scope: Scope) -> int:
        """Returns the number of parts of a span."""
        match node:
            case s.NumbersNode() | s.BlockArrayNode():
                return math.prod(sizes(node.dims, scope.evaluate))
            case s.ListNode():
                return int(scope.evaluate(node.count))
            case s.CountedNode():
                return int(self.value(node.count, start, end, scope)) + 1
            case s.TextNode():
                return 2
            case s.RefNode():
                return len(scope.schema.structs[node.name].fields)
            case s.LinesNode():
                return len(self._line_starts(start, end)) - 1
        return 0

    def parts(
        self, node: s.Node, start: int, end: int | None, scope: Scope, low: int = 0, high: int | None = None, doc: str = ""
    ) -> Iterator[NodePart]:
        """Yields the parts of a span that have a byte in ``[low, high)``, one level deep.

        Args:
            node: the node of the span, with alternatives resolved.
            start: its first byte.
            end: its end, if known.
            scope: the fields that the node depends on.
            low: the start of the requested bytes.
            high: their end; by default the end of the span.
            doc: the sentence of parts without their own.
        """
        high = high if high is not None else self._source.size if end is None else end
        match node:
            case s.NumbersNode() | s.BlockArrayNode():
                item = node.number if isinstance(node, s.NumbersNode) else s.RefNode(node.block)
                yield from self._items(start, item, sizes(node.dims, scope.evaluate), scope, low, high, doc)
            case s.ListNode():
                yield from self._items(start, node.item, [int(scope.evaluate(node.count))], scope, low, high, doc)
            case s.CountedNode():
                first = self.end(node.count, start, scope)
                if low < first:
                    yield NodePart(COUNT, start, first, node.count, scope, "how many follow")
                count = int(self.value(node.count, start, first, scope))
                yield from self._items(first, node.item, [count], scope, low, high, doc)
            case s.TextNode():
                first = self.end(node.length, start, scope)
                last = first + int(self.value(node.length, start, first, scope))
                if low < first:
                    yield NodePart("length", start, first, node.length, scope, "bytes of the text")
                if low < last and high > first and last > first:
                    yield NodePart("text", first, last, s.BytesNode(e.Constant(last - first)), scope, doc, "UTF-8")
            case s.RefNode():
                yield from self._fields(node, start, scope, low, high)
            case s.LinesNode() if end is not None:
                for i, first, last in _overlapping(self._line_starts(start, end), low, high):
                    yield NodePart(
                        f"line {i + 1}", first, last, s.BytesNode(e.Constant(last - first)), scope, doc, "line key=value"
                    )

    def _fields(self, node: s.RefNode, start: int, outer: Scope, low: int, high: int) -> Iterator[NodePart]:
        scope = Scope(outer.schema, {}, outer)
        for part in outer.schema.structs[node.name].fields:
            if start >= high:
                return
            settled = self.select(part.node, scope)
            end = self.end(settled, start, scope)
            scope.fields[part.name] = self.value(settled, start, end, scope)
            if end > max(low, start):
                yield NodePart(part.name, start, end, settled, scope, part.doc)
            start = end

    def _items(
        self, first: int, item: s.Node, dims: Sequence[int], scope: Scope, low: int, high: int, doc: str
    ) -> Iterator[NodePart]:
        """Yields the elements of an array of these dims from byte `first`."""
        count, node = math.prod(dims), self.select(item, scope)
        if size := self.size(node, scope):
            for i in range(max((low - first) // size, 0), min(count, -(-(high - first) // size))):
                yield NodePart(_index(i, dims), first + i * size, first + (i + 1) * size, node, scope, doc)
            return
        for i, start, end in _overlapping(self._starts_of(node, first, count, scope), low, high):
            yield NodePart(str(i), start, end, node, scope, doc)

    def _starts_of(self, node: s.Node, first: int, count: int, scope: Scope) -> Sequence[int]:
        """Returns the starts of elements of different sizes, and the end of the last one."""
        if first not in self._starts:
            number = self.select(node.length, scope) if isinstance(node, s.TextNode) else None
            if isinstance(number, s.NumberNode):
                texts = StoredStrings(self._source, first, count, number.of, self._order_of(number))
                ends = (first + texts.ends).tolist()
            else:
                ends, at = [], first
                for _ in range(count):
                    at = self.end(node, at, scope)
                    ends.append(at)
            self._starts[first] = [first, *ends]
        return self._starts[first]

    def _line_starts(self, start: int, end: int) -> Sequence[int]:
        if start not in self._starts:
            stored = np.frombuffer(self._source.view(start, end - start), np.uint8)
            ends = start + 1 + np.flatnonzero(stored == ord("\n"))
            self._starts[start] = [start, *(int(at) for at in ends if at < end), end]
        return self._starts[start]


PLAIN = (s.NumberNode, s.CodeNode, s.TextNode)  # lists of these have a value


def _overlapping(starts: Sequence[int], low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """Yields index, start and end of the elements with a byte in ``[low, high)``."""
    for i in range(max(bisect_right(starts, low) - 1, 0), len(starts) - 1):
        if starts[i] >= high:
            return
        if starts[i + 1] > max(low, starts[i]):
            yield i, starts[i], starts[i + 1]


def _index(i: int, dims: Sequence[int]) -> str:
    """Returns the indices of element `i`, one for each dim, as in paths."""
    steps: list[int] = []
    for dim in reversed(dims):
        i, step = divmod(i, dim)
        steps.insert(0, step)
    return " -> ".join(map(str, steps)) or "0"


def type_text(node: s.Node, scope: Scope, reader: NodeReader, count: int | None = None) -> str:
    """Returns the type of a node: ``u32``, ``text after u64``, ``f16[out, in // 64]``."""
    node = reader.select(node, scope)

    def inner(part: s.Node) -> str:
        text = type_text(part, scope, reader)
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
        case s.NumbersNode() | s.BlockArrayNode():
            item = node.number.kind if isinstance(node, s.NumbersNode) else node.block
            return f"{item}[{', '.join(map(e.outermost, node.dims))}]"
        case s.PaddingNode():
            return f"padding to {scope.evaluate(node.to)}"
        case s.LinesNode():
            return "lines key=value"
        case s.JsonNode():
            return f"JSON {node.kind}"
        case s.RefNode():
            return node.name
    return type(node).__name__.removesuffix("Node").lower()
