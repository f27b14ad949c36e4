"""A tensor in a file: found by its row in the table, cut from the bytes only when asked, and only as far as asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import EllipsisType

from glft_schema.errors import shown
from glft_schema.fields import Record
from glft_schema.lazy import torch
from glft_schema.source import Cursor, Source
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.tensor_type import matrix

PIECE = 1 << 24  # bytes copied at a time when a payload is taken over as it is

Index = int | slice | EllipsisType


class Tensor:
    """A tensor in an open file. Nothing of its payload is read before it is asked for.

    Attributes:
        name: as in the file.
        dims: sizes as stored; GLFT stores them in torch's order.
        dtype: the `TensorType`.
        offset: where the payload begins, in bytes into the region of payloads.
        position: the same, in bytes from the start of the container.
        nbytes: bytes of the payload.
        device: where `dequantize` and slices put their result unless told otherwise.
    """

    __slots__ = ("_source", "device", "dims", "dtype", "name", "nbytes", "offset", "position")

    def __init__(self, name: str, dims: Sequence[int], dtype: TensorType, offset: int, source: Source, data_start: int) -> None:
        self.name = name
        self.dims = tuple(dims)
        self.dtype = dtype
        self.offset = offset
        self.position = data_start + offset
        self.nbytes = dtype.nbytes(dims)
        self.device: str | torch.device = "cpu"
        self._source = source

    def __repr__(self) -> str:
        return f"Tensor({shown(self.name)}, {self.dtype} {list(self.dims)}, {self.nbytes} bytes at {self.position})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes in torch's order."""
        return self.dims

    @property
    def raw(self) -> memoryview:
        """The payload as it is in the file, read-only."""
        return self._source.view(self.position, self.nbytes).toreadonly()

    @property
    def payload(self) -> Record:
        """The payload's fields as torch tensors, such as ``payload.scales``; views of the mapped file where it is one."""
        return self.dtype.parse(Cursor(self._source, self.position), self.dims)

    def pieces(self) -> Iterator[memoryview]:
        """Yields the payload's bytes in order, a bounded number at a time."""
        for start in range(0, self.nbytes, PIECE):
            yield self._source.view(self.position + start, min(PIECE, self.nbytes - start))

    def dequantize(self, dtype: torch.dtype | None = None, device: str | torch.device | None = None) -> torch.Tensor:
        """Returns the tensor's numbers.

        Args:
            dtype: a float dtype; unless given, the stored one of a float tensor and float32 of a quantized one.
            device: where to put them; the file's device unless given.

        Returns:
            A tensor of `shape`. Floats kept in their dtype on the CPU are a view of the mapped file, which writing into them
            does not change.

        Raises:
            ClosedError: after the file was closed.
            TruncatedError: where the file has become shorter since it was opened.
        """
        out, columns = matrix(self.dims)
        return self._numbers(range(out), range(columns), dtype, device).reshape(self.shape)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> torch.Tensor:
        """Returns a part of the tensor, as indexing a torch tensor with integers, slices and ``...`` does.

        Reads no bytes before the first number asked for in a row, nor after the last, but for those that share a scale.

        Raises:
            IndexError: as torch does; for a step below 1, and for other kinds of index, too.
        """
        ranges, dropped = self._ranges(index)
        kept = [len(part) for part, drop in zip(ranges, dropped, strict=True) if not drop]
        if 0 in kept or 0 in self.dims:
            return torch.empty(kept, dtype=self.dtype.dtype, device=self.device)
        rows, inner = (ranges[0], ranges[1:]) if ranges else (range(1), [])
        strides = [matrix(self.dims[axis:])[1] for axis in range(1, len(self.dims))]
        first = sum(part[0] * stride for part, stride in zip(inner, strides, strict=True))
        last = sum(part[-1] * stride for part, stride in zip(inner, strides, strict=True))
        unit = self.dtype.unit(self.dims)
        columns = range(first // unit * unit, -(-(last + 1) // unit) * unit)
        block = self._numbers(range(rows[0], rows[-1] + 1), columns, None, None)
        down, across = block.stride()
        steps = [down * rows.step, *(across * stride * part.step for part, stride in zip(inner, strides, strict=True))]
        steps = [step for step, drop in zip(steps, dropped, strict=False) if not drop]
        part = block.as_strided(kept, steps, block.storage_offset() + (first - columns.start) * across)
        return part if part.numel() == block.numel() or self.dtype.exact else part.clone()

    def _ranges(self, index: Index | tuple[Index, ...]) -> tuple[list[range], list[bool]]:
        """Returns the numbers asked for along each dim, and whether the dim goes from the result."""
        parts = list(index) if isinstance(index, tuple) else [index]
        if parts.count(...) > 1:
            raise IndexError("an index can have a single ellipsis ('...')")
        if ... not in parts:
            parts.append(...)
        if len(parts) - 1 > len(self.dims):
            raise IndexError(f"too many indices for tensor {shown(self.name)} of {len(self.dims)} dims")
        at = parts.index(...)
        parts[at : at + 1] = [slice(None)] * (len(self.dims) - len(parts) + 1)
        ranges = []
        for axis, (part, size) in enumerate(zip(parts, self.dims, strict=True)):
            if isinstance(part, slice) and (part.step is None or part.step > 0):
                ranges.append(range(size)[part])
            elif isinstance(part, int) and not isinstance(part, bool):
                if not -size <= part < size:
                    raise IndexError(f"index {part} is out of bounds for dim {axis} of size {size}")
                ranges.append(range(part % size, part % size + 1))
            else:
                raise IndexError(f"expected integers, slices with a step above 0, and ..., found {shown(part)}")
        return ranges, [not isinstance(part, slice) for part in parts]

    def _numbers(
        self, rows: range, columns: range, dtype: torch.dtype | None, device: str | torch.device | None
    ) -> torch.Tensor:
        """Returns a part of the matrix [out, in]; `columns` begins and ends at multiples of the type's unit."""
        dtype, device = dtype or self.dtype.dtype, device or self.device
        if not dtype.is_floating_point:
            raise ValueError(f"expected a float dtype, found {dtype}")
        fields = self.dtype.cut(self._source, self.position, self.dims, rows, columns)
        fields = {name: field.to(device) for name, field in fields.items()}
        return self.dtype.decode(fields, len(columns), dtype)
