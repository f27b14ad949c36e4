"""`StoredTensor`, a tensor that is read or computed when needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glft_schema.display import with_display
from glft_schema.storage.dtypes import Array, Dtype, as_dtype, name_of, words
from glft_schema.storage.source import Source
from glft_schema.storage.tensor_bytes import array_bytes
from glft_schema.storage.torch_tensors import array_of
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.payload_layout import matrix
from glft_schema.tensors.tensor import PayloadLocation, Tensor

Slices = tuple[slice, ...]  # one for each dim, with a start and a stop


@with_display
@dataclass(frozen=True)
class StoredTensor:
    """A tensor whose values are read when needed.

    Attributes:
        shape: its sizes.
        dtype: a dtype of numpy or torch; kept as a dtype of numpy, see `storage.dtypes`.
        load: returns its values, an array or a torch tensor; called for each use, and the result is
            not kept. `values` returns an array.
        identity: equal for tensors with the same storage; None if unknown.
        file_tensor: the `Tensor` that holds its bytes, or None.
        importance: see `TensorType.encode`; None if unknown.
        read: returns a part, at a slice for each dim; None if `part` reads it in another way.
        quantized: the quantized type that its values have been rounded to, or None.
        companions: numbers that scale the bytes of `file_tensor`, by the last part of the name of
            the tensor that has them in GGUF. They are part of the values.
        origin: the scheme of a weight that is stored as several tensors, in words.
        transposed: the tensor of which this is the transpose, matrix by matrix, or None.
    """

    shape: tuple[int, ...]
    dtype: Dtype
    load: Callable[[], Any]
    identity: Hashable = None
    file_tensor: Tensor | None = None
    importance: Array | None = None
    read: Callable[[Slices], Any] | None = None
    quantized: TensorType | None = None
    transposed: StoredTensor | None = None
    companions: Mapping[str, Array] = field(default_factory=dict)
    origin: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", as_dtype(self.dtype))

    def values(self) -> Array:
        """Returns all values."""
        array: Array = array_of(self.load())
        return array

    def _display(self) -> Iterator[str]:
        type_ = self.file_tensor.type if self.file_tensor else name_of(self.dtype)
        yield f"{type_} {list(self.shape)}"

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def packed(self) -> Tensor | None:
        """The `Tensor` that holds its bytes, if its type is quantized; otherwise None."""
        return self.file_tensor if self.file_tensor is not None and self.file_tensor.type.is_quantized else None

    @property
    def has_parts(self) -> bool:
        """Whether `part` reads no more than it returns."""
        is_source = self.read is not None or self.file_tensor is not None
        return is_source or (self.transposed is not None and self.transposed.has_parts)

    def part(self, index: Slices) -> Array:
        """Returns the values at one slice for each dim. Reads only these if possible."""
        array: Array
        if self.read is not None:
            array = array_of(self.read(index))
        elif self.file_tensor is not None:
            array = self.file_tensor.array(index)
        elif self.transposed is not None:
            array = self.transposed.part((*index[:-2], index[-1], index[-2])).swapaxes(-1, -2)
        else:
            array = self.values()[index]
        return array

    def rows(self, rows: slice) -> Array:
        """Returns a slice of the first dim, or all values of a tensor without dims."""
        return self.part((rows, *(slice(0, size) for size in self.shape[1:]))[: len(self.shape)])


def of_file(tensor: Tensor) -> StoredTensor:
    """Returns a tensor of an open file."""
    type_, identity = tensor.type, tensor.identity if tensor.nbytes else None
    quantized = type_ if type_.is_quantized else None
    return StoredTensor(tensor.shape, type_.dtype, tensor.array, identity, tensor, quantized=quantized)


def of_values(values: Any) -> StoredTensor:
    """Returns a tensor with its values, an array or a torch tensor, in memory."""
    values = array_of(values)
    return StoredTensor(values.shape, values.dtype, lambda: values, read=values.__getitem__)


def of_packed(
    name: str, shape: Sequence[int], type_: TensorType, read: Callable[[Slices], Array], missing: int = 0
) -> StoredTensor:
    """Returns a quantized tensor whose bytes are computed.

    Args:
        name: of the tensor.
        shape: its sizes.
        type_: its type.
        read: returns the part of `Tensor.packed_rows` at a slice of rows and a slice of bytes.
        missing: bytes that a truncated file lacks.
    """
    place = PayloadLocation(0, type_.nbytes(shape), type_, tuple(shape))
    return of_file(Tensor(name, shape, place, _PackedSource(place, read, missing), 0))


def transpose(source: StoredTensor) -> StoredTensor:
    """Returns a tensor with its matrices transposed."""
    if source.transposed is not None:
        return source.transposed
    *outer, rows, columns = source.shape
    load, shape = lambda: np.ascontiguousarray(source.values().swapaxes(-1, -2)), (*outer, columns, rows)
    return StoredTensor(shape, source.dtype, load, transposed=source, quantized=source.quantized)


class _PackedSource(Source):
    """The payload of a quantized tensor, computed by whole rows.

    Args:
        place: of the tensor.
        read, missing: as for `of_packed`.
    """

    def __init__(self, place: PayloadLocation, read: Callable[[Slices], Array], missing: int) -> None:
        super().__init__("<computed>", max(place.nbytes - missing, 0))
        self._rows, self._read = max(matrix(place.shape)[0], 1), read
        self._fields = place.type.field_spans(place.shape).values()
        self._kept: tuple[tuple[int, int], memoryview] | None = None  # a row that was not read to its end

    def _view(self, start: int, nbytes: int) -> memoryview:
        view, column = bytearray(nbytes), 0
        for at, size in self._fields:
            pitch, first, last = size // self._rows, max(start, at), min(start + nbytes, at + size)
            if first < last:
                row, stop = (first - at) // pitch, -((at - last) // pitch)
                kept, self._kept = self._kept, None
                parts = [kept[1]] if kept is not None and kept[0] == (row, column) else []
                if row + len(parts) < stop:
                    parts.append(array_bytes(self._read((slice(row + len(parts), stop), slice(column, column + pitch)))))
                stored = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
                skipped = first - at - row * pitch
                view[first - start : last - start] = stored[skipped : skipped + last - first]
                if (last - at) % pitch:
                    self._kept = (stop - 1, column), stored[(stop - 1 - row) * pitch :]
            column += pitch
        return memoryview(view)

    def _private(self, start: int, nbytes: int) -> memoryview:
        return self._view(start, nbytes)


def are_equal(tensor: StoredTensor, other: StoredTensor) -> bool:
    """Tells whether two tensors have the same type and bytes."""
    one, two = tensor.file_tensor, other.file_tensor
    if one is not None and two is not None:
        return (one.type, one.raw) == (two.type, two.raw)
    if tensor.packed and other.packed and tensor.packed.type != other.packed.type:
        return False
    return have_equal(tensor.values(), other.values())


def have_equal(array: Array, other: Array) -> bool:
    """Tells whether two arrays have the same dtype and numbers."""
    return array.dtype == other.dtype and np.array_equal(words(array), words(other))
