"""A byte map as lines for a terminal: a description of each stretch, then its bytes in hex.

header -> version: u32 = 3
  1, 2 or 3
  00000004  03 00 00 00                                      ....
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby, islice

import glft_schema.describe.nodes as s
from glft_schema.codec.trace import STEP
from glft_schema.describe.byte_map import FIELD, UNCLAIMED, ByteMap, Stretch
from glft_schema.display import displayed
from glft_schema.errors import FormatError, OptionError, shown
from glft_schema.storage.source import BytesSource
from glft_schema.tensor_types import TensorType

PER_LINE = 16  # bytes of a line
FOLDED = 4 * PER_LINE  # bytes: longer stretches are folded
FIRST = 2  # lines of a folded stretch, and blocks of a payload
INDENT = "  "

# Codes of ANSI terminals. Only hues, which suit dark and light terminals.
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
        """Yields lines about the whole file, with long stretches folded."""
        for stretch in self._map:
            if len(stretch.tensors) > 1:
                yield self._owner(stretch)
            yield from self._mark(stretch)
            yield from self._folded(stretch)
        if unclaimed := self._map.unclaimed:
            nbytes = sum(stretch.nbytes for stretch in unclaimed)
            yield self._paint(f"{nbytes:,} bytes are not covered by any declared field", UNCLAIMED)

    def part(self, start: int, end: int) -> Iterator[str]:
        """Yields lines about the bytes from `start` to `end`, opened down to elements."""
        owner = None
        for stretch in self._map.between(start, end):
            if self._owner(stretch) not in (owner, ""):
                yield self._owner(stretch)
            owner = self._owner(stretch)
            yield from self._mark(stretch)
            yield from self._opened(stretch, start, end)

    def _owner(self, stretch: Stretch) -> str:
        """Returns the key or the tensors of a stretch's row, of which the path has the index."""
        if stretch.key is not None:
            return f"of key {shown(stretch.key)}"
        if len(stretch.tensors) > 1:
            return f"shared by tensors {', '.join(map(shown, stretch.tensors))}"
        return f"of tensor {shown(stretch.tensor)}" if stretch.tensor is not None else ""

    def tensor(self, name: str) -> Iterator[str]:
        """Yields lines about a tensor: its row, and the start of each field of its payload."""
        for stretch in self._map.of_tensor(name):
            if len(stretch.tensors) > 1:
                yield self._owner(stretch)
            yield from self._mark(stretch)
            if stretch.value is not None or not self._map.parts(stretch):
                yield from self._folded(stretch)
                continue
            if isinstance(stretch.node, s.BlockArrayNode):
                end = max(block.end for block in islice(self._map.inside(stretch), FIRST))
            else:
                end = min(stretch.end, stretch.start + FIRST * PER_LINE)
            yield from self._opened(stretch, stretch.start, end)
            yield from self._fold(stretch, end)

    def _mark(self, stretch: Stretch) -> Iterator[str]:
        """Yields a line about the fault if it is in a stretch."""
        if self._fault and stretch.start <= (self._fault.offset or 0) < stretch.end:
            yield self._paint(f"fault: {self._fault.text}", UNCLAIMED)

    def _folded(self, stretch: Stretch) -> Iterator[str]:
        yield from self._heading(stretch)
        end = stretch.end if stretch.nbytes <= FOLDED else stretch.start + FIRST * PER_LINE
        yield from self._hex(stretch, stretch.start, end)
        yield from self._fold(stretch, end)

    def _fold(self, stretch: Stretch, end: int) -> Iterator[str]:
        """Yields a line about the bytes from `end` on, which are omitted."""
        if end < stretch.end:
            verb = "expands" if self._map.parts(stretch) else "shows"
            text = f"... {stretch.end - end:,} more bytes: --range {end:#x}:{stretch.end:#x} {verb} them"
            yield INDENT + self._paint(text, "doc")

    def _opened(self, stretch: Stretch, start: int, end: int) -> Iterator[str]:
        if self._is_run(stretch):
            yield from self._run(stretch, start, end)
        elif isinstance(stretch.node, s.TextNode) or not self._map.parts(stretch):
            yield from self._heading(stretch)
            yield from self._hex(stretch, max(start, stretch.start), min(end, stretch.end))
        else:
            for part in self._map.inside(stretch, start, end):
                if isinstance(stretch.node, s.BlockArrayNode) and part.node is not None:  # not cut
                    yield self._paint(self._block(stretch.node.weights, part), "path")
                yield from self._opened(part, start, end)

    def _block(self, weights: int, block: Stretch) -> str:
        """Returns a block in a line: type, row and block, fields of one number, decoded weights."""
        parts = (part for part in self._map.inside(block) if isinstance(part.value, (int, float)))
        numbers = [f"{part.name} = {value_text(part)}" for part in parts]
        type_ = next(part.value for part in self._map.tensors[block.tensor or ""] if isinstance(part.value, TensorType))
        row, index = block.path.split(STEP)[-2:]
        stored = BytesSource(bytes(self._map.source.view(block.start, block.nbytes)))
        with suppress(OptionError):  # of a type whose formula is one of torch, which is not installed
            fields = type_.cut(stored, 0, (weights,), range(1), range(weights), self._map.byte_order)
            decoded = type_.decode(fields, weights).reshape(-1).tolist()
            numbers.append(f"decoded {' '.join(f'{number:.4g}' for number in decoded)}")
        first = int(index) * weights
        text = f"{type_} row {row}, weights {first}..{first + weights - 1}: {', '.join(numbers)}"
        return text if len(text) <= self._width else f"{text[: self._width - 4].rpartition(' ')[0]} ..."

    def _is_run(self, stretch: Stretch) -> bool:
        """Tells whether a stretch is an array of numbers, many of which share a line."""
        if not isinstance(stretch.node, (s.NumbersNode, s.ListNode)) or not self._map.parts(stretch):
            return False
        return isinstance(next(self._map.inside(stretch)).node, s.NumberNode)

    def _run(self, stretch: Stretch, start: int, end: int) -> Iterator[str]:
        yield from self._heading(stretch, with_value=False)
        parts = self._map.inside(stretch, start, end)
        for _, line in groupby(parts, lambda part: (part.start - stretch.start) // PER_LINE):
            numbers = list(line)
            yield from self._hex(stretch, max(start, numbers[0].start), min(end, numbers[-1].end))
            index = numbers[0].path[len(stretch.path) + len(STEP) :]
            values = " ".join(value_text(number) for number in numbers)
            for text in textwrap.wrap(f"{index}: {values}", max(self._width - 2 * len(INDENT), 20), subsequent_indent=INDENT):
                yield 2 * INDENT + self._paint(text, "value")

    def _heading(self, stretch: Stretch, with_value: bool = True) -> Iterator[str]:
        path = stretch.path or UNCLAIMED
        if stretch.kind != FIELD and stretch.path:
            path = f"{path} ({stretch.kind})"
        value = value_text(stretch) if with_value else ""
        type_ = stretch.type if value else f"{stretch.type}, {stretch.nbytes:,} byte{'s' * (stretch.nbytes > 1)}"
        style = UNCLAIMED if stretch.kind == UNCLAIMED else "path"
        if len(path) + 2 + len(type_) + (3 + len(value) if value else 0) <= self._width:
            yield f"{self._paint(path, style)}: {self._about(type_, value)}"
        else:
            room = max(self._width - len(INDENT) - len(type_) - 3, 20)
            value = value if len(value) <= room else f"{value[: room - 3]}..."
            yield f"{self._paint(path, style)}:"
            yield INDENT + self._about(type_, value)
        if stretch.doc != self._last_doc:
            for line in textwrap.wrap(stretch.doc, self._width - len(INDENT)):
                yield INDENT + self._paint(line, "doc")
        self._last_doc = stretch.doc

    def _about(self, type_: str, value: str) -> str:
        return self._paint(type_, "type") + (f" = {self._paint(value, 'value')}" if value else "")

    def _hex(self, stretch: Stretch, start: int, end: int) -> Iterator[str]:
        style = hue(stretch)
        for at in range(start, end, PER_LINE):
            stored = bytes(self._map.source.view(at, min(PER_LINE, end - at)))
            letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in stored)
            digits = self._paint(stored.hex(" "), style) + "   " * (PER_LINE - len(stored))
            yield f"{INDENT}{self._paint(f'{at:0{self._digits}x}', 'offset')}  {digits}  {self._paint(letters, style)}"

    def _paint(self, text: str, style: str) -> str:
        code = self._styles.get(style)
        return f"\x1b[{code}m{text}\x1b[0m" if code else text


def hue(stretch: Stretch) -> str:
    if stretch.kind != FIELD:
        return UNCLAIMED if stretch.kind == UNCLAIMED else "none"
    node = stretch.node.item if isinstance(stretch.node, s.ListNode) else stretch.node
    if isinstance(node, (s.NumbersNode, s.BlockArrayNode)) or (node is None and stretch.type != "JSON"):
        return "payload"
    return "text" if isinstance(node, (s.TextNode, s.LinesNode, s.BytesNode)) or stretch.type.startswith("JSON") else "number"


def value_text(stretch: Stretch) -> str:
    """Returns the value of a stretch in printable characters; empty if it has none."""
    value = stretch.value
    if value is None:
        return ""
    if isinstance(stretch.node, s.CodeNode):
        code = stretch.node.table.code_of(value) if hasattr(value, "code") else str(value)
        return str(value) if code == str(value) else f"{code}, {value}"
    if isinstance(stretch.node, (s.NumberNode, s.NumbersNode)) and not isinstance(value, list):
        return f"{float(value):.7g}" if stretch.type.startswith(("f16", "bf16", "f32")) else str(value)
    return shown(displayed(value, stretch.type), 200)
