"""Tensors computed on use, and the invertible operations between the layouts of Hugging Face and
GGUF.

An operation is a pair of functions on arrays. Applied to `StoredTensor`s, the functions run on
arrays of one repeated byte for the shapes, and on values when a result is loaded. A function that
only moves rows also runs on row numbers, which gives the source rows of each part of its result. So
the rows of a quantized tensor move without decoding.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from itertools import accumulate, groupby
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided

from glft_schema.composites.nibbles import to_halves, to_neighbours
from glft_schema.errors import TensorError
from glft_schema.storage.dtypes import BFLOAT16, FLOAT32, FLOAT64, Array, Dtype, name_of
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.conversions import convert, float32_of, widen
from glft_schema.tensor_types.ggml.fp4 import MXFP4
from glft_schema.tensors.stored_tensor import Slices, StoredTensor, of_packed, transpose

Config = Mapping[str, Any]
Function = Callable[[Sequence[Array]], Sequence[Array]]
Scope = Literal["rows", "elements", "tensors"]
UINT8 = np.dtype(np.uint8)
ROWS = -2  # the axis


def apply(function: Function, sources: Sequence[StoredTensor], name: str, scope: Scope = "tensors") -> list[StoredTensor]:
    """Returns the results of a function.

    Args:
        function: from arrays to arrays.
        sources: its arguments.
        name: the tensor that errors are about.
        scope: see `TensorOperation`.

    Raises:
        TensorError: if the function refuses the shapes.
    """
    planned = planned_results(function, sources, name, scope)
    shapes = [shape for shape, _ in planned]
    sources = in_one_dtype(sources)

    def loading(number: int) -> Callable[[], Array]:
        return lambda: np.asarray(function([source.values() for source in sources])[number], order="C")

    def packed(number: int, type_: TensorType) -> StoredTensor:
        shape = shapes[number]
        moved, quantized = movers[number], quantized_type(sources)

        def read(index: Slices) -> Array:
            if len(range(shape[0])[index[0]]) < shape[0]:
                return moved.read_packed(index)
            return function([_rows_of_bytes(source) for source in sources])[number].reshape(shape[0], -1)[:, index[1]]

        result = replace(of_packed(name, shape, type_, read), quantized=quantized)
        beside = companions[number]
        if not beside:
            return result
        return replace(result, companions=beside, load=loading(number), read=moved.values)

    endings = {tuple(source.companions) for source in sources}
    movers = [_MovedRows(function, sources, number) for number in range(len(planned))]
    types = {source.packed.type if source.packed else None for source in sources} if scope == "rows" else {None}
    type_ = types.pop() if len(types) == 1 and len(endings) == 1 else None
    are_stacks = any(len(shape) > 2 for shape in (*(source.shape for source in sources), *shapes))
    if type_ and are_stacks and len([*type_.fields()]) > 1:
        type_ = None  # fields of a stack come one after another, so that a row is not in one piece
    companions = [moved.companions(shape) if type_ else {} for moved, shape in zip(movers, shapes, strict=True)]
    has_parts = all(source.has_parts for source in sources)
    results = []
    for number, (shape, dtype) in enumerate(planned):
        if type_ is not None and len(shape) > 1 and companions[number] is not None:
            results.append(packed(number, type_))
            continue
        read = _by_element(function, sources, number) if scope == "elements" and has_parts else None
        read = movers[number].values if scope == "rows" and len(shape) > 1 and has_parts else read
        results.append(StoredTensor(shape, dtype, loading(number), read=read, quantized=quantized_type(sources)))
    return results


def planned_results(
    function: Function, sources: Sequence[StoredTensor], name: str, scope: Scope = "tensors"
) -> list[tuple[tuple[int, ...], Dtype]]:
    """Returns the shapes and dtypes of a function's results. Arguments and errors are those of
    `apply`."""
    if scope == "elements":
        return [(sources[0].shape, result.dtype) for result in function([np.zeros(1, source.dtype) for source in sources])]
    columns = {source.shape[-1] if len(source.shape) > 1 else 0 for source in sources} if scope == "rows" else {0}
    of_rows = max(columns) if len(columns) == 1 else 0  # numbers of a row that moves as a whole
    shapes = [(*source.shape[:-1], 1) if of_rows else source.shape for source in sources]
    try:
        results = function([as_strided(np.zeros(1, np.uint8), shape, [0] * len(shape)) for shape in shapes])
    except (ValueError, IndexError, ZeroDivisionError):
        found = ", ".join(str(list(source.shape)) for source in sources[:2])
        raise TensorError(f"expected a shape that fits the config, found {found}", name) from None
    dtype = common_dtype(sources)
    return [((*result.shape[:-1], of_rows) if of_rows else result.shape, dtype) for result in results]


def common_dtype(sources: Sequence[StoredTensor]) -> Dtype:
    """Returns the dtype of tensors, or the float that holds all of them."""
    dtypes = {source.dtype for source in sources}
    return sources[0].dtype if len(dtypes) == 1 else FLOAT64 if FLOAT64 in dtypes else FLOAT32


def in_one_dtype(sources: Sequence[StoredTensor]) -> Sequence[StoredTensor]:
    """Returns tensors in their `common_dtype`, unchanged if they have it."""
    dtype = common_dtype(sources)
    if all(source.dtype == dtype for source in sources):
        return sources
    return [apply(lambda arrays: [convert(arrays[0], dtype)], [source], "", "elements")[0] for source in sources]


def quantized_type(sources: Iterable[StoredTensor]) -> TensorType | None:
    """Returns the quantized type of the first source that has one, or None."""
    return next((source.quantized for source in sources if source.quantized), None)


def _by_element(function: Function, sources: Sequence[StoredTensor], number: int) -> Callable[[Slices], Array]:
    return lambda index: function([source.part(index) for source in sources])[number]


class _MovedRows:
    """The result of a function that moves rows of the last dim, read row by row.

    Args:
        function: from arrays to arrays.
        sources: its arguments, of two or more dims.
        number: of the result.
    """

    def __init__(self, function: Function, sources: Sequence[StoredTensor], number: int) -> None:
        self._sources = sources
        self._starts = [0, *accumulate(math.prod(source.shape[:-1]) for source in sources)]
        self._origins = cache(lambda: function(self._numbers())[number][..., 0])  # i64, of each row

    def _numbers(self) -> list[Array]:
        """Returns a number for each row of the sources, in their shapes with a last dim of 1."""
        return [
            np.arange(start, start + math.prod(source.shape[:-1])).reshape(*source.shape[:-1], 1)
            for start, source in zip(self._starts, self._sources, strict=False)
        ]

    def companions(self, shape: Sequence[int]) -> dict[str, Array] | None:
        """Returns the companions of a result of this shape: a number for each matrix. None if the
        rows of a matrix have several."""
        found = {}
        for ending in self._sources[0].companions:
            numbers = [source.companions[ending] for source in self._sources]
            of_rows = [
                np.repeat(one, math.prod(s.shape[:-1]) // len(one)) for one, s in zip(numbers, self._sources, strict=True)
            ]
            moved = np.concatenate(of_rows)[self._origins()].reshape(shape[0] if len(shape) > 2 else 1, -1)
            if (moved != moved[:, :1]).any():
                return None
            found[ending] = moved[:, 0]
        return found

    def values(self, index: Slices) -> Array:
        """Returns a part of the values."""
        origins = self._origins()[index[:-1]]
        rows = self._gather(origins.reshape(-1), lambda source, at: source.part((*at, index[-1])))
        return rows.reshape(*origins.shape, -1)

    def read_packed(self, index: Slices) -> Array:
        """Returns a part of the bytes, u8 [rows, bytes of a row], by rows of the first dim."""
        origins, across = self._origins()[index[0]], index[1]

        def read(source: StoredTensor, at: Slices) -> Array:
            assert source.packed is not None
            if len(at) == 1:
                return source.packed.packed_rows((at[0], across if origins.ndim == 1 else _all_bytes(source, 1)))
            size = _all_bytes(source, source.shape[-2]).stop // source.shape[-2]
            rows, columns = at[-1], slice(at[-1].start * size, at[-1].stop * size)
            return source.packed.packed_rows((at[0], columns)).reshape(-1, size)[:: rows.step or 1]

        found = self._gather(origins.reshape(-1), read)
        return found if origins.ndim == 1 else found.reshape(len(origins), -1)[:, across]

    def _gather(self, origins: Array, read: Callable[[StoredTensor, Slices], Array]) -> Array:
        """Returns rows by their numbers. `read` returns rows of one matrix at slices."""
        order = origins.argsort()
        ordered = origins[order]
        pieces = [read(source, at) for source, at in self._spans(ordered.tolist())]
        pieces = [piece.reshape(-1, piece.shape[-1]) for piece in pieces]
        joined = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        if np.array_equal(origins, ordered):
            return joined
        placed = np.empty_like(joined)
        placed[order] = joined
        return placed

    def _spans(self, numbers: Sequence[int]) -> Iterator[tuple[StoredTensor, Slices]]:
        """Yields rows at equal distances in one matrix of a source, by slices of all dims but the
        last."""

        def matrix_of(number: int) -> tuple[int, int]:
            source = bisect_right(self._starts, number) - 1
            return source, (number - self._starts[source]) // self._sources[source].shape[-2]

        for (at, matrix), group in groupby(numbers, matrix_of):
            source, rows = self._sources[at], [number - self._starts[at] for number in group]
            outer = _unravel(matrix, source.shape[:-2])
            first = matrix * source.shape[-2]
            for row, step, count in _progressions([row - first for row in rows]):
                yield source, (*outer, slice(row, row + (count - 1) * step + 1, step))


def _unravel(number: int, shape: Sequence[int]) -> list[slice]:
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
    return slice(0, rows * source.packed.type.nbytes((1, source.shape[-1])))


def _rows_of_bytes(source: StoredTensor) -> Array:
    """Returns a tensor's bytes, u8 [..., bytes of a row of the last dim]."""
    assert source.packed is not None
    return source.packed.packed_rows().reshape(*source.shape[:-1], -1)


