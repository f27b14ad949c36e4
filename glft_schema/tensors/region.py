"""The data region, which holds the payloads, and the rules that connect it to the tensor table."""

from __future__ import annotations

import io
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import construct
from construct.expr import FuncPath

from glft_schema.codec.columns import column, kinds
from glft_schema.codec.context import ByteOrder, Context, byte_order
from glft_schema.codec.expressions import as_expression
from glft_schema.codec.rules import Check, Fault
from glft_schema.codec.structs import unwrap
from glft_schema.display import NAME, ROWS, Listing, Part, Row, format_count, with_display
from glft_schema.errors import FormatError, TruncatedError, quote, safe
from glft_schema.lazy import torch
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.source import BytesSource, Source
from glft_schema.storage.tensor_bytes import write_all
from glft_schema.tensor_types.tensor_type import TensorType
from glft_schema.tensors.tensor import PayloadLocation, Tensor
from glft_schema.words import MissingKeyError

GAP_CHUNK = 1 << 20  # bytes of a gap or of padding per read or write
LARGEST = 1 << 44  # bytes of the largest plausible file
MAX_ELEMENTS = 1 << 59  # elements of up to 16 bytes whose size fits a signed 64-bit integer


class TensorFits(Check):
    """Rule: a row's type can hold its shape, and the size in bytes does not overflow 64 bits."""

    expected = "dims that the type can store, with a size in bytes that fits into 64 bits"

    def needs(self) -> set[str]:
        return {self.field, "dtype", "shape"}

    def check(self, context: Context, path: str) -> None:
        dtype, shape = context["dtype"], tuple(context["shape"])
        if fits(dtype, shape):
            return
        if not is_countable(shape):
            found = quote(list(context[self.field]))
            self.report(context, f"the size in bytes of {self.field} {found} overflows 64 bits", f"{path} -> {self.field}")
        if refusal := dtype.refusal(shape):
            self.report(context, f"{dtype}: {refusal}", f"{path} -> {self.field}")


@FuncPath  # type: ignore[untyped-decorator]
def nbytes_of_payload(row: Any) -> int:
    """In expressions, ``nbytes_of_payload(this)``: the size of a row's payload."""
    return int(row["dtype"].nbytes(row["shape"]))


@lru_cache(maxsize=1 << 12)  # models have many tensors of few shapes
def fits(dtype: TensorType, shape: tuple[int, ...]) -> bool:
    """Returns whether a type can hold a shape without overflow of 64 bits."""
    return is_countable(shape) and dtype.refusal(shape) is None


def is_countable(shape: tuple[int, ...]) -> bool:
    """Returns whether the bytes of a shape, with each size at least 1, fit 64 bits."""
    return math.prod(max(size, 1) for size in shape) < MAX_ELEMENTS


class Gap(NamedTuple):
    """`nbytes` unused bytes at `offset` in the region."""

    offset: int
    nbytes: int


@with_display
class Tensors(Mapping[str, Tensor]):
    """Tensors by name."""

    gaps: tuple[Gap, ...] = ()  # spans of bytes that belong to no tensor, in order
    trailing: int = 0  # bytes after the last payload

    def _display(self) -> Iterator[Part]:
        yield format_count(self, "tensor")
        is_set = len({tensor.file for tensor in islice(self.values(), ROWS)}) > 1

        def row(tensor: Tensor) -> Row:
            shape, numbers = str(list(tensor.shape)), (f"{tensor.nbytes:,}", f"{tensor.position:,}")
            texts = (safe(Path(tensor.file).name, NAME), safe(tensor.name, NAME), str(tensor.type), shape)
            return *texts[not is_set :], *numbers

        head = ("file", "name", "type", "shape", "bytes", "at byte")[not is_set :]
        yield Listing.of("tensors", head, self.values(), row, 2)


class PayloadPositions(NamedTuple):
    """The sizes of payloads in a region, and the gaps between them."""

    extents: Sequence[int]  # bytes of each row's payload
    gaps: Sequence[tuple[int, int]]  # offset and bytes of each gap, in order


