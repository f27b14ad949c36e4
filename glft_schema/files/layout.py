"""The layout of a file to be written: an offset for each payload, computed before writing."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import construct
from construct.core import evaluate

from glft_schema.codec.construct_errors import our_errors
from glft_schema.codec.context import ByteOrder, Context, byte_order, new_context
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.rules import rule_sets
from glft_schema.codec.structs import Padding, member, unwrap
from glft_schema.errors import FormatError, OptionError, quote
from glft_schema.formats.format import Format
from glft_schema.limits import Limits, current
from glft_schema.storage.tensor_bytes import write_all
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.region import GapBytes, Payload, Zeros, fits, payload_size


class Span(NamedTuple):
    """Consecutive bytes of a file.

    Attributes:
        start: first byte.
        nbytes: its size.
        content: the bytes, or an object that writes them.
    """

    start: int
    nbytes: int
    content: bytes | Payload | GapBytes | Zeros


class Layout(NamedTuple):
    """The planned layout of a file, computed before any payload is read.

    Attributes:
        spans: all of its bytes, in order.
        order: byte order of the payloads.
        nbytes: size of the file.
    """

    spans: tuple[Span, ...]
    order: ByteOrder
    nbytes: int

    @property
    def head(self) -> bytes:
        """The bytes before the first payload."""
        first = self.spans[0].content if self.spans else b""
        return first if isinstance(first, bytes) else b""

    def write(self, stream: Any) -> None:
        """Writes the file to a stream, one payload at a time. Raises as `TensorData` builds."""
        for span in self.spans:
            write_all(stream, span.content) if isinstance(span.content, bytes) else span.content.write(stream)


class _Recorder:
    """A stream that keeps bytes, and the spans of bytes that are written later."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._bytes = bytearray()
        self._at = 0

    def write(self, data: bytes | memoryview) -> int:
        self._bytes += data
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def place(self, content: Payload | GapBytes | Zeros) -> None:
        """Reserves bytes for a payload or padding."""
        if isinstance(content, Zeros) and content.nbytes < len(NO_BYTES):
            self.write(NO_BYTES[: content.nbytes])
            return
        self.end()
        self.spans.append(Span(self._at, content.nbytes, content))
        self._at += content.nbytes

    def end(self) -> None:
        """Ends the span of bytes."""
        if self._bytes:
            self.spans.append(Span(self._at - len(self._bytes), len(self._bytes), bytes(self._bytes)))
            self._bytes.clear()


NO_BYTES = bytes(1 << 12)  # padding that is kept as bytes


def lay_out(
    format: Format, regions: Mapping[str, Any], rules: Any = (), limits: Limits | None = None
) -> tuple[Layout, Context]:
    """Returns the layout of a file, and its built regions, without reading its payloads.

    Args:
        format: the format of the regions.
        regions: by name, with offsets; see `with_offsets`.
        rules: rule sets that the file must satisfy.
        limits: by default the caller's.

    Raises:
        FormatError: if the file cannot be built.
    """
    stream, context = _Recorder(), new_context(False, rules=rule_sets(rules), limits=limits or current())
    with our_errors():
        built = format.struct._build(regions, stream, context, "(building)")
    stream.end()
    return Layout(tuple(stream.spans), byte_order(context), stream.tell()), built


