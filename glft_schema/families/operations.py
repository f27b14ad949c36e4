"""Tensors computed on use, and the invertible operations between the layouts of Hugging Face and
GGUF.

An operation is a pair of functions on torch tensors. Applied to `LazyTensor`s, the functions run on
meta tensors for the shapes, and on values when a result is loaded. A function that only moves rows
also runs on the rows' numbers, which tells the rows that a part of its result consists of.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, groupby
from typing import Any, Literal, NamedTuple

from glft_schema.errors import TensorError
from glft_schema.lazy import torch
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.tensor import Tensor

Config = Mapping[str, Any]
Function = Callable[[Sequence["torch.Tensor"]], Sequence["torch.Tensor"]]
Slices = tuple[slice, ...]  # one for each dim, with a start and a stop
Scope = Literal["rows", "elements", "tensors"]


@dataclass(frozen=True)
class LazyTensor:
    """A tensor whose values are computed when loaded.

    Attributes:
        shape: its sizes.
        dtype: its torch dtype.
        load: returns its values; called for each use, and the result is not kept.
        file_tensor: the tensor of a weights file with these values, or None.
        packed: the bytes of a quantized tensor, or None.
        transposed: the matrix that this one is the transpose of, or None.
        read: returns a part of the values, or None if that takes all of them.
        quantized: the quantized type that the values have been rounded to, or None.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], torch.Tensor]
    file_tensor: Tensor | None = None
    packed: Packed | None = None
    transposed: LazyTensor | None = None
    read: Callable[[Slices], torch.Tensor] | None = None
    quantized: TensorType | None = None

    def part(self, index: Slices) -> torch.Tensor:
        """Returns the values at one slice for each dim. Reads no others if it can."""
        if self.file_tensor is not None:
            return self.file_tensor[index]
        if self.transposed is not None and len(self.shape) == 2:
            return self.transposed.part(index[::-1]).T
        return self.load()[index] if self.read is None else self.read(index)


class Packed(NamedTuple):
    """A quantized tensor's bytes.

    Attributes:
        type: the tensor's type.
        load: returns the payload, u8 [rows, bytes of a row], as `Tensor.packed`.
        read: returns a part of the payload, at one slice for each of its dims.
    """

    type: TensorType
    load: Callable[[], torch.Tensor]
    read: Callable[[Slices], torch.Tensor]


def of_file(tensor: Tensor) -> LazyTensor:
    """Returns a tensor of an open file."""
    type_ = tensor.dtype
    packed = Packed(type_, tensor.packed, tensor.packed_part) if type_.is_quantized else None
    quantized = packed.type if packed else None
    return LazyTensor(tensor.shape, type_.dtype, tensor.dequantize, tensor, packed, quantized=quantized)


def of_values(values: torch.Tensor) -> LazyTensor:
    """Returns a tensor with its values in memory."""
    return LazyTensor(tuple(values.shape), values.dtype, lambda: values)


def applied(function: Function, sources: Sequence[LazyTensor], name: str, scope: Scope = "tensors") -> list[LazyTensor]:
    """Returns the results of a function.

    Args:
        function: from tensors to tensors.
        sources: its arguments.
        name: the tensor that errors are about.
        scope: see `Operation`.

    Raises:
        TensorError: if the function refuses the shapes.
    """
    try:
        planned = function([torch.empty(source.shape, dtype=source.dtype, device="meta") for source in sources])
    except RuntimeError:
        shapes = ", ".join(str(list(source.shape)) for source in sources[:2])
        raise TensorError(f"expected a shape that fits the config, found {shapes}", name) from None

    def loading(number: int) -> Callable[[], torch.Tensor]:
        return lambda: function([source.load() for source in sources])[number].contiguous()

    def packing(number: int) -> Callable[[], torch.Tensor]:
        rows = len(planned[number])
        return lambda: function([_rows_of_bytes(source) for source in sources])[number].reshape(rows, -1)

    types = {source.packed.type if source.packed else None for source in sources} if scope == "rows" else {None}
    type_ = types.pop() if len(types) == 1 else None
    moved = [
        _MovedRows(function, sources, i) if scope == "rows" and result.dim() > 1 else None for i, result in enumerate(planned)
    ]
    return [
        LazyTensor(
            tuple(result.shape),
            result.dtype,
            loading(i),
            packed=Packed(type_, packing(i), rows.packed) if type_ and (rows := moved[i]) else None,
            read=rows.values if (rows := moved[i]) else _by_element(function, sources, i) if scope == "elements" else None,
            quantized=quantized_type(sources),
        )
        for i, result in enumerate(planned)
    ]


