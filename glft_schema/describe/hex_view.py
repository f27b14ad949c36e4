"""A byte map as lines for a terminal: a description of each range, then its bytes in hex.

header -> version: u32 = 3
  1, 2 or 3
  0x00000004  03 00 00 00                                      ....
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby, islice

import numpy as np

import glft_schema.describe.nodes as s
from glft_schema.codec.numbers import NamedBits
from glft_schema.codec.trace import STEP
from glft_schema.describe.byte_map import ByteMap
from glft_schema.describe.byte_range import FIELD, UNCLAIMED, ByteRange
from glft_schema.display import format_value
from glft_schema.errors import FormatError, OptionError, quote
from glft_schema.storage.source import BytesSource
from glft_schema.tensor_types import TensorType

PER_LINE = 16  # bytes of a line
FOLDED = 4 * PER_LINE  # bytes: longer ranges are folded
FIRST = 2  # lines of a folded range, and blocks of a payload
INDENT = "  "

# ANSI codes, without backgrounds, black or white: they suit dark and light terminals.
PLAIN_STYLES: dict[str, str] = {}
# fmt: off
STYLES = {
    "path":    "1",     # bold
    "type":    "36",    # cyan
    "value":   "32",    # green
    "doc":     "2",     # faint
    "offset":  "2",
    "number":  "36",
    "text":    "32",
    "payload": "33",    # yellow
    "none":    "2",     # padding and gaps
    UNCLAIMED: "1;31",  # bold, red
}
# fmt: on


class HexView:
    """Writes lines about a byte map.

    Args:
        map: the byte map.
        width: of lines, in columns. Paths may exceed it.
        styles: the terminal code of each style.
        fault: the error of a broken file, which is marked above its bytes.
    """

    def __init__(
        self, map: ByteMap, width: int = 80, styles: dict[str, str] = PLAIN_STYLES, fault: FormatError | None = None
    ) -> None:
        self._map = map
        self._fault = fault
        self._width = width
        self._styles = styles
        self._digits = max(8, len(f"{map.nbytes:x}"))
        self._last_doc = ""  # not repeated

    def whole(self) -> Iterator[str]:
        """Yields lines about the whole file, with long ranges folded."""
        for byte_range in self._map:
            yield from self._mark(byte_range, len(byte_range.tensors) > 1)
            yield from self._fold(byte_range)
        if unclaimed := self._map.unclaimed:
            nbytes = sum(byte_range.nbytes for byte_range in unclaimed)
            yield self._paint(f"{nbytes:,} bytes are not covered by any declared field", UNCLAIMED)

    def part(self, start: int, end: int) -> Iterator[str]:
        """Yields lines about the bytes from `start` to `end`, expanded down to elements."""
        last = ""
        for byte_range in self._map.between(start, end):
            owner = self._owner(byte_range)
            yield from self._mark(byte_range, owner not in (last, ""))
            last = owner
            yield from self._open(byte_range, start, end)

    def _owner(self, byte_range: ByteRange) -> str:
        """Returns a line with the key or tensors of a range, whose path may have only an index."""
        if byte_range.key is not None:
            return f"of key {quote(byte_range.key)}"
        if len(byte_range.tensors) > 1:
            return f"shared by tensors {', '.join(map(quote, byte_range.tensors))}"
        return f"of tensor {quote(byte_range.tensor)}" if byte_range.tensor is not None else ""

    def tensor(self, name: str) -> Iterator[str]:
        """Yields lines about a tensor: its row, and the start of each field of its payload."""
        for byte_range in self._map.tensors[name]:
            yield from self._mark(byte_range, len(byte_range.tensors) > 1)
            if byte_range.value is not None or not self._map.parts(byte_range):
                yield from self._fold(byte_range)
                continue
            if isinstance(byte_range.node, s.ArrayNode) and byte_range.node.weights:
                end = max(block.end for block in islice(self._map.inside(byte_range), FIRST))
            else:
                end = min(byte_range.end, byte_range.start + FIRST * PER_LINE)
            yield from self._open(byte_range, byte_range.start, end)
            yield from self._omit(byte_range, end)

    def _mark(self, byte_range: ByteRange, with_owner: bool) -> Iterator[str]:
        """Yields lines about a range: its owner, and the fault if that is in the range."""
        if with_owner:
            yield self._owner(byte_range)
        if self._fault and byte_range.start <= (self._fault.offset or 0) < byte_range.end:
            yield self._paint(f"fault: {self._fault.text}", UNCLAIMED)

    def _fold(self, byte_range: ByteRange) -> Iterator[str]:
        yield from self._heading(byte_range)
        end = byte_range.end if byte_range.nbytes <= FOLDED else byte_range.start + FIRST * PER_LINE
        yield from self._hex(byte_range, byte_range.start, end)
        yield from self._omit(byte_range, end)

    def _omit(self, byte_range: ByteRange, end: int) -> Iterator[str]:
        """Yields a line about the bytes from `end` on, which are omitted."""
        if end < byte_range.end:
            verb = "expands" if self._map.parts(byte_range) else "shows"
            text = f"... {byte_range.end - end:,} more bytes: --range {end:#x}:{byte_range.end:#x} {verb} them"
            yield INDENT + self._paint(text, "doc")

    def _open(self, byte_range: ByteRange, start: int, end: int) -> Iterator[str]:
        if self._is_run(byte_range):
            yield from self._run(byte_range, start, end)
        elif isinstance(byte_range.node, s.TextNode) or not self._map.parts(byte_range):
            yield from self._heading(byte_range)
            yield from self._hex(byte_range, max(start, byte_range.start), min(end, byte_range.end))
        else:
            for part in self._map.inside(byte_range, start, end):
                if isinstance(part.node, s.RefNode) and isinstance(byte_range.node, s.ArrayNode):  # a block, not cut
                    yield self._paint(self._block(byte_range.node.weights, part), "path")
                yield from self._open(part, start, end)

    def _block(self, weights: int, block: ByteRange) -> str:
        """Describes a block in a line: type, row, weights, single numbers, decoded weights."""
        parts = (part for part in self._map.inside(block) if isinstance(part.value, (int, float)))
        numbers = [f"{part.name} = {value_text(part)}" for part in parts]
        type_ = next(part.value for part in self._map.tensors[block.tensor or ""] if isinstance(part.value, TensorType))
        row, index = block.path.split(STEP)[-2:]
        stored = BytesSource(bytes(self._map.source.view(block.start, block.nbytes)))
        with suppress(OptionError):  # if the type's formula needs torch, which is not installed
            fields = type_.cut(stored, 0, (weights,), range(1), range(weights), self._map.byte_order)
            decoded = type_.decode(fields, weights).reshape(-1).tolist()
            numbers.append(f"decoded {' '.join(f'{number:.4g}' for number in decoded)}")
        first = int(index) * weights
        text = f"{type_} row {row}, weights {first}..{first + weights - 1}: {', '.join(numbers)}"
        return text if len(text) <= self._width else f"{text[: self._width - 4].rpartition(' ')[0]} ..."

    def _is_run(self, byte_range: ByteRange) -> bool:
        """Tells whether a range is an array of numbers, shown several to a line."""
        if not isinstance(byte_range.node, (s.ArrayNode, s.ListNode)) or not self._map.parts(byte_range):
            return False
        return isinstance(next(self._map.inside(byte_range)).node, s.NumberNode)

    def _run(self, byte_range: ByteRange, start: int, end: int) -> Iterator[str]:
        yield from self._heading(byte_range, with_value=False)
        parts = self._map.inside(byte_range, start, end)
        for _, line in groupby(parts, lambda part: (part.start - byte_range.start) // PER_LINE):
            numbers = list(line)
            yield from self._hex(byte_range, max(start, numbers[0].start), min(end, numbers[-1].end))
            index = numbers[0].path[len(byte_range.path) + len(STEP) :]
            values = " ".join(value_text(number) for number in numbers)
            for text in textwrap.wrap(f"{index}: {values}", max(self._width - 2 * len(INDENT), 20), subsequent_indent=INDENT):
                yield 2 * INDENT + self._paint(text, "value")

    def _heading(self, byte_range: ByteRange, with_value: bool = True) -> Iterator[str]:
        path = byte_range.path or UNCLAIMED
        if byte_range.kind != FIELD and byte_range.path:
            path = f"{path} ({byte_range.kind})"
        value = value_text(byte_range) if with_value else ""
        type_ = byte_range.type if value else f"{byte_range.type}, {byte_range.nbytes:,} byte{'s' * (byte_range.nbytes > 1)}"
        style = UNCLAIMED if byte_range.kind == UNCLAIMED else "path"
        if len(path) + 2 + len(type_) + (3 + len(value) if value else 0) <= self._width:
            yield f"{self._paint(path, style)}: {self._about(type_, value)}"
        else:
            room = max(self._width - len(INDENT) - len(type_) - 3, 20)
            value = value if len(value) <= room else f"{value[: room - 3]}..."
            yield f"{self._paint(path, style)}:"
            yield INDENT + self._about(type_, value)
        if byte_range.doc != self._last_doc:
            for line in textwrap.wrap(byte_range.doc, self._width - len(INDENT)):
                yield INDENT + self._paint(line, "doc")
        self._last_doc = byte_range.doc

    def _about(self, type_: str, value: str) -> str:
        return self._paint(type_, "type") + (f" = {self._paint(value, 'value')}" if value else "")

    def _hex(self, byte_range: ByteRange, start: int, end: int) -> Iterator[str]:
        style = hue(byte_range)
        for at in range(start, end, PER_LINE):
            stored = bytes(self._map.source.view(at, min(PER_LINE, end - at)))
            letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in stored)
            digits = self._paint(stored.hex(" "), style) + "   " * (PER_LINE - len(stored))
            yield f"{INDENT}{self._paint(f'0x{at:0{self._digits}x}', 'offset')}  {digits}  {self._paint(letters, style)}"

    def _paint(self, text: str, style: str) -> str:
        code = self._styles.get(style)
        return f"\x1b[{code}m{text}\x1b[0m" if code else text


def hue(byte_range: ByteRange) -> str:
    if byte_range.kind != FIELD:
        return UNCLAIMED if byte_range.kind == UNCLAIMED else "none"
    node = byte_range.node.item if isinstance(byte_range.node, s.ListNode) else byte_range.node
    if isinstance(node, s.ArrayNode) or (node is None and byte_range.type != "JSON"):
        return "payload"
    return (
        "text" if isinstance(node, (s.TextNode, s.LinesNode, s.BytesNode)) or byte_range.type.startswith("JSON") else "number"
    )


def value_text(byte_range: ByteRange) -> str:
    """Returns the value of a range in printable characters; empty if it has none."""
    value = byte_range.value
    if value is None:
        return ""
    if isinstance(byte_range.node, s.CodeNode):
        code = byte_range.node.table.code_of(value) if hasattr(value, "code") else str(value)
        return str(value) if code == str(value) else f"{code}, {value}"
    if isinstance(byte_range.node, s.NumberNode) and byte_range.node.bits:
        return str(NamedBits(value, dict(byte_range.node.bits)))
    if isinstance(byte_range.node, (s.NumberNode, s.ArrayNode)) and not isinstance(value, (list, np.ndarray)):
        return f"{float(value):.7g}" if byte_range.type.startswith(("f16", "bf16", "f32")) else str(value)
    return quote(format_value(value, byte_range.type), 200)