def with_offsets(
    format: Format, regions: Mapping[str, Any], alignment: int = 1, aliases: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Returns `regions` with an offset in each table row. Existing offsets are kept.

    Args:
        format: the format of the regions.
        regions: by name; regions with a default may be missing.
        alignment: payloads begin at multiples of this and of the format's alignment, in bytes.
        aliases: names of rows -> names of earlier rows whose payload they share.

    Raises:
        FormatError: if a row does not fit the format, or only some rows have an offset.
        OptionError: if the alignment is below 1.
        LimitError: if the alignment exceeds the limit.
    """
    if not isinstance(alignment, int) or alignment < 1:
        raise OptionError(f"expected an alignment of at least 1, found {quote(alignment)}")
    current().check("alignment", alignment, "alignment", " bytes")
    names = format.regions
    if unknown := [region for region in regions if region not in names]:
        raise FormatError(f"expected only the regions {', '.join(names)}, found {quote(unknown[0])}")
    rows = [_check_row(row, format, i) for i, row in enumerate(_sequence(regions.get(format.table, []), format.table))]
    with_offset = sum("offset" in row for row in rows)
    if with_offset == len(rows):
        return {"data": {}, **regions, format.table: rows}
    if with_offset:
        problem = f"expected an offset in every row or in none, found one in {with_offset} of {len(rows)} rows"
        raise FormatError(problem, format.table)
    before = {region: value for region, value in regions.items() if region != "data"}
    table = [{**row, "offset": 0} for row in rows]
    start, step, sizes = 0, _known_step(format, regions, alignment), _known_sizes(format, rows)
    known = step is not None and sizes is not None
    if step is None or sizes is None:
        start, context = measure_head(format, {**before, format.table: table})
        step, payloads = math.lcm(alignment, context.get("alignment", 1)), regions.get("data") or {}
        sizes = [payload_size(payloads.get(row["name"]), row) for row in context[format.table]]
    first = start
    while True:
        positions = _positions(rows, sizes, first, step, aliases or {})
        table = [{**row, "offset": position - start} for row, position in zip(rows, positions, strict=True)]
        complete = {"data": {}, **regions, format.table: table}
        if known or step == 1 or _has_size(member(format.row, "offset")):
            return complete
        before_payloads, _ = measure_head(format, {**before, format.table: table})  # offsets in text change its length
        if before_payloads == start:
            return complete
        first = max(first, before_payloads) + (step if before_payloads < start else 0)  # not to alternate
        start = before_payloads


def _known_step(format: Format, regions: Mapping[str, Any], alignment: int) -> int | None:
    """Returns the alignment of payloads, or None if it is known only after the head is built."""
    declared = format.field("alignment")
    if declared is None:
        return 1 if alignment == 1 else None
    name, padding = next((part.name, unwrap(part)) for part in reversed(format.head.subcons) if part.name)
    if not isinstance(padding, Padding) or regions.get(name) is not None:
        return None
    metadata = regions.get("metadata") or {}
    if metadata and not isinstance(metadata, TypedMetadata):
        return None
    try:
        step = declared.value(Context(metadata=metadata))
    except (KeyError, AttributeError):  # depends on other fields
        return None
    is_padded = isinstance(step, int) and step > 0 and evaluate(padding.to, Context(alignment=step)) == step
    return step if is_padded and step % alignment == 0 else None


def _known_sizes(format: Format, rows: Sequence[Any]) -> list[int] | None:
    """Returns the bytes of each row's payload, or None if a row must be checked by building."""
    sizes = []
    for row in rows:
        type_, shape = row.get("dtype"), tuple(format.dims_of(row.get("dims", [])))
        is_row = isinstance(row.get("name"), str) and isinstance(type_, TensorType)
        if not is_row or not type_.is_known or not fits(type_, shape):
            return None
        sizes.append(type_.nbytes(shape))
    return sizes


def measure_head(format: Format, regions: Mapping[str, Any]) -> tuple[int, Any]:
    """Returns the bytes of the regions before the payloads, and the context of their build."""
    stream = io.BytesIO()
    with our_errors():
        context = format.head._build(regions, stream, new_context(False), "(building)")
    return stream.tell(), context


def _positions(rows: Sequence[Any], sizes: Sequence[int], end: int, step: int, aliases: Mapping[str, str]) -> list[int]:
    """Returns the position of each row's payload; the first one is not before `end`."""
    positions: dict[Any, int] = {}
    for row, nbytes in zip(rows, sizes, strict=True):
        if row["name"] not in aliases:
            positions[row["name"]] = -(-end // step) * step
            end = positions[row["name"]] + nbytes
    return [positions[aliases.get(row["name"], row["name"])] for row in rows]


def _has_size(field: construct.Construct) -> bool:
    """Returns whether a field has the same size for all values and in every context."""
    try:
        field.sizeof()
    except (construct.SizeofError, LookupError, AttributeError):
        return False
    return True


def _sequence(value: Any, path: str) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise FormatError(f"expected a sequence, found {quote(value)}", path)
    return value


def _check_row(row: Any, format: Format, number: int) -> Any:
    """Returns `row` after checking the types that the layout depends on."""
    path = f"{format.table} -> {number}"
    if not isinstance(row, Mapping):
        raise FormatError(f"expected a mapping with the row's fields, found {quote(row)}", path)
    for size in _sequence(row.get("dims", []), f"{path} -> dims"):
        if not isinstance(size, int) or isinstance(size, bool):
            raise FormatError(f"expected integers, found {quote(size)}", f"{path} -> dims")
    return row