def as_float32(source: StoredTensor) -> StoredTensor:
    """Returns a tensor as float32."""
    return source if source.dtype == FLOAT32 else apply(_to_float32, [source], "", "elements")[0]


def _to_float32(tensors: Sequence[Array]) -> list[Array]:
    return [float32_of(tensors[0])]


class TensorOperation:
    """The identity. Its subclasses are the other operations.

    Attributes:
        scope: ``rows`` if it only moves rows of the last dim, ``elements`` if it computes each
            number of a result from the numbers at the same index, and ``tensors`` otherwise.
        dims: the number of dims of its weights. For tensors with fewer, the scope is ``tensors``.
        type: the quantized type that it packs tensors into for GGUF; None if it does not pack.
    """

    scope: Scope = "rows"
    dims = 1
    type: TensorType | None = None

    def parts(self, config: Config) -> Iterable[object]:
        """Returns the values of ``{part}`` in the names of the tensors that become one."""
        return ("",)

    def to_gguf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        """Returns the tensors of GGUF."""
        return tensors

    def to_hf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        """Returns the tensors of Hugging Face. The inverse of `to_gguf`."""
        return tensors

    def map_to_gguf(self, sources: Sequence[StoredTensor], config: Config, name: str) -> list[StoredTensor]:
        """Returns the tensors of GGUF; `name` is for errors. Raises as `apply`."""
        return self._apply(self.to_gguf, sources, config, name)

    def map_to_hf(self, sources: Sequence[StoredTensor], config: Config, name: str) -> list[StoredTensor]:
        """Returns the tensors of Hugging Face. The inverse of `map_to_gguf`."""
        return self._apply(self.to_hf, sources, config, name)

    def _apply(self, function: Any, sources: Sequence[StoredTensor], config: Config, name: str) -> list[StoredTensor]:
        if type(self) is TensorOperation:
            return list(sources)
        scope = self.scope if len(sources[0].shape) >= self.dims else "tensors"
        return apply(partial(function, config=config), sources, name, scope)


