"""A tensor in a file. Only the bytes needed for a request are read."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from glft_schema.codec.context import LITTLE, ByteOrder
from glft_schema.codec.records import Record
from glft_schema.display import Listing, Part, with_display
from glft_schema.errors import TensorError, quote
from glft_schema.lazy import outside_graphs, torch
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.dtypes import Array
from glft_schema.storage.source import Source
from glft_schema.storage.tensor_bytes import PIECE, array_over, copy_all
from glft_schema.storage.torch_tensors import as_tensor, dtype_in_torch
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.engine.chunks import CHUNK, matrix
from glft_schema.tensor_types.engine.conversions import convert, widen
from glft_schema.tensors.upload import to_device, torch_dtype, usable_device

Index = int | slice | EllipsisType
Indices = Index | tuple[Index, ...]


class MatrixBlock(NamedTuple):
    """A part of a tensor, located in a block of rows and columns of its matrix.

    Attributes:
        rows: of the matrix.
        columns: of the matrix, whole units of the type.
        shape: of the part.
        steps: for each dim of the part, its stride within a row of the block, or None if it spans
            rows.
        first: the index of the part's first number in a row of the block.
    """

    rows: range
    columns: range
    shape: list[int]
    steps: list[int | None]
    first: int

    def strides(self, down: int, across: int) -> list[int]:
        """Returns the strides of the part's dims, computed from the strides of the block."""
        return [down if step is None else step * across for step in self.steps]


class PayloadLocation(NamedTuple):
    """Location, type and shape of a payload. Tensors with equal locations share one payload."""

    offset: int  # first byte, from the start of the region
    nbytes: int
    type: TensorType
    shape: tuple[int, ...]  # in torch's order