def quantized_type(sources: Iterable[LazyTensor]) -> TensorType | None:
    """Returns the quantized type of the first source that has one, or None."""
    return next((source.quantized for source in sources if source.quantized), None)


def _by_element(function: Function, sources: Sequence[LazyTensor], number: int) -> Callable[[Slices], torch.Tensor]:
    return lambda index: function([source.part(index) for source in sources])[number]


class _MovedRows:
    """The result of a function that moves rows of the last dim, read row by row.

    Args:
        function: from tensors to tensors.
        sources: its arguments, of two or more dims.
        number: of the result.
    """

    def __init__(self, function: Function, sources: Sequence[LazyTensor], number: int) -> None:
        self._sources = sources
        self._starts = [0, *accumulate(math.prod(source.shape[:-1]) for source in sources)]
        self._origins = cache(lambda: function(self._numbers())[number].squeeze(-1))  # i64, of each row

    def _numbers(self) -> list[torch.Tensor]:
        """Returns a number for each row of the sources, in their shapes with a last dim of 1."""
        return [
            torch.arange(start, start + math.prod(source.shape[:-1])).view(*source.shape[:-1], 1)
            for start, source in zip(self._starts, self._sources, strict=False)
        ]

    def values(self, index: Slices) -> torch.Tensor:
        """Returns a part of the values."""
        origins = self._origins()[index[:-1]]
        found = self._gathered(origins.flatten(), lambda source, at: source.part((*at, index[-1])))
        return found.view(*origins.shape, -1)

    def packed(self, index: Slices) -> torch.Tensor:
        """Returns a part of the bytes, u8 [rows, bytes of a row], by rows of the first dim."""
        origins, across = self._origins()[index[0]], index[1]

        def read(source: LazyTensor, at: Slices) -> torch.Tensor:
            assert source.packed is not None
            if len(at) == 1:
                return source.packed.read((at[0], across if origins.dim() == 1 else _all_bytes(source, 1)))
            size = _all_bytes(source, source.shape[-2]).stop // source.shape[-2]
            rows, columns = at[-1], slice(at[-1].start * size, at[-1].stop * size)
            return source.packed.read((at[0], columns)).view(-1, size)[:: rows.step or 1]

        found = self._gathered(origins.flatten(), read)
        return found if origins.dim() == 1 else found.view(len(origins), -1)[:, across]

    def _gathered(self, origins: torch.Tensor, read: Callable[[LazyTensor, Slices], torch.Tensor]) -> torch.Tensor:
        """Returns rows by their numbers. `read` returns rows of one matrix at slices."""
        ordered, order = origins.sort()
        pieces = [read(source, at) for source, at in self._spans(ordered.tolist())]
        pieces = [piece.reshape(-1, piece.shape[-1]) for piece in pieces]
        found = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return found if torch.equal(origins, ordered) else torch.empty_like(found).index_copy_(0, order.to(found.device), found)

    def _spans(self, numbers: Sequence[int]) -> Iterator[tuple[LazyTensor, Slices]]:
        """Yields rows at equal distances in one matrix of a source, by slices of all dims but the
        last."""

        def matrix_of(number: int) -> tuple[int, int]:
            source = bisect_right(self._starts, number) - 1
            return source, (number - self._starts[source]) // self._sources[source].shape[-2]

        for (at, matrix), group in groupby(numbers, matrix_of):
            source, rows = self._sources[at], [number - self._starts[at] for number in group]
            outer = _unravelled(matrix, source.shape[:-2])
            first = matrix * source.shape[-2]
            for row, step, count in _progressions([row - first for row in rows]):
                yield source, (*outer, slice(row, row + (count - 1) * step + 1, step))


