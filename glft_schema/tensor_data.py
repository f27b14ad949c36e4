"""The region of a file that holds the payloads, and the rules that tie it to the table of tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import construct

from glft_schema.errors import FormatError, TruncatedError, shown
from glft_schema.fields import Rule
from glft_schema.source import BytesSource, Cursor, Source
from glft_schema.tensors import Tensor

COUNTABLE = 1 << 59  # numbers, of up to 16 bytes each, whose bytes a signed 64-bit integer can count


class TensorFits(Rule):
    """The rule that a row's type can hold its dims, and that its bytes can be counted."""

    def __init__(self, id: str, field: str) -> None:
        super().__init__(id, field, lambda row: True, "sizes that the type can hold and 64 bits can count")

    def check(self, context: Any, path: str) -> None:
        dims = context[self.field]
        if refusal := context.dtype.refusal(dims):
            raise FormatError(f"{context.dtype}: {refusal}", f"{path} -> {self.field}")
        if math.prod(max(size, 1) for size in dims) >= COUNTABLE:
            raise FormatError(f"expected bytes that 64 bits can count, found {shown(list(dims))}", f"{path} -> {self.field}")


class NamesOnce(Rule):
    """The rule that no two rows of a table have the same name."""

    def __init__(self, id: str, table: str) -> None:
        super().__init__(id, table, lambda file: True, "each name once")

    def check(self, context: Any, path: str) -> None:
        seen: dict[str, int] = {}
        for i, row in enumerate(context[self.field]):
            if (first := seen.setdefault(row["name"], i)) != i:
                where = f"{path} -> {self.field} -> {i} -> name"
                raise FormatError(f"expected {self.expected}, found that of row {first} again", where)


class Gap(NamedTuple):
    """Bytes that belong to no tensor: `nbytes` from `offset` into the region on."""

    offset: int
    nbytes: int


class TensorMap(Mapping[str, Tensor]):
    """The tensors of a file by name, in the table's order, and the bytes between them.

    Attributes:
        start: where the region begins, in bytes from the start of the container.
        size: bytes of the region.
        gaps: bytes that belong to no tensor, in order; they are kept when the file is built again.
    """

    def __init__(self, tensors: Mapping[str, Tensor], source: Source, start: int, gaps: Sequence[Gap]) -> None:
        self._tensors = tensors
        self._source = source
        self.start = start
        self.size = source.size - start
        self.gaps = tuple(gaps)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"TensorMap({len(self)} tensors, {self.size} bytes at {self.start})"

    @property
    def trailing(self) -> int:
        """Bytes after the last payload."""
        last = self.gaps[-1] if self.gaps else Gap(0, 0)
        return last.nbytes if sum(last) == self.size else 0

    def gap_bytes(self, gap: Gap) -> memoryview:
        """Returns what stands in a gap."""
        return self._source.view(self.start + gap.offset, gap.nbytes)


class TensorData(construct.Construct):
    """The payloads of the tensors in `table`, each at its row's offset, up to the end of the file.

    Gaps, other orders and exact aliases (same offset, type and dims) are legal; other overlaps, and payloads that reach
    outside the file, are not. Parses into a `TensorMap` without reading a payload; builds from a mapping of names to
    payloads: a `Tensor`, the fields of its type, bytes, or anything with ``pieces()``. No size of its own.
    """

    def __init__(self, table: str) -> None:
        super().__init__()
        self.table = table

    def _parse(self, stream: Any, context: Any, path: str) -> TensorMap:
        if not isinstance(stream, Cursor):
            stream = Cursor(BytesSource(stream.read()))
        source, start = stream.source, stream.tell()
        rows = context[self.table]
        tensors = [Tensor(row.name, row.dims, row.dtype, row.offset, source, start) for row in rows]
        gaps = self._gaps(tensors, source.size - start, path)
        stream.seek(source.size)
        return TensorMap({tensor.name: tensor for tensor in tensors}, source, start, gaps)

    def _gaps(self, tensors: Sequence[Tensor], size: int, path: str) -> list[Gap]:
        """Returns the bytes between the tensors of a region of `size`; raises FormatError where they do not lie well."""
        gaps, end, before = [], 0, None
        for i, tensor in sorted(enumerate(tensors), key=lambda item: (item[1].offset, item[1].nbytes)):
            where = f"{path.rpartition(' -> ')[0]} -> {self.table} -> {i} -> offset"
            if tensor.offset > size:
                raise FormatError(f"expected at most {size}, the bytes of the region, found {tensor.offset}", where)
            if not tensor.nbytes:
                continue
            if before is not None and tensor.offset < end:
                same = (tensor.offset, tensor.dtype, tensor.dims) == (before.offset, before.dtype, before.dims)
                if not same:
                    raise FormatError(f"expected no overlap, found bytes shared with tensor {shown(before.name)}", where)
            elif tensor.offset > end:
                gaps.append(Gap(end, tensor.offset - end))
            if tensor.offset + tensor.nbytes > size:
                raise self._cut_off(tensor, size, path)
            end, before = tensor.offset + tensor.nbytes, tensor
        return [*gaps, Gap(end, size - end)] if size > end else gaps

    def _cut_off(self, tensor: Tensor, size: int, path: str) -> TruncatedError:
        """Returns the error for a payload that goes past the end, naming the first field of it that does."""
        left = size - tensor.offset
        for field, (start, nbytes) in tensor.dtype.places(tensor.dims).items():
            if start + nbytes > left:
                problem, where = (
                    f"expected {nbytes} bytes, found {max(left - start, 0)}",
                    f"{path} -> {shown(tensor.name)} -> {field}",
                )
                return TruncatedError(problem, where, tensor.position + start, tensor.name)
        raise AssertionError("a payload that ends past the region has a field that does")

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        pieces: dict[tuple[int, int], tuple[str, Iterable[memoryview | bytes]]] = {}
        for row in context[self.table]:
            nbytes = row.dtype.nbytes(row.dims)
            if row.name not in obj:
                raise FormatError(f"expected a payload for tensor {shown(row.name)}, found none", path)
            pieces.setdefault((row.offset, nbytes), (row.name, payload_pieces(obj[row.name], row)))
        if isinstance(obj, TensorMap):
            pieces |= {(gap.offset, gap.nbytes): ("", [obj.gap_bytes(gap)]) for gap in obj.gaps}
        end = 0
        for (offset, nbytes), (name, parts) in sorted(pieces.items(), key=lambda item: item[0]):
            if nbytes and offset < end:
                raise FormatError(f"expected no overlap, found tensor {shown(name)} at {offset}, before {end}", path)
            write_zeros(stream, offset - end)
            written = sum(stream.write(part) for part in parts)
            if written != nbytes:
                raise FormatError(f"expected {nbytes} bytes, found {written}", path, tensor=name)
            end = max(end, offset + nbytes)
        return obj


def payload_pieces(payload: Any, row: Any) -> Iterable[memoryview | bytes]:
    """Returns the bytes of one payload, in pieces: of whatever `TensorData` builds from."""
    if hasattr(payload, "pieces"):
        pieces: Iterable[memoryview | bytes] = payload.pieces()
        return pieces
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return [bytes(payload)]
    return [row.dtype.build(payload, row.dims)]


def write_zeros(stream: Any, nbytes: int) -> None:
    """Writes padding."""
    for start in range(0, nbytes, 1 << 20):
        stream.write(bytes(min(nbytes - start, 1 << 20)))