def apart(rows: Sequence[Any], size: int) -> PayloadPositions | None:
    """Returns the positions of payloads if none share bytes and all are in the region.

    Otherwise, and for unknown types, returns None: the rows are then checked one by one.
    """
    kind, of_kinds = kinds(rows, "dtype", "shape")
    if not all(dtype.is_known for dtype, _ in of_kinds):
        return None
    nbytes = [dtype.nbytes(shape) for dtype, shape in of_kinds]
    offsets, extents = column(rows, "offset"), [nbytes[number] for number in kind]
    spans = list(zip(offsets, extents, strict=True))
    gaps = gaps_between(spans, size)
    if gaps is None:
        gaps = gaps_between(sorted(spans), size)
    if gaps is None or max(offsets, default=0) > size:
        return None
    return PayloadPositions(extents, gaps)


def gaps_between(spans: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]] | None:
    """Returns the gaps between spans of (offset, bytes), and from the last one to `size`.

    Returns None if a span that has bytes begins before the end of the previous one, or ends after
    `size`.
    """
    gaps, end = [], 0
    for offset, nbytes in spans:
        if nbytes:
            if offset != end:
                if offset < end:
                    return None
                gaps.append((end, offset - end))
            end = offset + nbytes
    if end < size:
        gaps.append((end, size - end))
    return gaps if end <= size else None


