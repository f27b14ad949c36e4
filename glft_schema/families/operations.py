"""Tensors computed on use, and the invertible operations between the layouts of Hugging Face and
GGUF.

An operation is a pair of functions on torch tensors. Applied to `StoredTensor`s, the functions run
on meta tensors for the shapes, and on values when a result is loaded. A function that only moves
rows also runs on the rows' numbers, which tells the rows that a part of its result consists of. It
moves the rows of a quantized tensor without decoding them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, groupby
from typing import Any, Literal

from glft_schema.errors import TensorError
from glft_schema.lazy import torch
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.fp4 import MXFP4
from glft_schema.tensors.stored_tensor import Slices, StoredTensor, of_packed, transposed

Config = Mapping[str, Any]
Function = Callable[[Sequence["torch.Tensor"]], Sequence["torch.Tensor"]]
Scope = Literal["rows", "elements", "tensors"]
LOW_HALVES = 0x0F0F0F0F0F0F0F0F  # of eight bytes


def applied(function: Function, sources: Sequence[StoredTensor], name: str, scope: Scope = "tensors") -> list[StoredTensor]:
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

    def packed(number: int, type_: TensorType) -> StoredTensor:
        planned_rows, moved = len(planned[number]), _MovedRows(function, sources, number)

        def read(index: Slices) -> torch.Tensor:
            if len(range(planned_rows)[index[0]]) < planned_rows:
                return moved.packed(index)
            return function([_rows_of_bytes(source) for source in sources])[number].reshape(planned_rows, -1)[:, index[1]]

        return of_packed(name, tuple(planned[number].shape), type_, read)

    types = {source.packed.dtype if source.packed else None for source in sources} if scope == "rows" else {None}
    type_ = types.pop() if len(types) == 1 else None
    has_parts = all(source.has_parts for source in sources)
    results = []
    for number, result in enumerate(planned):
        if type_ is not None and result.dim() > 1:
            results.append(packed(number, type_))
            continue
        read = _by_element(function, sources, number) if scope == "elements" and has_parts else None
        read = _MovedRows(function, sources, number).values if scope == "rows" and result.dim() > 1 and has_parts else read
        kind = tuple(result.shape), result.dtype
        results.append(StoredTensor(*kind, loading(number), read=read, quantized=quantized_type(sources)))
    return results


def quantized_type(sources: Iterable[StoredTensor]) -> TensorType | None:
    """Returns the quantized type of the first source that has one, or None."""
    return next((source.quantized for source in sources if source.quantized), None)


def _by_element(function: Function, sources: Sequence[StoredTensor], number: int) -> Callable[[Slices], torch.Tensor]:
    return lambda index: function([source.part(index) for source in sources])[number]


class _MovedRows:
    """The result of a function that moves rows of the last dim, read row by row.

    Args:
        function: from tensors to tensors.
        sources: its arguments, of two or more dims.
        number: of the result.
    """

    def __init__(self, function: Function, sources: Sequence[StoredTensor], number: int) -> None:
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

        def read(source: StoredTensor, at: Slices) -> torch.Tensor:
            assert source.packed is not None
            if len(at) == 1:
                return source.packed.packed_part((at[0], across if origins.dim() == 1 else _all_bytes(source, 1)))
            size = _all_bytes(source, source.shape[-2]).stop // source.shape[-2]
            rows, columns = at[-1], slice(at[-1].start * size, at[-1].stop * size)
            return source.packed.packed_part((at[0], columns)).view(-1, size)[:: rows.step or 1]

        found = self._gathered(origins.flatten(), read)
        return found if origins.dim() == 1 else found.reshape(len(origins), -1)[:, across]

    def _gathered(self, origins: torch.Tensor, read: Callable[[StoredTensor, Slices], torch.Tensor]) -> torch.Tensor:
        """Returns rows by their numbers. `read` returns rows of one matrix at slices."""
        ordered, order = origins.sort()
        pieces = [read(source, at) for source, at in self._spans(ordered.tolist())]
        pieces = [piece.reshape(-1, piece.shape[-1]) for piece in pieces]
        found = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return found if torch.equal(origins, ordered) else torch.empty_like(found).index_copy_(0, order.to(found.device), found)

    def _spans(self, numbers: Sequence[int]) -> Iterator[tuple[StoredTensor, Slices]]:
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


def _all_bytes(source: StoredTensor, rows: int) -> slice:
    """Returns the slice of all bytes of some rows of the last dim."""
    assert source.packed is not None
    return slice(0, rows * source.packed.dtype.nbytes((1, source.shape[-1])))


def _rows_of_bytes(source: StoredTensor) -> torch.Tensor:
    """Returns a tensor's bytes, u8 [..., bytes of a row of the last dim]."""
    assert source.packed is not None
    return source.packed.packed().view(*source.shape[:-1], -1)