def _unravelled(number: int, shape: Sequence[int]) -> list[slice]:
    """Returns the index of an element by its number in C order, as slices."""
    index = []
    for size in reversed(shape):
        number, at = divmod(number, size)
        index.append(slice(at, at + 1))
    return index[::-1]


def _progressions(numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Splits ascending numbers into arithmetic progressions: first number, step and count."""
    start = 0
    while start < len(numbers):
        end = start + 1
        step = numbers[end] - numbers[start] if end < len(numbers) else 1
        while end < len(numbers) and numbers[end] - numbers[end - 1] == step:
            end += 1
        yield numbers[start], step, end - start
        start = end


def _all_bytes(source: LazyTensor, rows: int) -> slice:
    """Returns the slice of all bytes of some rows of the last dim."""
    assert source.packed is not None
    return slice(0, rows * source.packed.type.nbytes((1, source.shape[-1])))


def _rows_of_bytes(source: LazyTensor) -> torch.Tensor:
    """Returns a tensor's bytes, u8 [..., bytes of a row of the last dim]."""
    assert source.packed is not None
    return source.packed.load().view(*source.shape[:-1], -1)


def as_float32(source: LazyTensor) -> LazyTensor:
    """Returns a tensor as float32."""
    return source if source.dtype == torch.float32 else applied(_to_float32, [source], "", "elements")[0]


def _to_float32(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensors[0].float()]


class Operation:
    """The identity. Its subclasses are the other operations.

    Attributes:
        stacks: the config field with the number of tensors that become one, or None.
        scope: ``rows`` if it only moves rows of the last dim, ``elements`` if it computes each
            number of a result from those at the same index, and ``tensors`` otherwise.
    """

    stacks: str | None = None
    scope: Scope = "rows"

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        """Returns the tensors of GGUF."""
        return tensors

    def to_hf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        """Returns the tensors of Hugging Face. The inverse of `to_gguf`."""
        return tensors


@dataclass(frozen=True)
class PermuteRows(Operation):
    """Rows of q and k: halves of each head, as Hugging Face rotates them, become pairs.

    Attributes:
        heads: the config field with the number of heads.
    """

    heads: str

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [rows.reshape(config[self.heads], 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape) for rows in tensors]

    def to_hf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [rows.reshape(config[self.heads], -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape) for rows in tensors]


class PlusOne(Operation):
    """Norms whose factor is ``1 + weight``: GGUF stores the factor, in float32."""

    scope = "elements"

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [weights.float() + 1 for weights in tensors]

    def to_hf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [factors - 1 for factors in tensors]


class OneRow(Operation):
    """A matrix of one row, which GGUF may have as a vector."""

    scope = "tensors"

    def to_hf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [weights.reshape(1, -1) for weights in tensors]


class Transpose(Operation):
    """Weights of Conv1D layers, which are ``[in, out]``. Biases are unchanged."""

    scope = "tensors"

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [weights.T if weights.dim() == 2 else weights for weights in tensors]

    to_hf = to_gguf


@dataclass(frozen=True)
class Stack(Operation):
    """One matrix for each expert: GGUF stores them as one tensor of three dims.

    Attributes:
        stacks: the config field with the number of experts.
    """

    stacks: str

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        first = tensors[0]
        stacked = first.new_empty((len(tensors), *first.shape))  # torch.stack on meta imports torch's compiler, in seconds
        for place, matrix in zip(stacked, tensors, strict=True):
            place.copy_(matrix.view(first.shape))
        return [stacked]

    def to_hf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return tensors[0].unbind(0)


class SplitRows(Operation):
    """Two fused projections, one above the other: GGUF stores them separately."""

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return tensors[0].chunk(2, -2)

    def to_hf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [torch.cat(list(tensors), -2)]


KEEP = Operation()