KEEP = TensorOperation()


@dataclass(frozen=True)
class MoveRows(TensorOperation):
    """Rows in another order, which GGUF may store as several matrices.

    Attributes:
        order: from the numbers of all rows, i64 [rows], and the config, returns those of each
            matrix of GGUF. Raises ValueError if the number of rows does not fit.
        axis: of the rows of a matrix. A vector has one number for each row.
        dims: see `TensorOperation`.
    """

    order: Callable[[Array, Any], Sequence[Array]]
    axis: int = ROWS
    dims: int = 1

    def to_gguf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        (rows,) = tensors
        axis = max(self.axis, -rows.ndim)
        return [rows.take(numbers, axis) for numbers in self.order(np.arange(rows.shape[axis]), config)]

    def to_hf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        axis = max(self.axis, -tensors[0].ndim)
        rows = np.concatenate(tensors, axis)
        return [rows.take(np.concatenate(self.order(np.arange(rows.shape[axis]), config)).argsort(), axis)]


def pairs(heads: int, rows: Array) -> Array:
    """Returns rows of heads in pairs, one of each half of a head."""
    paired: Array = rows.reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
    return paired


def by_kind(groups: int, heads: int, rows: Array) -> list[Array]:
    """Returns the rows of queries, of keys and of values.

    Args:
        groups: their number. Each has heads of queries, a key and a value.
        heads: the number of heads of queries.
        rows: the rows of one group after another.
    """
    grouped = rows.reshape(groups, heads // groups + 2, -1)
    return [part.reshape(-1) for part in (grouped[:, :-2], grouped[:, -2], grouped[:, -1])]


class PermuteRows(MoveRows):
    """Reorders rows of q and k from Hugging Face's halves of each head to GGUF's pairs.

    Args:
        heads: the config field with the number of heads.
    """

    def __init__(self, heads: str) -> None:
        super().__init__(lambda rows, config: [pairs(config[heads], rows)])


@dataclass(frozen=True)
class Chain(TensorOperation):
    """Operations on one tensor, one after another.

    Attributes:
        operations: from Hugging Face to GGUF.
    """

    operations: tuple[TensorOperation, ...]

    def to_gguf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        return reduce(lambda found, one: one.to_gguf(found, config), self.operations, tensors)

    def to_hf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        return reduce(lambda found, one: one.to_hf(found, config), reversed(self.operations), tensors)

    def map_to_gguf(self, sources: Sequence[StoredTensor], config: Config, name: str) -> list[StoredTensor]:
        return reduce(lambda found, one: one.map_to_gguf(found, config, name), self.operations, [*sources])

    def map_to_hf(self, sources: Sequence[StoredTensor], config: Config, name: str) -> list[StoredTensor]:
        return reduce(lambda found, one: one.map_to_hf(found, config, name), reversed(self.operations), [*sources])


class PlusOne(TensorOperation):
    """Norms whose factor is ``1 + weight``. GGUF stores the factor in float32."""

    scope = "elements"

    def to_gguf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        return [float32_of(weights) + np.float32(1) for weights in tensors]

    def to_hf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        return [convert(widen(factors) - np.float32(1), factors.dtype) for factors in tensors]


class SqueezeKernel(TensorOperation):
    """Kernels of convolutions over one channel, ``[channels, 1, width]``, which GGUF has without
    the dim of 1. Biases are unchanged."""

    def to_gguf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        return [values.squeeze(1) if values.ndim > 1 else values for values in tensors]

    def to_hf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        return [values[:, None] if values.ndim > 1 else values for values in tensors]


class NegativeExponential(TensorOperation):
    """Logarithms of rates of decay. GGUF stores ``-exp(logarithm)`` in float32.

    The way back takes the nearest bfloat16 if it gives the same bits again, and else the nearest
    float32. It gives the same bits again if the model had bfloat16 or float32.
    """

    scope = "elements"

    def to_gguf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        return [-np.exp(float32_of(logarithms).astype(np.float64)).astype(np.float32) for logarithms in tensors]

    def to_hf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        results = []
        for factors in map(float32_of, tensors):
            if (factors > 0).any():
                raise TensorError("expected factors of at most 0, found others", "ssm_a")
            with np.errstate(divide="ignore"):
                logarithms = np.log(-factors.astype(np.float64)).astype(np.float32)
            short = float32_of(convert(logarithms, BFLOAT16))
            results.append(np.where(self.to_gguf([short], config)[0] == factors, short, logarithms))
        return results


@dataclass(frozen=True)
class AsMatrix(TensorOperation):
    """Vectors that GGUF has as matrices.

    Attributes:
        rows: the config field with the number of rows; by default, one row for each element.
    """

    rows: str = ""
    scope = "tensors"

    def to_gguf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        return [values.reshape(config[self.rows] if self.rows else len(values), -1) for values in tensors]

    def to_hf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        return [values.reshape(-1) for values in tensors]


class OneRow(TensorOperation):
    """A matrix of one row, which GGUF may have as a vector."""

    scope = "tensors"

    def to_hf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        return [weights.reshape(1, -1) for weights in tensors]


@dataclass(frozen=True)
class DropRows(TensorOperation):
    """A matrix whose first rows are not used, and which GGUF lacks. They become zeros.

    Attributes:
        last: the config field with the number of the last unused row.
    """

    last: str
    scope = "tensors"

    def to_gguf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        return [tensors[0][config[self.last] + 1 :]]

    def to_hf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        if not 0 <= config[self.last] < len(tensors[0]):
            raise ValueError
        return [np.pad(tensors[0], ((config[self.last] + 1, 0), (0, 0)))]


@dataclass(frozen=True)
class Transpose(TensorOperation):
    """Weights that are ``[..., in, out]``. Biases are unchanged.

    Attributes:
        dims: of the weights.
    """

    dims: int = 2

    def to_gguf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        return [values.swapaxes(-1, -2) if values.ndim == self.dims else values for values in tensors]

    def map_to_gguf(self, sources: Sequence[StoredTensor], config: Config, name: str) -> list[StoredTensor]:
        return [transpose(source) if len(source.shape) == self.dims else source for source in sources]

    to_hf, map_to_hf = to_gguf, map_to_gguf  # its own inverse


@dataclass(frozen=True)
class Stack(TensorOperation):
    """One matrix for each expert, or one vector for each head. GGUF stores them as one tensor.

    Attributes:
        count: the config field with the number of experts or heads.
    """

    count: str
    dims = 2

    def parts(self, config: Config) -> Iterable[object]:
        return range(config[self.count])

    def to_gguf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        return [np.stack(tensors)]

    def to_hf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        return [*tensors[0].reshape(config[self.count], *tensors[0].shape[1:])]


SPLIT_ROWS = MoveRows(lambda rows, config: np.split(rows, 2))  # two projections, one above the other
ALTERNATE_ROWS = MoveRows(lambda rows, config: [rows[::2], rows[1::2]], 1, 3)  # of experts


class SplitKeysAndValues(TensorOperation):
    """Keys and values of each head, one above the other. GGUF stores them separately, by head, with
    the keys transposed."""

    scope = "tensors"

    def to_gguf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        heads = tensors[0].reshape(config["num_attention_heads"], -1, tensors[0].shape[-1])
        keys, values = np.split(heads, [config["qk_head_dim"] - config["qk_rope_head_dim"]], 1)
        return [keys.swapaxes(1, 2), values]

    def to_hf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        keys, values = tensors
        return [np.concatenate([keys.swapaxes(1, 2), values], 1).reshape(-1, values.shape[-1])]


class JoinRows(TensorOperation):
    """Queries, keys and values: GGUF stores them as one matrix, one above the other."""

    def parts(self, config: Config) -> Iterable[object]:
        return ("q", "k", "v")

    def to_gguf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        return [np.concatenate(tensors, -2)]

    def to_hf(self, tensors: Sequence[Array], config: Config) -> Sequence[Array]:
        return np.split(tensors[0], 3, -2)


@dataclass(frozen=True)
class PackMXFP4(TensorOperation):
    """Codes and scales of MXFP4, which Hugging Face stores apart and GGUF in blocks.

    A byte of Hugging Face has two adjacent weights, a byte of GGUF two that are 16 apart.

    Attributes:
        then: another operation on the quantized tensor.
    """

    then: TensorOperation = KEEP
    type = MXFP4

    def parts(self, config: Config) -> Iterable[object]:
        return ("blocks", "scales")

    def map_to_gguf(self, sources: Sequence[StoredTensor], config: Config, name: str) -> list[StoredTensor]:
        codes, scales = sources
        if codes.shape != (*scales.shape, 16) or {codes.dtype, scales.dtype} != {UINT8}:
            found = " and ".join(f"{name_of(source.dtype)} {list(source.shape)}" for source in sources)
            raise TensorError(f"expected codes of MXFP4 as uint8 [..., 16], and scales [...], found {found}", name)

        def read(index: Slices) -> Array:
            of_all = [(index[0], *(slice(0, size) for size in source.shape[1:])) for source in sources]
            joined = np.concatenate([scales.part(of_all[1])[..., None], to_halves(codes.part(of_all[0]))], -1)
            return joined.reshape(len(joined), -1)[:, index[1]]

        shape = (*scales.shape[:-1], 32 * scales.shape[-1])
        return self.then.map_to_gguf([of_packed(name, shape, MXFP4, read)], config, name)

    def map_to_hf(self, sources: Sequence[StoredTensor], config: Config, name: str) -> list[StoredTensor]:
        (tensor,) = self.then.map_to_hf(sources, config, name)
        shape = (*tensor.shape[:-1], tensor.shape[-1] // 32)

        def blocks() -> Array:
            return _rows_of_bytes(tensor).reshape(*shape, 17)

        return [
            StoredTensor((*shape, 16), UINT8, lambda: to_neighbours(blocks()[..., 1:])),
            StoredTensor(shape, UINT8, lambda: np.ascontiguousarray(blocks()[..., 0])),
        ]