def as_float32(source: StoredTensor) -> StoredTensor:
    """Returns a tensor as float32."""
    return source if source.dtype == torch.float32 else applied(_to_float32, [source], "", "elements")[0]


def _to_float32(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensors[0].float()]


class Operation:
    """The identity. Its subclasses are the other operations.

    Attributes:
        scope: ``rows`` if it only moves rows of the last dim, ``elements`` if it computes each
            number of a result from those at the same index, and ``tensors`` otherwise.
        dims: of its weights. Biases have fewer, and rows of one number.
        type: the quantized type of which it makes a tensor in GGUF; None for weights.
    """

    scope: Scope = "rows"
    dims = 1
    type: TensorType | None = None

    def parts(self, config: Config) -> Iterable[object]:
        """Returns what ``{part}`` stands for in the names of the tensors that become one."""
        return ("",)

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        """Returns the tensors of GGUF."""
        return tensors

    def to_hf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        """Returns the tensors of Hugging Face. The inverse of `to_gguf`."""
        return tensors

    def mapped(self, sources: Sequence[StoredTensor], config: Config, name: str) -> list[StoredTensor]:
        """Returns the tensors of GGUF; `name` is for errors. Raises as `applied`."""
        return self._applied(self.to_gguf, sources, config, name)

    def restored(self, sources: Sequence[StoredTensor], config: Config, name: str) -> list[StoredTensor]:
        """Returns the tensors of Hugging Face. The inverse of `mapped`."""
        return self._applied(self.to_hf, sources, config, name)

    def _applied(self, function: Any, sources: Sequence[StoredTensor], config: Config, name: str) -> list[StoredTensor]:
        if type(self) is Operation:
            return list(sources)
        scope = self.scope if len(sources[0].shape) >= self.dims else "tensors"
        return applied(partial(function, config=config), sources, name, scope)


KEEP = Operation()


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


@dataclass(frozen=True)
class Transpose(Operation):
    """Weights that are ``[..., in, out]``. Biases are unchanged.

    Attributes:
        dims: of the weights.
        then: another operation on the weights ``[..., out, in]``, and on the biases.
    """

    dims: int = 2
    then: Operation = KEEP

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return self.then.to_gguf([values.mT if values.dim() == self.dims else values for values in tensors], config)

    def to_hf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [values.mT if values.dim() == self.dims else values for values in self.then.to_hf(tensors, config)]

    def mapped(self, sources: Sequence[StoredTensor], config: Config, name: str) -> list[StoredTensor]:
        return self.then.mapped(self._transposed(sources), config, name)

    def restored(self, sources: Sequence[StoredTensor], config: Config, name: str) -> list[StoredTensor]:
        return self._transposed(self.then.restored(sources, config, name))

    def _transposed(self, sources: Sequence[StoredTensor]) -> list[StoredTensor]:
        return [transposed(source) if len(source.shape) == self.dims else source for source in sources]