class TensorMap(Tensors):
    """The tensors of a file by name, in table order. Rebuilding the same table copies the gaps."""

    def __init__(
        self,
        rows: Sequence[Any],
        payloads: PayloadPositions,
        source: Source,
        start: int,
        size: int,
        order: ByteOrder,
    ) -> None:
        names = column(rows, "name")
        self._numbers = dict(zip(names, range(len(names)), strict=True))
        self._kind, of_kinds = kinds(rows, "dims", "dtype", "shape")
        self._kinds = [(tuple(dims), dtype, tuple(shape)) for dims, dtype, shape in of_kinds]
        self._offsets = column(rows, "offset")
        self._payloads = payloads
        self._source = source
        self.start = start  # of the region, in bytes from the start of the container
        self.order = order
        self.size = size  # of the region, in bytes; more than the file has if it is truncated
        self.trailing = payloads.gaps[-1][1] if payloads.gaps and sum(payloads.gaps[-1]) == self.size else 0
        self.device: str | torch.device = "cpu"

    @cached_property
    def gaps(self) -> tuple[Gap, ...]:  # type: ignore[override]
        """The spans of bytes that belong to no tensor, in order."""
        return tuple(map(Gap._make, self._payloads.gaps))

    def __getitem__(self, name: str) -> Tensor:
        try:
            number = self._numbers[name]
        except KeyError:
            raise MissingKeyError(name, self._numbers) from None
        dims, place = self._place(number)
        return Tensor(name, dims, place, self._source, self.start, self.order, self.device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def _place(self, number: int) -> tuple[tuple[int, ...], PayloadLocation]:
        dims, dtype, shape = self._kinds[self._kind[number]]
        return dims, PayloadLocation(self._offsets[number], self._payloads.extents[number], dtype, shape)

    def places(self) -> dict[str, PayloadLocation]:
        """Returns the location of each payload."""
        return {name: self._place(number)[1] for name, number in self._numbers.items()}

    def gap_pieces(self, gap: Gap) -> Iterator[memoryview]:
        """Yields the bytes of a gap in chunks."""
        for start in range(gap.offset, sum(gap), GAP_CHUNK):
            yield self._source.read(self.start + start, min(GAP_CHUNK, sum(gap) - start))


class TensorData(construct.Construct):
    """The payloads of the tensors in `table`, each at its row's offset, up to the end of the file.

    Parses into a `TensorMap` without reading payloads. Builds from a mapping of names to payloads:
    a `Tensor`, the fields of its type, bytes, or an object with ``write_to(stream, order)`` or
    ``pieces(order)``. Has no fixed size.

    Gaps, any order of payloads, and aliases (equal locations) are legal. Other overlaps, and
    payloads past the end of the file, are not.

    Args:
        table: the field with the rows, each with a name, dims, shape, dtype and offset.
        padded_to: a number or an expression. The region is padded to a multiple of it, unless the
            gaps of a parsed file are copied.
    """

    refuses = (
        Fault("a payload that extends past the end of the region"),
        Fault("payloads that share bytes, unless their rows have equal offset, type and dims"),
    )

    def __init__(self, table: str, padded_to: Any = 1) -> None:
        super().__init__()
        self.table = table
        self.padded_to = as_expression(padded_to)

    def _parse(self, stream: Any, context: Context, path: str) -> TensorMap:
        if not isinstance(stream, Cursor):
            stream = Cursor(BytesSource(stream.read()))
        source, start, rows = stream.source, stream.tell(), context[self.table]
        size = source.size - start
        payloads = apart(rows, size)
        if payloads is None:
            if context["_params"].get("allow_truncated"):
                ends = (row.offset + row.dtype.nbytes(row.shape) for row in rows if row.dtype.is_known)
                size = max(size, max(ends, default=0))
            payloads = self._payloads(rows, start, size, path, context)
        stream.seek(source.size)
        return TensorMap(rows, payloads, source, start, size, byte_order(context))

    def _payloads(self, rows: Sequence[Any], start: int, size: int, path: str, context: Context) -> PayloadPositions:
        """Checks the positions of all payloads."""
        gaps: list[tuple[int, int]] = []
        end, extents = 0, self._extents(rows, size)
        for i, place in self._in_order(rows, extents, path):
            payload_end = place.offset + place.nbytes
            if payload_end > size:
                alignment = self.padded_to(context)
                if place.offset % alignment and place.offset <= size and self._has_offset_rule(context):
                    beyond = f"from there, {place.nbytes:,} bytes extend past the end of the file"
                    problem = f"expected a multiple of the alignment, {alignment}, found {place.offset}; {beyond}"
                    raise FormatError(problem, self._offset_path(path, i), tensor=rows[i].name)
                cut = _cut(rows, extents, start, size, alignment)
                raise self._past_end(i, rows[i].name, place, start, size, path, cut)
            if place.nbytes:
                if place.offset > end:
                    gaps.append((end, place.offset - end))
                end = max(end, payload_end)
        return PayloadPositions(extents, [*gaps, (end, size - end)] if size > end else gaps)

    def _has_offset_rule(self, context: Context) -> bool:
        """Returns whether the table's rows have a rule on offsets, such as an alignment."""
        row = unwrap(context["_subcons"][self.table]).subcon
        return any(isinstance(part, Check) and part.field == "offset" for part in getattr(row, "subcons", ()))

    def _extents(self, rows: Sequence[Any], size: int) -> list[int]:
        """Returns the bytes of each payload. An unknown type extends to the next offset."""
        if all(row.dtype.is_known for row in rows):
            return [row.dtype.nbytes(row.shape) for row in rows]
        offsets = sorted({min(row.offset, size) for row in rows} | {size})
        extents = []
        for row in rows:
            following = bisect_right(offsets, row.offset)
            opaque = offsets[following] - row.offset if following < len(offsets) else 0
            extents.append(row.dtype.nbytes(row.shape) if row.dtype.is_known else opaque)
        return extents

    def _in_order(self, rows: Sequence[Any], extents: Sequence[int], path: str) -> list[tuple[int, PayloadLocation]]:
        """Returns (row number, location) sorted by offset. Raises FormatError on overlap."""
        places = [
            PayloadLocation(row.offset, extent, row.dtype, tuple(row.shape)) for row, extent in zip(rows, extents, strict=True)
        ]
        ordered = sorted(enumerate(places), key=lambda item: item[1][:2])
        end, previous = 0, None
        for i, place in ordered:
            if place.nbytes:
                if previous is not None and place.offset < end and place != previous[1]:
                    problem = f"expected no overlap, found bytes shared with tensor {quote(rows[previous[0]].name)}"
                    raise FormatError(problem, self._offset_path(path, i), tensor=rows[i].name)
                end, previous = place.offset + place.nbytes, (i, place)
        return ordered

    def _offset_path(self, path: str, row: int) -> str:
        return f"{path.rpartition(' -> ')[0]} -> {self.table} -> {row} -> offset"

    def _past_end(
        self, row: int, name: str, payload: PayloadLocation, start: int, size: int, path: str, cut: str
    ) -> TruncatedError:
        """Returns the error for a payload past the end. It names the first field that does not
        fit."""
        if payload.offset > size:
            problem = cut or f"expected at most {size} (the size of the region), found {payload.offset}"
            return TruncatedError(problem, self._offset_path(path, row))
        left = size - payload.offset
        spans = payload.type.field_spans(payload.shape).items()
        field, (at, nbytes) = next((field, span) for field, span in spans if sum(span) > left)
        problem = cut or f"expected {nbytes} bytes, found {max(left - at, 0)}"
        return TruncatedError(problem, f"{path} -> {quote(name)} -> {field}", start + payload.offset + at, name)

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        rows = list(context[self.table])
        if not isinstance(obj, Mapping):
            raise FormatError(f"expected a mapping of names to payloads, found {quote(obj)}", path)
        names = {row.name for row in rows}
        if unknown := [name for name in obj if name not in names]:
            raise FormatError(f"expected payloads only for tensors in the table, found one for {quote(unknown[0])}", path)
        for row in rows:
            if row.name not in obj:
                raise FormatError("expected a payload, found none", f"{path} -> {quote(row.name)}", tensor=row.name)
        spans = self._spans(obj, rows, context, path)
        if (planned := context["_params"].get("spans")) is not None:
            planned += spans
        else:
            for span in spans:
                span.write(stream)
        return obj

    def _spans(self, obj: Any, rows: Sequence[Any], context: Context, path: str) -> list[Any]:
        """Returns what the region consists of, in order: payloads, gaps and padding."""
        order = byte_order(context)
        extents = [_extent(obj[row.name], row) for row in rows]
        places = self._in_order(rows, extents, path)
        gaps: list[Gap] | None = None
        if isinstance(obj, TensorMap) and {rows[i].name: place for i, place in places} == obj.places():
            gaps = list(obj.gaps)
        end, spans, written = 0, list[Any](), dict[PayloadLocation, Any]()
        for i, place in places:
            row, where, payload = rows[i], f"{path} -> {quote(rows[i].name)}", obj[rows[i].name]
            if place in written:
                if place.nbytes and not same_payload(payload, written[place], row, order):
                    raise FormatError("expected equal payloads at equal offsets", where, tensor=row.name)
                continue
            written[place] = payload
            while gaps and gaps[0].offset < place.offset:
                end = sum(gaps[0])
                spans.append(GapBytes(gaps[0].nbytes, obj, gaps.pop(0)))
            if place.offset > end:
                spans.append(Zeros(place.offset - end))
            spans.append(Payload(place.nbytes, payload, row, where, order))
            end = max(end, place.offset + place.nbytes)
        if gaps is None and (padding := -end % self.padded_to(context)):
            spans.append(Zeros(padding))
        return spans + [GapBytes(gap.nbytes, obj, gap) for gap in gaps or ()]


class Zeros(NamedTuple):
    """Zero bytes, as padding or in a gap."""

    nbytes: int

    def write(self, stream: Any) -> None:
        """Writes the bytes."""
        for start in range(0, self.nbytes, GAP_CHUNK):
            write_all(stream, bytes(min(self.nbytes - start, GAP_CHUNK)))


class GapBytes(NamedTuple):
    """The bytes of a gap in a parsed file."""

    nbytes: int
    tensors: TensorMap
    gap: Gap

    def write(self, stream: Any) -> None:
        """Writes the bytes."""
        for piece in self.tensors.gap_pieces(self.gap):
            write_all(stream, piece)


class Payload(NamedTuple):
    """A payload to be written.

    Attributes:
        nbytes: its size.
        content: anything that `TensorData` builds from.
        row: of the table.
        path: of the payload, for errors.
        order: byte order of the file.
    """

    nbytes: int
    content: Any
    row: Any
    path: str
    order: ByteOrder

    def write(self, stream: Any) -> None:
        """Writes the bytes. Raises FormatError if the content does not fit the row."""
        written = write_payload(self.content, self.row, stream, self.path, self.order)
        if written != self.nbytes:
            raise FormatError(f"expected {self.nbytes} bytes, found {written}", self.path, tensor=self.row.name)


def _cut(rows: Sequence[Any], extents: Sequence[int], start: int, size: int, alignment: int) -> str:
    """Describes which part of a truncated file is complete. Returns an empty string if wrong
    offsets or sizes are more likely: overlaps, wide gaps between payloads, or an implausible file
    size."""
    spans = list(zip((row.offset for row in rows), extents, strict=True))
    end = max(map(sum, spans))
    gaps, found, expected = gaps_between(sorted(set(spans)), end), start + size, start + end
    if gaps is None or any(nbytes >= alignment for _, nbytes in gaps) or expected > LARGEST:
        return ""
    part = f"{found:,} of {expected:,} bytes ({min(100 * found / expected, 99.9):.1f} %)"
    complete = sum(sum(span) <= size for span in spans)
    return f"the file is truncated: {part}, {complete:,} of {format_count(rows, 'tensor')} complete; download the rest"


def _extent(payload: Any, row: Any) -> int:
    """Returns the bytes of a row's payload: by its type, or of `payload` if the type is unknown."""
    return int(row.dtype.nbytes(row.shape)) if row.dtype.is_known else payload_size(payload, row.name)


def payload_size(payload: Any, name: str) -> int:
    """Returns the bytes of a payload of an unknown type. Raises FormatError unless it has some."""
    if not isinstance(payload, (bytes, bytearray)) and not hasattr(payload, "nbytes"):
        raise FormatError(f"expected a payload of bytes, found {quote(payload)}", f"data -> {quote(name)}", tensor=name)
    return int(payload.nbytes if hasattr(payload, "nbytes") else len(payload))


def write_payload(payload: Any, row: Any, stream: Any, path: str, order: ByteOrder) -> int:
    """Writes one payload of any kind that `TensorData` accepts, and returns its size in bytes.

    Raises:
        FormatError: if its type or shape differs from the row's.
    """
    if isinstance(payload, Tensor) and (payload.type, payload.shape) != (row.dtype, tuple(row.shape)):
        found = f"{payload.type} {list(payload.shape)}"
        raise FormatError(f"expected {row.dtype} {list(row.shape)}, found {found}", path, tensor=row.name)
    if hasattr(payload, "write_to"):
        return int(payload.write_to(stream, order))
    if hasattr(payload, "pieces"):
        return sum(write_all(stream, piece) for piece in payload.pieces(order))
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return write_all(stream, payload)
    try:
        row.dtype.write(payload, stream, row.shape, path, order)
    except FormatError as error:
        error.tensor = row.name
        raise
    return int(row.dtype.nbytes(row.shape))


def same_payload(one: Any, other: Any, row: Any, order: ByteOrder) -> bool:
    """Returns whether two payloads of a row have the same bytes."""
    if one is other or (isinstance(one, Tensor) and isinstance(other, Tensor) and one.identity == other.identity):
        return True
    written = []
    for payload in (one, other):
        stream = io.BytesIO()
        write_payload(payload, row, stream, "", order)
        written.append(stream.getvalue())
    return written[0] == written[1]
