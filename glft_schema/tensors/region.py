"""The data region, which holds the payloads, and the rules that connect it to the tensor table."""

from __future__ import annotations

import io
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import construct
from construct.expr import FuncPath

from glft_schema.codec.columns import column, kinds
from glft_schema.codec.context import LITTLE, ByteOrder, Context, byte_order
from glft_schema.codec.expressions import as_expression
from glft_schema.codec.rules import Check, Fault
from glft_schema.codec.structs import unwrap
from glft_schema.display import NAME, ROWS, Listing, Part, Row, format_count, with_display
from glft_schema.errors import FormatError, TruncatedError, quote, safe
from glft_schema.lazy import torch
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.source import BytesSource, Source
from glft_schema.storage.tensor_bytes import copy_all, pieces, write_all
from glft_schema.tensor_types.tensor_type import TensorType
from glft_schema.tensors.tensor import PayloadLocation, Tensor
from glft_schema.words import MissingKeyError

ZEROS = bytes(1 << 20)  # padding per write
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

    @property
    def types(self) -> set[TensorType]:
        """The types of the tensors."""
        return {tensor.type for tensor in self.values()}

    def _display(self) -> Iterator[Part]:
        yield format_count(self, "tensor")
        is_set = len({tensor.file for tensor in islice(self.values(), ROWS)}) > 1

        def row(tensor: Tensor) -> Row:
            shape, numbers = str(list(tensor.shape)), (f"{tensor.nbytes:,}", f"{tensor.position:,}")
            texts = (safe(Path(tensor.file).name, NAME), safe(tensor.name, NAME), str(tensor.type), shape)
            return *texts[not is_set :], *numbers

        head = ("file", "name", "type", "shape", "bytes", "at byte")[not is_set :]
        yield Listing.of("tensors", head, self.values(), row, 2)


class PayloadTable:
    """The rows of a table by column: names, dims, types, and the positions of the payloads.

    Attributes:
        names, offsets: of the rows.
        spans: offset and bytes of the payloads. In a file, one of an unknown type extends to the
            next offset.
        size: bytes of the region.

    Args:
        rows: each with a name, dims, shape, dtype and offset.
        size: bytes of the region.
        is_truncated: whether the region may declare more bytes than `size`.
        payloads: to be written, by name; None for the payloads of a file.
    """

    def __init__(
        self, rows: Sequence[Any], size: int, is_truncated: bool = False, payloads: Mapping[str, Any] | None = None
    ) -> None:
        self.names, self.offsets = column(rows, "name"), column(rows, "offset")
        self._kind, of_kinds = kinds(rows, "dims", "dtype", "shape")
        self._kinds = [(tuple(dims), dtype, tuple(shape)) for dims, dtype, shape in of_kinds]
        by_kind = [dtype.nbytes(shape) if dtype.is_known else None for _, dtype, shape in self._kinds]
        declared = [by_kind[kind] for kind in self._kind]
        if is_truncated:
            known = zip(self.offsets, declared, strict=True)
            size = max([size, *(offset + nbytes for offset, nbytes in known if nbytes is not None)])
        self.size = size
        ends = sorted({min(offset, size) for offset in self.offsets} | {size}) if None in by_kind else []
        for i in (i for i, nbytes in enumerate(declared) if nbytes is None):
            if payloads is None:
                end = ends[min(bisect_right(ends, self.offsets[i]), len(ends) - 1)]
                declared[i] = max(end - self.offsets[i], 0)
            else:
                declared[i] = payload_size(payloads[self.names[i]], self.names[i])
        self.spans: list[tuple[int, Any]] = list(zip(self.offsets, declared, strict=True))

    def tensor(self, row: int) -> tuple[tuple[int, ...], PayloadLocation]:
        """Returns the dims of a row, and the location of its payload."""
        dims, dtype, shape = self._kinds[self._kind[row]]
        return dims, PayloadLocation(*self.spans[row], dtype, shape)

    @property
    def types(self) -> set[TensorType]:
        """The types of the rows."""
        return {dtype for _, dtype, _ in self._kinds}

    def location(self, row: int) -> PayloadLocation:
        """Returns the location of a row's payload."""
        return self.tensor(row)[1]

    def locations(self) -> dict[str, PayloadLocation]:
        """Returns the location of each payload by name."""
        return {name: self.location(row) for row, name in enumerate(self.names)}


def gaps_between(spans: Iterable[tuple[int, int]], size: int) -> list[Gap] | None:
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
                gaps.append(Gap(end, offset - end))
            end = offset + nbytes
    if end < size:
        gaps.append(Gap(end, size - end))
    return gaps if end <= size else None