@dataclass(frozen=True)
class Stack(Operation):
    """One matrix for each expert: GGUF stores them as one tensor of three dims.

    Attributes:
        count: the config field with the number of experts.
    """

    count: str

    def parts(self, config: Config) -> Iterable[object]:
        return range(config[self.count])

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        first = tensors[0]
        stacked = first.new_empty((len(tensors), *first.shape))  # torch.stack on meta imports torch's compiler, in seconds
        for place, matrix in zip(stacked, tensors, strict=True):
            place.copy_(matrix.view(first.shape))
        return [stacked]

    def to_hf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return tensors[0].view(config[self.count], *tensors[0].shape[1:]).unbind(0)


class SplitRows(Operation):
    """Two fused projections, one above the other: GGUF stores them separately."""

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return tensors[0].chunk(2, -2)

    def to_hf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [torch.cat(list(tensors), -2)]


class SplitAlternately(Operation):
    """Two fused projections of experts, whose rows alternate: GGUF stores them separately."""

    dims = 3

    def to_gguf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [tensors[0][:, number::2] for number in range(2)]

    def to_hf(self, tensors: Sequence[torch.Tensor], config: Config) -> Sequence[torch.Tensor]:
        return [torch.cat([rows.unsqueeze(2) for rows in tensors], 2).flatten(1, 2)]


@dataclass(frozen=True)
class PackMXFP4(Operation):
    """Codes and scales of MXFP4, as Hugging Face stores them: GGUF has them in blocks.

    A byte of Hugging Face has two weights beside each other, a byte of GGUF two that are 16 apart.

    Attributes:
        then: another operation on the quantized tensor.
    """

    then: Operation = KEEP
    type = MXFP4

    def parts(self, config: Config) -> Iterable[object]:
        return ("blocks", "scales")

    def mapped(self, sources: Sequence[StoredTensor], config: Config, name: str) -> list[StoredTensor]:
        codes, scales = sources
        if codes.shape != (*scales.shape, 16) or {codes.dtype, scales.dtype} != {torch.uint8}:
            found = " and ".join(f"{source.dtype} {list(source.shape)}" for source in sources)
            raise TensorError(f"expected codes of MXFP4 as torch.uint8 [..., 16], and scales [...], found {found}", name)

        def read(index: Slices) -> torch.Tensor:
            of_all = [(index[0], *(slice(0, size) for size in source.shape[1:])) for source in sources]
            joined = [scales.part(of_all[1]).unsqueeze(-1), _to_halves(codes.part(of_all[0]))]
            return torch.cat(joined, -1).flatten(1)[:, index[1]]

        shape = (*scales.shape[:-1], 32 * scales.shape[-1])
        return self.then.mapped([of_packed(name, shape, MXFP4, read)], config, name)

    def restored(self, sources: Sequence[StoredTensor], config: Config, name: str) -> list[StoredTensor]:
        (tensor,) = self.then.restored(sources, config, name)
        shape = (*tensor.shape[:-1], tensor.shape[-1] // 32)

        def blocks() -> torch.Tensor:
            return _rows_of_bytes(tensor).view(*shape, 17)

        return [
            StoredTensor((*shape, 16), torch.uint8, lambda: _to_neighbours(blocks()[..., 1:])),
            StoredTensor(shape, torch.uint8, lambda: blocks()[..., 0].contiguous()),
        ]


def _to_halves(codes: torch.Tensor) -> torch.Tensor:
    """Returns bytes u8 [..., 16] with weights i and i + 16, of bytes with 2i and 2i + 1."""
    first, last = codes.contiguous().view(torch.int64).unbind(-1)  # eight bytes at once
    even, odd = (first & LOW_HALVES) | (last & LOW_HALVES) << 4, (first >> 4 & LOW_HALVES) | (last & ~LOW_HALVES)
    return torch.cat([word.unsqueeze(-1).view(torch.uint8).unsqueeze(-1) for word in (even, odd)], -1).flatten(-2)


def _to_neighbours(codes: torch.Tensor) -> torch.Tensor:
    """The inverse of `_to_halves`."""
    even, odd = codes[..., ::2], codes[..., 1::2]
    return torch.cat([(even & 15) | (odd << 4), (even >> 4) | (odd & 240)], -1)
