"""A tensor in a file. Only the bytes needed for a request are read."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from glft_schema.codec.context import LITTLE, ByteOrder
from glft_schema.codec.records import Record
from glft_schema.display import Listing, Part, with_display
from glft_schema.errors import OptionError, TensorError, quote
from glft_schema.lazy import outside_graphs, torch
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.dtypes import Array, Dtype, as_dtype
from glft_schema.storage.source import BytesSource, Source
from glft_schema.storage.tensor_bytes import array_bytes, copy_all, pieces, read_array, write_all
from glft_schema.storage.torch_tensors import as_tensor, dtype_in_torch, torch_dtype, usable_device
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.chunks import CHUNK
from glft_schema.tensor_types.conversions import convert, widen
from glft_schema.tensor_types.payload_layout import matrix
from glft_schema.tensors.indexing import Indices, MatrixBlock, part_at

AHEAD = 1 << 27  # bytes


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
        self._check_readable()
        return self.type.parse(Cursor(self._source, self.position), self.shape, self.order)

    @property
    @outside_graphs
    def fields(self) -> dict[str, Array]:
        """The stored fields in file order, as arrays; for block types, each is [blocks, numbers].

        Raises as `dequantize`.
        """
        payload, fields = self.payload, dict[str, Array]()
        for name, part in self.type.fields():
            fields |= part.columns(name, payload[name])
        return fields

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

    def rows(self, rows: range | None = None, columns: range | None = None) -> dict[str, Array]:
        """Returns the stored fields of a part of the matrix [out, in], [rows, numbers per row],
        little-endian; see `TensorType.cut`. Raises as `dequantize`.

        Args:
            rows: with any positive step; all by default.
            columns: with step 1, whole units of the type; all by default.
        """
        self._check_readable()
        rows = range(matrix(self.shape)[0]) if rows is None else rows
        columns = range(matrix(self.shape)[1]) if columns is None else columns
        return self.type.cut(self._source, self.position, self.shape, rows, columns, self.order)

    @outside_graphs
    def packed_rows(self, index: Sequence[slice] | None = None) -> Array:
        """Returns the payload, or a part of it, as u8 [rows, bytes of a row], little-endian: a row
        per index of ``shape[0]``, or a single row for a tensor of fewer than two dims.

        For a block type in a mapped little-endian file, the result is a copy-on-write view of the
        file.

        Args:
            index: a slice of the rows, and a slice of their bytes with step 1.

        Raises:
            TensorError: if the part begins or ends inside a block. Others as `dequantize`.
        """
        if index is None:
            return self.type.pack(self.rows())
        rows, columns = matrix(self.shape)
        pitch = self.nbytes // max(rows, 1)
        wanted, unit = range(pitch)[index[1]], self.type.unit(self.shape)
        across = range(columns)
        if len(wanted) < pitch:
            size = pitch * unit // max(columns, 1) if len(list(self.type.fields())) == 1 else pitch
            if wanted.start % size or wanted.stop % size:
                problem = f"expected bytes {wanted.start} to {wanted.stop} of a row to begin and end at multiples of {size}"
                raise TensorError(f"{problem}, the size of a block", self.name)
            across = range(wanted.start // size * unit, wanted.stop // size * unit)
        return self.type.pack(self.rows(range(rows)[index[0]], across))

    def pieces(self, order: ByteOrder | None = None, first: int = 0, last: int | None = None) -> Iterator[memoryview]:
        """Yields the payload in chunks, unchanged or converted to another byte order.

        Args:
            order: a byte order; by default that of the file.
            first, last: bytes of an unchanged payload; all by default.

        Raises:
            TensorError: if the byte order of an unknown type, or of a part, is to be changed.
            ClosedError, TruncatedError: as `dequantize`.
        """
        self._source.check_open()
        last = self.nbytes if last is None else last
        if order in (None, self.order):
            yield from pieces(self._source, self.position + first, last - first)
            return
        fields = self.rows()
        if last - first < self.nbytes:
            raise TensorError(f"expected the byte order of the file, {self.order}, found {order}", self.name)
        yield from self.type.pieces(fields, order or self.order)

    def write_to(self, stream: Any, order: ByteOrder = LITTLE) -> int:
        """Writes the payload to a stream in a byte order; if it is the file's, in the kernel if
        possible. Returns the number of bytes. Raises as `pieces`."""
        self._source.check_open()
        if order == self.order:
            return copy_all(stream, self._source, self.position, self.nbytes)
        return sum(write_all(stream, piece) for piece in self.pieces(order))

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
        return self._start(self._part(...), dtype, device, out)()

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
        is_view = self._is_view and array.dtype == self.type.dtype
        if copy is False and not is_view:
            raise ValueError(f"tensor {quote(self.name)}: expected copy=None or copy=True, since values are decoded")
        return array.copy() if copy and is_view else array

    @outside_graphs
    def array(self, index: Indices = ...) -> Array:
        """Returns the values, or a part of them, in the type's own dtype; see `storage.dtypes`.
        Raises as `numpy`."""
        return self._array(self._part(index))

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
        if device is not None and out.device != usable_device(device):
            raise TensorError(f"expected out on {device}, found {out.device}", self.name)
        if not out.is_contiguous():
            raise TensorError(f"expected a contiguous out, found strides {list(out.stride())}", self.name)

    def chunks(self, numbers: int = CHUNK) -> Iterator[torch.Tensor]:
        """Yields the values in C order as flat tensors, to process tensors larger than memory.

        Args:
            numbers: target size of a chunk, which is whole rows, or part of a longer row; weights
                that share a scale stay together.

        Raises:
            ClosedError, TruncatedError, TensorError, OptionError: as `dequantize`.
        """
        for part in self._chunks(numbers):
            yield self._chunk(part)

    def arrays(self, numbers: int = CHUNK) -> Iterator[Array]:
        """Yields the values as flat arrays of numpy, in the dtypes of `numpy`, else as `chunks`."""
        for part in self._chunks(numbers):
            yield widen(self._array(part))

    @outside_graphs
    def _chunks(self, numbers: int) -> Iterator[MatrixBlock]:
        """Returns the blocks of the matrix, chunk by chunk; none if the tensor is empty."""
        self._check_readable()
        (out, columns), unit = matrix(self.shape), self.type.unit(self.shape)
        if 0 in (out, columns):
            return iter(())
        rows, width = max(numbers // columns, 1), columns if columns <= numbers else max(numbers // unit, 1) * unit
        return (
            MatrixBlock.flat(range(row, min(row + rows, out)), range(first, min(first + width, columns)))
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
        return self._start(self._part(index), dtype, out=out)()

    @property
    def _is_view(self) -> bool:
        """Whether values that keep their dtype are those in a mapped file."""
        return bool(self._source.mapped and self.type.exact and self.order == LITTLE)

    @property
    def _torch_dtype(self) -> torch.dtype:
        """The type's own dtype in torch. Raises TensorError if this version of torch has none, and
        OptionError if torch is not installed."""
        try:
            return dtype_in_torch(self.type.dtype)
        except OptionError as error:
            raise OptionError(f"{error}; without torch: tensor.numpy(index=...), tensor.arrays(), glft_schema.numpy") from None
        except TypeError as error:
            raise TensorError(f"{error}: {self.type} can be read by numpy() only", self.name) from None

    @outside_graphs
    def _chunk(self, part: MatrixBlock) -> torch.Tensor:
        return self._start(part)()

    def _check_readable(self) -> None:
        """Raises ClosedError, or TensorError if the type has no values."""
        self._source.check_open()
        if problem := self.type.bytes_only:
            raise TensorError(problem, self.name)

    def _part(self, index: Indices) -> MatrixBlock:
        """Returns the location of a part. Raises as `read`."""
        self._check_readable()
        if index is ...:
            rows, columns = matrix(self.shape)
            return MatrixBlock(range(rows), range(columns), self.shape)
        return part_at(index, self.shape, self.type.unit(self.shape), self.name)

    def _array(self, part: MatrixBlock, dtype: Dtype | None = None) -> Array:
        """Returns the values of a part, in the type's own dtype by default; a view if they are
        those in a mapped file."""
        is_view = self._is_view
        if is_view and part.shape is self.shape:  # the same as below, for thousands of small vectors
            return read_array(self._source, self.position, self.type.dtype, self.shape)
        block = self.type.decode(self.rows(part.rows, part.columns), len(part.columns), dtype=dtype)
        view = part.of_array(block)
        return view if part.is_whole or is_view else view.copy()

    def _start(
        self,
        part: MatrixBlock,
        dtype: torch.dtype | str | None = None,
        device: str | torch.device | None = None,
        out: torch.Tensor | None = None,
    ) -> Callable[[], torch.Tensor]:
        """Starts to copy a part to a GPU. Returns a function that returns its values, or `out` with
        them; see `dequantize` and `read`."""
        own, dtype = self._torch_dtype, torch_dtype(dtype)
        if out is not None:
            self.check_out(out, part.shape, dtype, device)
            dtype, device = out.dtype, out.device
            if not part.is_whole:
                out.detach().copy_(self._start(part, dtype, device)())
                return lambda: out
        dtype, device = dtype or own, device or self.device
        if dtype != own and not dtype.is_floating_point:
            raise ValueError(f"expected a float dtype, found {dtype}")
        if dtype != own and "float4" in str(own):
            problem = "an element holds two float4 numbers, which torch cannot convert to another dtype: use tensor.numpy()"
            raise TensorError(f"expected {own}, found {dtype}; {problem}", self.name)
        if out is None and str(device) == "cpu":
            is_written = dtype != own and not self.type.exact and dtype.itemsize > 1
            values = as_tensor(self._array(part, as_dtype(dtype) if is_written else None)).to(dtype)
            return lambda: values
        from glft_schema.tensor_types import on_torch  # slow to import, as below
        from glft_schema.tensors.uploads import start_upload

        columns = len(part.columns)
        block = None if out is None else out.detach().view(len(part.rows), columns)
        if out is not None and block is not None and str(device) == "cpu":
            on_torch.decode_arrays(self.type, self.rows(part.rows, part.columns), columns, block)
            return lambda: out
        start = partial(start_upload, device)
        read = start if self.order == LITTLE else read_array
        fields = self.type.cut(self._source, self.position, self.shape, part.rows, part.columns, self.order, read)
        for name, field in fields.items():
            if isinstance(field, np.ndarray):
                fields[name] = start(BytesSource(array_bytes(field)), 0, field.dtype, field.shape)

        def finish() -> torch.Tensor:
            tensors = {name: wait() for name, wait in fields.items()}
            view = part.of_tensor(on_torch.decode(self.type, tensors, columns, dtype=dtype, out=block))
            if out is not None:
                return out
            return view if part.is_whole else view.clone()

        return finish


def dequantize_each(tensors: Iterable[tuple[Tensor, torch.Tensor | None]], dtype: torch.dtype | None) -> Iterator[torch.Tensor]:
    """Yields the values of tensors as `Tensor.dequantize`, given the `out` of each. On a GPU, the
    next `AHEAD` bytes are read while a tensor is copied and decoded."""
    started: deque[tuple[int, Callable[[], torch.Tensor]]] = deque()
    ahead = 0
    for tensor, out in tensors:
        started.append((tensor.nbytes, tensor._start(tensor._part(...), dtype, out=out)))
        ahead += tensor.nbytes
        while ahead - started[0][0] > AHEAD:
            nbytes, finish = started.popleft()
            ahead -= nbytes
            yield finish()
    yield from (finish() for _, finish in started)