@with_display
class Tensor:
    """A tensor in an open file. The payload is read on request.

    Attributes:
        name: as in the file.
        dims: sizes as stored: torch's order in GLFT, the reverse in GGUF.
        shape: sizes in torch's order.
        type: the `TensorType`.
        offset: first byte of the payload in the region.
        position: first byte of the payload in the container.
        nbytes: bytes of the payload.
        order: byte order of the payload.
        device: default device of `dequantize` and of slices.
    """

    def __init__(
        self,
        name: str,
        dims: Sequence[int],
        place: PayloadLocation,
        source: Source,
        data_start: int,
        order: ByteOrder = LITTLE,
        device: str | torch.device = "cpu",
    ) -> None:
        self.name = name
        self.dims = tuple(dims)
        self.offset, self.nbytes, self.type, self.shape = place
        self.position = data_start + self.offset
        self.order = order
        self.device = device
        self._source = source

    if not TYPE_CHECKING:  # type checkers report unknown attributes

        def __getattr__(self, name: str) -> Any:
            problem = f"a tensor in a file has no attribute {name!r}: dequantize() returns a torch.Tensor, numpy() an array"
            raise AttributeError(problem)

    def _display(self) -> Iterator[Part]:
        yield f"{quote(self.name)}, {self.type} {list(self.shape)}, {self.nbytes:,} bytes at {self.position:,}"
        numbers = math.prod(self.shape)
        rows = {
            "dims": f"{list(self.dims)}, as stored",
            "numbers": f"{numbers:,}{f', {8 * self.nbytes / numbers:g} bits per weight' if numbers else ''}",
        }
        for name, (start, nbytes) in self.type.field_spans(self.shape).items():
            rows[name] = f"{nbytes:,} bytes at {self.position + start:,}"
        yield Listing("values by dequantize() or tensor[rows] for torch, by numpy() for numpy", ("", ""), [*rows.items()])

    @property
    def identity(self) -> tuple[Source, int, int, TensorType, tuple[int, ...]]:
        """Source and location. Equal for tensors of one open file that share a payload."""
        return self._source, self.position, self.nbytes, self.type, self.shape

    @property
    @outside_graphs
    def raw(self) -> memoryview:
        """The payload's bytes, read-only. Raises as `dequantize`."""
        return self._source.view(self.position, self.nbytes).toreadonly()

    @property
    @outside_graphs
    def payload(self) -> Record:
        """The payload's fields as arrays, ``payload.scales``. Raises as `dequantize`."""
        self._check_known()
        return self.type.parse(Cursor(self._source, self.position), self.shape, self.order)

    @property
    @outside_graphs
    def fields(self) -> dict[str, Array]:
        """The stored fields in file order, as arrays; for block types, each is [blocks, numbers].

        Raises as `dequantize`.
        """
        return self.type.columns(self.payload)

    @property
    def file(self) -> str:
        """Path of the tensor's file, or ``<bytes>``."""
        return self._source.name

    @property
    def missing(self) -> int:
        """Bytes of the payload that a truncated file lacks; see `glft_schema.open`."""
        return min(max(self.position + self.nbytes - self._source.size, 0), self.nbytes)

    def get_shape(self) -> list[int]:
        """Returns `shape` as a list, as in safetensors."""
        return list(self.shape)

    def get_dtype(self) -> str:
        """Returns the name of the type, as in safetensors."""
        return self.type.name

    @outside_graphs
    def packed_rows(self) -> Array:
        """Returns the payload as u8 [rows, bytes of a row], little-endian: a row per index of
        ``shape[0]``, or a single row for a tensor of fewer than two dims.

        For a block type in a mapped little-endian file, the result is a copy-on-write view of the
        file. Raises as `dequantize`.
        """
        self._source.check_open()
        return self.type.pack(self._fields())

    @outside_graphs
    def packed_part(self, index: Sequence[slice]) -> Array:
        """Returns a part of `packed_rows`, and reads no other bytes.

        Args:
            index: a slice of the rows, and a slice of their bytes with step 1.

        Raises:
            TensorError: if the part begins or ends inside a block. Others as `dequantize`.
        """
        self._source.check_open()
        self._check_known()
        rows, columns = matrix(self.shape)
        pitch = self.nbytes // max(rows, 1)
        wanted, unit = range(pitch)[index[1]], self.type.unit(self.shape)
        if len(wanted) == pitch:
            across = range(columns)
        else:
            size = pitch * unit // max(columns, 1) if len(list(self.type.fields())) == 1 else pitch
            if wanted.start % size or wanted.stop % size:
                problem = f"expected bytes {wanted.start} to {wanted.stop} of a row to begin and end at multiples of {size}"
                raise TensorError(f"{problem}, the size of a block", self.name)
            across = range(wanted.start // size * unit, wanted.stop // size * unit)
        fields = self.type.cut(self._source, self.position, self.shape, range(rows)[index[0]], across, self.order)
        return self.type.pack(fields)

    def pieces(self, order: ByteOrder | None = None) -> Iterator[memoryview]:
        """Yields the payload in chunks, unchanged or converted to another byte order.

        Raises:
            TensorError: if the byte order of an unknown type is to be changed.
            ClosedError, TruncatedError: as `dequantize`.
        """
        self._source.check_open()
        if order not in (None, self.order):
            yield from self.type.pieces(self._fields(), order or self.order)
            return
        for start in range(0, self.nbytes, PIECE):
            yield self._source.read(self.position + start, min(PIECE, self.nbytes - start))

    def span(self, first: int, last: int, order: ByteOrder | None = None) -> Iterator[tuple[int, memoryview]]:
        """Yields bytes `first` to `last` of the payload in chunks, each with its offset.

        Raises:
            TensorError: if they are to be converted to another byte order; see `fields_of`.
            ClosedError, TruncatedError: as `dequantize`.
        """
        if order not in (None, self.order):
            self._check_known()
            raise TensorError(f"expected the byte order of the file, {self.order}, found {order}", self.name)
        for start in range(first, last, PIECE):
            yield start, self._source.read(self.position + start, min(PIECE, last - start))

    def _fields(self) -> dict[str, Array]:
        return self.fields_of(range(matrix(self.shape)[0]))

    def fields_of(self, rows: range) -> dict[str, Array]:
        """Returns the fields of rows of the matrix, [rows, numbers per row], little-endian. Raises
        as `dequantize`."""
        self._check_known()
        columns = matrix(self.shape)[1]
        return self.type.cut(self._source, self.position, self.shape, rows, range(columns), self.order)

    def copy_to(self, stream: Any) -> int:
        """Copies the payload to a stream, in the kernel if possible. Returns the number of bytes.

        Raises:
            ClosedError, TruncatedError: as `dequantize`.
        """
        self._source.check_open()
        return copy_all(stream, self._source, self.position, self.nbytes)

    @outside_graphs
    def dequantize(
        self,
        dtype: torch.dtype | str | None = None,
        device: str | torch.device | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns the tensor's values.

        Args:
            dtype: a float dtype, or its name; by default float32 for quantized tensors and the
                stored dtype for others, or the dtype of `out`.
            device: by default the file's device, or the device of `out`.
            out: the destination, a contiguous tensor of `shape`, which is returned. Reused memory
                is several times as fast as new memory.

        Returns:
            A tensor of `shape`. Without `out`, an unquantized tensor in its own dtype on the CPU is
            a view of a mapped little-endian file. Writing to it changes other views of the open
            file, but neither the file nor files built from it.

        Raises:
            ClosedError: if the file is closed.
            TruncatedError: if the file lacks bytes of the payload.
            TensorError: if the type is unknown, or `out` has another shape, dtype or device.
            ValueError: if `dtype` is not a float dtype.
            OptionError: if torch cannot use the device, or is not installed.
        """
        dtype = torch_dtype(dtype)
        self._source.check_open()
        self._check_known()
        rows, columns = matrix(self.shape)
        if out is None:
            if str(device or self.device) == "cpu" and (dtype is None or dtype == self._torch_dtype):
                stored = self._as_mapped()
                if stored is not None:
                    return as_tensor(stored)
            return self._numbers(range(rows), range(columns), dtype, device).reshape(self.shape)
        self.check_out(out, self.shape, dtype, device)
        self._numbers(range(rows), range(columns), dtype, device, out.detach().view(rows, columns))
        return out

    @outside_graphs
    def numpy(self, index: Indices = ..., dtype: Any = None) -> Array:
        """Returns the values, or a part of them, as a numpy array.

        bfloat16, float8 and float4, which numpy lacks, are float32 by default. A byte of float4 has
        two numbers, so the last dim doubles.

        Args:
            index: integers, slices and ``...``, as in numpy; see `read`.
            dtype: of the result; by default the stored one, float32 for quantized tensors. For
                dtypes that numpy lacks, one of ml_dtypes.

        Returns:
            An array, which is a view of a mapped little-endian file if the numbers keep their
            dtype. Writing to it changes other views of the open file, but not the file.

        Raises:
            IndexError: as numpy does; also for a step below 1 and other kinds of index.
            ClosedError, TruncatedError: as `dequantize`.
            TensorError: if the type is unknown.
        """
        values = self.array(index)
        return widen(values) if dtype is None else convert(values, np.dtype(dtype))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Returns the values for numpy, as `numpy`.

        Raises ValueError if `copy` is False and the values are not those in a mapped file. Others
        as `dequantize`.
        """
        array = self.numpy(dtype=dtype)
        is_view = self._as_mapped() is not None and array.dtype == self.type.dtype
        if copy is False and not is_view:
            raise ValueError(f"tensor {quote(self.name)}: expected copy=None or copy=True, since values are decoded")
        return array.copy() if copy and is_view else array

    @outside_graphs
    def array(self, index: Indices = ...) -> Array:
        """Returns the values, or a part of them, in the type's own dtype; see `storage.dtypes`.
        Raises as `numpy`."""
        self._source.check_open()
        self._check_known()
        if index is ...:
            rows, columns = matrix(self.shape)
            stored = self._as_mapped()
            return self._array(range(rows), range(columns)).reshape(self.shape) if stored is None else stored
        part = self._part(index)
        if 0 in part.shape:
            return np.empty(part.shape, self.type.dtype)
        block = self._array(part.rows, part.columns)
        view = as_strided(block[:, part.first :], part.shape, part.strides(*block.strides))
        return view if self._is_view or view.size == block.size else view.copy()

    def _array(self, rows: range, columns: range) -> Array:
        """Returns part of the matrix [out, in]; `columns` is aligned to the type's unit."""
        return self.type.decode(self.type.cut(self._source, self.position, self.shape, rows, columns, self.order), len(columns))

    def _as_mapped(self) -> Array | None:
        """Returns the values as a view of a mapped file that stores them unchanged, or None."""
        if not self.type.exact or not self._source.mapped or self.order != LITTLE:
            return None
        return array_over(self._source.private(self.position, self.nbytes), self.type.dtype, self.shape)

    def check_out(
        self,
        out: torch.Tensor,
        shape: Sequence[int],
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        """Raises TensorError if `out` cannot take values of the tensor in `shape`."""
        if not isinstance(out, torch.Tensor) or tuple(out.shape) != tuple(shape):
            found = list(out.shape) if isinstance(out, torch.Tensor) else quote(out)
            raise TensorError(f"expected out as a torch.Tensor of {list(shape)}, found {found}", self.name)
        own = self._torch_dtype
        if out.dtype != (dtype or out.dtype) or not (out.dtype.is_floating_point or out.dtype == own):
            possible = "a float dtype" if own.is_floating_point else f"a float dtype or {own}"
            raise TensorError(f"expected out as {dtype or possible}, found {out.dtype}", self.name)
        if device is not None and out.device != torch.empty(0, device=usable_device(device)).device:
            raise TensorError(f"expected out on {device}, found {out.device}", self.name)
        if not out.is_contiguous():
            raise TensorError(f"expected a contiguous out, found strides {list(out.stride())}", self.name)

    def chunks(self, numbers: int = CHUNK) -> Iterator[torch.Tensor]:
        """Yields the values in C order as flat tensors, to process tensors larger than memory.

        Args:
            numbers: target size of a chunk; weights that share a scale stay together.

        Raises:
            ClosedError, TruncatedError, TensorError: as `dequantize`.
        """
        for part in self._chunks(numbers):
            yield self._numbers(*part, None, None).reshape(-1)

    def arrays(self, numbers: int = CHUNK) -> Iterator[Array]:
        """Yields the values as `chunks`, as flat arrays in the type's own dtype; see `array`."""
        for part in self._chunks(numbers):
            yield self._array(*part).reshape(-1)

    @outside_graphs
    def _chunks(self, numbers: int) -> Iterator[tuple[range, range]]:
        """Returns rows and columns of the matrix, chunk by chunk; none if the tensor is empty."""
        self._check_known()
        (out, columns), unit = matrix(self.shape), self.type.unit(self.shape)
        if 0 in (out, columns):
            return iter(())
        rows, width = max(numbers // columns, 1), columns if columns <= numbers else max(numbers // unit, 1) * unit
        return (
            (range(row, min(row + rows, out)), range(first, min(first + width, columns)))
            for row in range(0, out, rows)
            for first in range(0, columns, width)
        )

    def __getitem__(self, index: Indices) -> torch.Tensor:
        """Returns a part of the tensor, see `read`."""
        return self.read(index)

    @outside_graphs
    def read(self, index: Indices, *, dtype: torch.dtype | str | None = None, out: torch.Tensor | None = None) -> torch.Tensor:
        """Returns a part of the tensor. Indices are integers, slices and ``...``, as in torch.

        Reads, in each selected row, the bytes from the first to the last element, rounded to whole
        blocks.

        Args:
            index: as in ``tensor[index]``.
            dtype: as `dequantize`.
            out: the destination, as `dequantize`, of the part's shape.

        Raises:
            IndexError: as torch does; also for a step below 1 and other kinds of index.
            ClosedError, TruncatedError, TensorError, ValueError: as `dequantize`.
        """
        self._source.check_open()
        self._check_known()
        dtype, part = torch_dtype(dtype), self._part(index)
        rows, columns, shape = part[:3]
        if out is not None:
            self.check_out(out, shape, dtype)
            dtype = out.dtype
        if 0 in shape:
            dtype = dtype or self._torch_dtype
            return torch.empty(shape, dtype=dtype, device=usable_device(self.device)) if out is None else out
        if out is not None and math.prod(shape) == len(rows) * len(columns):  # then the block has no other numbers
            self._numbers(rows, columns, dtype, None, out.detach().view(len(rows), len(columns)))
            return out
        block = self._numbers(rows, columns, dtype, None if out is None else out.device)
        down, across = block.stride()
        view = block.as_strided(shape, part.strides(down, across), block.storage_offset() + part.first * across)
        if out is not None:
            out.detach().copy_(view)
            return out
        is_view = self._is_view and block.device.type == "cpu"
        return view if is_view or view.numel() == block.numel() else view.clone()

    @property
    def _is_view(self) -> bool:
        """Whether values that keep their dtype are those in a mapped file."""
        return bool(self._source.mapped and self.type.exact and self.order == LITTLE)

    def _part(self, index: Indices) -> MatrixBlock:
        """Returns the location of a part. Raises IndexError as `read`."""
        ranges, dropped = self._ranges(index)
        shape = [len(part) for part, drop in zip(ranges, dropped, strict=True) if not drop]
        if 0 in shape:
            return MatrixBlock(range(0), range(0), shape, [], 0)
        has_rows = len(ranges) > 1  # otherwise the matrix has one row, see `matrix`
        rows, inner = (ranges[0], ranges[1:]) if has_rows else (range(1), ranges)
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(has_rows, len(self.shape))]
        first = sum(part[0] * stride for part, stride in zip(inner, strides, strict=True))
        last = sum(part[-1] * stride for part, stride in zip(inner, strides, strict=True))
        unit = self.type.unit(self.shape)
        columns = range(first // unit * unit, -(-(last + 1) // unit) * unit)
        steps = [*[None] * has_rows, *(stride * part.step for part, stride in zip(inner, strides, strict=True))]
        kept = [step for step, drop in zip(steps, dropped, strict=True) if not drop]
        return MatrixBlock(rows, columns, shape, kept, first - columns.start)

    @property
    def _torch_dtype(self) -> torch.dtype:
        """The type's own dtype in torch. Raises TensorError if this version of torch has none."""
        try:
            return dtype_in_torch(self.type.dtype)
        except TypeError as error:
            raise TensorError(f"{error}: {self.type} can be read by numpy() only", self.name) from None

    def _check_known(self) -> None:
        if problem := self.type.bytes_only:
            raise TensorError(problem, self.name)

    def _ranges(self, index: Indices) -> tuple[list[range], list[bool]]:
        """Returns the range of each dim, and whether the result drops the dim."""
        indices = list(index) if isinstance(index, tuple) else [index]
        if any(part is None for part in indices):
            raise IndexError("new axes (None) are not supported in slices: index with integers, slices and ...")
        ellipses = [at for at, part in enumerate(indices) if part is ...] or [len(indices)]
        if len(ellipses) > 1:
            raise IndexError("an index can have at most one ellipsis ('...')")
        missing = len(self.shape) - sum(part is not ... for part in indices)
        if missing < 0:
            raise IndexError(f"too many indices for tensor {quote(self.name)} of {len(self.shape)} dims")
        indices[ellipses[0] : ellipses[0] + 1] = [slice(None)] * missing
        ranges = []
        for axis, (part, size) in enumerate(zip(indices, self.shape, strict=True)):
            if isinstance(part, slice) and (part.step is None or part.step > 0):
                picked = range(size)[part]
                ranges.append(range(picked[0], picked[0] + 1) if len(picked) == 1 else picked)  # any step
                continue
            try:
                at = None if isinstance(part, (bool, slice, EllipsisType)) else operator.index(part)  # accepts numpy integers
            except TypeError:
                at = None
            if at is None:
                raise IndexError(f"expected an integer, a slice with a positive step, or ..., found {quote(part)}")
            if not -size <= at < size:
                raise IndexError(f"index {at} is out of bounds for dim {axis} of size {size}")
            ranges.append(range(at % size, at % size + 1))
        return ranges, [not isinstance(part, slice) for part in indices]

    @outside_graphs
    def _numbers(
        self,
        rows: range,
        columns: range,
        dtype: torch.dtype | None,
        device: str | torch.device | None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns part of the matrix [out, in]; `columns` is aligned to the type's unit."""
        if out is not None:
            dtype, device = out.dtype, out.device
        own = self._torch_dtype
        dtype, device = dtype or own, device or self.device
        if not dtype.is_floating_point and dtype != own:
            raise ValueError(f"expected a float dtype, found {dtype}")
        if "float4" in str(own) and dtype != own:
            problem = "an element holds two float4 numbers, which torch cannot convert to another dtype: use tensor.numpy()"
            raise TensorError(f"expected {own}, found {dtype}; {problem}", self.name)
        from glft_schema.tensor_types import on_torch  # slow to import

        fields = self.type.cut(self._source, self.position, self.shape, rows, columns, self.order)
        tensors = {name: to_device(as_tensor(field), device) for name, field in fields.items()}
        return on_torch.decode(self.type, tensors, len(columns), dtype=dtype, out=out)