class TensorMap(Tensors):
    """The tensors of a file by name, in table order. Rebuilding the same table copies the gaps."""

    def __init__(self, table: PayloadTable, gaps: Iterable[Gap], source: Source, start: int, order: ByteOrder) -> None:
        self._table = table
        self._rows = dict(zip(table.names, range(len(table.names)), strict=True))
        self._source = source
        self.start = start  # of the region, in bytes from the start of the container
        self.size = table.size  # of the region, in bytes; more than the file has if it is truncated
        self.order = order
        self.gaps = tuple(gaps)
        self.trailing = self.gaps[-1].nbytes if self.gaps and sum(self.gaps[-1]) == self.size else 0
        self.device: str | torch.device = "cpu"

    def __getitem__(self, name: str) -> Tensor:
        try:
            row = self._rows[name]
        except KeyError:
            raise MissingKeyError(name, self._rows) from None
        dims, place = self._table.tensor(row)
        return Tensor(name, dims, place, self._source, self.start, self.order, self.device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def types(self) -> set[TensorType]:
        return self._table.types

    def places(self) -> dict[str, PayloadLocation]:
        """Returns the location of each payload."""
        return self._table.locations()

    def filling(self, gap: Gap) -> Filling:
        """Returns a gap, to be written."""
        return Filling(gap.nbytes, self._source, self.start + gap.offset)

    def gap_pieces(self, gap: Gap) -> Iterator[memoryview]:
        """Returns the bytes of a gap, piece by piece."""
        return pieces(self._source, self.start + gap.offset, gap.nbytes)


def no_tensors(source: Source, order: ByteOrder = LITTLE) -> TensorMap:
    """Returns the tensors of a file that holds none."""
    return TensorMap(PayloadTable((), 0), (), source, source.size, order)


class TensorData(construct.Construct):
    """The payloads of the tensors in `table`, each at its row's offset, up to the end of the file.

    Parses into a `TensorMap` without reading payloads. Builds from a mapping of names to payloads:
    a `Tensor`, the fields of its type, bytes, or an object with ``write_to(stream, order)``. Has no
    fixed size.

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
        source, start = stream.source, stream.tell()
        table = PayloadTable(context[self.table], source.size - start, bool(context["_params"].get("allow_truncated")))
        gaps = gaps_between(table.spans, table.size)  # of most files, with payloads in the order of the table
        if gaps is None or max(table.offsets, default=0) > table.size:
            gaps = self._check_positions(table, start, path, context)
        stream.seek(source.size)
        return TensorMap(table, gaps, source, start, byte_order(context))

    def _check_positions(self, table: PayloadTable, start: int, path: str, context: Context) -> list[Gap]:
        """Returns the gaps. Raises FormatError if payloads overlap or extend past the end."""
        for row in self._in_order(table, path):
            if sum(table.spans[row]) > table.size:
                raise self._past_end(row, table, start, path, context)
        return gaps_between(sorted(set(table.spans)), table.size) or []

    def _has_offset_rule(self, context: Context) -> bool:
        """Returns whether the table's rows have a rule on offsets, such as an alignment."""
        row = unwrap(context["_subcons"][self.table]).subcon
        return any(isinstance(part, Check) and part.field == "offset" for part in getattr(row, "subcons", ()))

    def _in_order(self, table: PayloadTable, path: str) -> list[int]:
        """Returns the rows by position of their payloads. Raises FormatError on overlap."""
        spans, end, previous = table.spans, 0, 0
        order = sorted(range(len(spans)), key=spans.__getitem__)
        for i in order:
            offset, nbytes = spans[i]
            if nbytes:
                if offset < end and table.location(i) != table.location(previous):
                    problem = f"expected no overlap, found bytes shared with tensor {quote(table.names[previous])}"
                    raise FormatError(problem, self._offset_path(path, i), tensor=table.names[i])
                end, previous = offset + nbytes, i
        return order

    def _offset_path(self, path: str, row: int) -> str:
        return f"{path.rpartition(' -> ')[0]} -> {self.table} -> {row} -> offset"

    def _past_end(self, row: int, table: PayloadTable, start: int, path: str, context: Context) -> FormatError:
        """Returns the error for a payload past the end. It names the first field that does not
        fit."""
        (offset, nbytes, type_, shape), name, size = table.location(row), table.names[row], table.size
        alignment, offset_path = self.padded_to(context), self._offset_path(path, row)
        if offset % alignment and offset <= size and self._has_offset_rule(context):
            beyond = f"from there, {nbytes:,} bytes extend past the end of the file"
            problem = f"expected a multiple of the alignment, {alignment}, found {offset}; {beyond}"
            return FormatError(problem, offset_path, tensor=name)
        cut = _cut(table.spans, start, size, alignment)
        if offset > size:
            return TruncatedError(cut or f"expected at most {size} (the size of the region), found {offset}", offset_path)
        fields = type_.field_spans(shape).items()
        field, (at, expected) = next((field, span) for field, span in fields if sum(span) > size - offset)
        problem = cut or f"expected {expected} bytes, found {max(size - offset - at, 0)}"
        return TruncatedError(problem, f"{path} -> {quote(name)} -> {field}", start + offset + at, name)

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
        table = PayloadTable(rows, 0, payloads=obj)
        gaps = list(obj.gaps) if isinstance(obj, TensorMap) and table.locations() == obj.places() else None
        end, spans, written = 0, list[Any](), dict[PayloadLocation, Payload]()
        for i in self._in_order(table, path):
            place, row = table.location(i), rows[i]
            payload = Payload(place.nbytes, obj[row.name], row, f"{path} -> {quote(row.name)}", byte_order(context))
            if place in written:
                if place.nbytes and not same_bytes(payload, written[place]):
                    raise FormatError("expected equal payloads at equal offsets", payload.path, tensor=row.name)
                continue
            written[place] = payload
            while gaps and gaps[0].offset < place.offset:
                end = sum(gaps[0])
                spans.append(obj.filling(gaps.pop(0)))
            if place.offset > end:
                spans.append(Filling(place.offset - end))
            spans.append(payload)
            end = max(end, place.offset + place.nbytes)
        if gaps is None and (padding := -end % self.padded_to(context)):
            spans.append(Filling(padding))
        return spans + [obj.filling(gap) for gap in gaps or ()]


class Filling(NamedTuple):
    """Bytes between payloads: those of a parsed file, or zeros.

    Attributes:
        nbytes: its size.
        source: the parsed file, or None.
        position: of the bytes in `source`.
    """

    nbytes: int
    source: Source | None = None
    position: int = 0

    def write(self, stream: Any) -> None:
        """Writes the bytes."""
        if self.source:
            copy_all(stream, self.source, self.position, self.nbytes)
        else:
            for start in range(0, self.nbytes, len(ZEROS)):
                write_all(stream, ZEROS[: self.nbytes - start])


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
        if (written := self.copy_to(stream)) != self.nbytes:
            raise FormatError(f"expected {self.nbytes} bytes, found {written}", self.path, tensor=self.row.name)

    def copy_to(self, stream: Any) -> int:
        """Writes the content, of any size, and returns its size in bytes.

        Raises:
            FormatError: if its type or shape differs from the row's.
        """
        content, row = self.content, self.row
        if isinstance(content, Tensor) and (content.type, content.shape) != (row.dtype, tuple(row.shape)):
            found = f"{content.type} {list(content.shape)}"
            raise FormatError(f"expected {row.dtype} {list(row.shape)}, found {found}", self.path, tensor=row.name)
        if hasattr(content, "write_to"):
            return int(content.write_to(stream, self.order))
        if isinstance(content, (bytes, bytearray, memoryview)):
            return write_all(stream, content)
        try:
            row.dtype.write(content, stream, row.shape, self.path, self.order)
        except FormatError as error:
            error.tensor = row.name
            raise
        return int(row.dtype.nbytes(row.shape))


def same_bytes(one: Payload, other: Payload) -> bool:
    """Returns whether two payloads have the same bytes."""
    a, b = one.content, other.content
    if a is b or (isinstance(a, Tensor) and isinstance(b, Tensor) and a.identity == b.identity):
        return True
    streams = io.BytesIO(), io.BytesIO()
    one.copy_to(streams[0])
    other.copy_to(streams[1])
    return streams[0].getvalue() == streams[1].getvalue()


def _cut(spans: Sequence[tuple[int, int]], start: int, size: int, alignment: int) -> str:
    """Describes which part of a truncated file is complete. Returns an empty string if wrong
    offsets or sizes are more likely: overlaps, wide gaps between payloads, or an implausible file
    size."""
    end = max(map(sum, spans))
    gaps, found, expected = gaps_between(sorted(set(spans)), end), start + size, start + end
    if gaps is None or any(gap.nbytes >= alignment for gap in gaps) or expected > LARGEST:
        return ""
    part = f"{found:,} of {expected:,} bytes ({min(100 * found / expected, 99.9):.1f} %)"
    complete = sum(sum(span) <= size for span in spans)
    return f"the file is truncated: {part}, {complete:,} of {format_count(spans, 'tensor')} complete; download the rest"


def payload_size(payload: Any, name: str) -> int:
    """Returns the bytes of a payload of an unknown type. Raises FormatError unless it has some."""
    if not isinstance(payload, (bytes, bytearray)) and not hasattr(payload, "nbytes"):
        raise FormatError(f"expected a payload of bytes, found {quote(payload)}", f"data -> {quote(name)}", tensor=name)
    return int(payload.nbytes if hasattr(payload, "nbytes") else len(payload))
