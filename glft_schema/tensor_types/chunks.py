"""Runs a type's formula or encoder over a matrix in chunks of rows, which fit into a CPU's cache.

A formula makes several passes over its data. The passes over a chunk stay in the cache, so memory
is read and written once; docs/background/speed.md has measurements.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from glft_schema.errors import QuantizationWarning, TensorError, quote, warn
from glft_schema.storage.dtypes import Array, name_of
from glft_schema.storage.torch_tensors import array_of, not_dense
from glft_schema.tensor_types.conversions import float32_of
from glft_schema.tensor_types.payload_layout import Fields

# A loss of information: whether it is fatal, a description, and a mask of the affected elements of
# the chunk [rows, in].
Fault = tuple[bool, str, Array]

CHUNK = 1 << 20  # numbers in a chunk: 4 MiB as float32
LEAST_CHUNK = 1 << 16  # numbers that are worth a thread


def slices(n: int, size: int, start: int = 0) -> Iterator[slice]:
    """Yields slices of `size` that cover `start` to `n`; the last one may be smaller."""
    for first in range(start, n, size):
        yield slice(first, min(first + size, n))


def row_chunks(rows: int, columns: int) -> Iterator[slice]:
    """Yields slices of rows with about `CHUNK` numbers each; none if rows are empty."""
    return slices(rows if columns else 0, max(CHUNK // max(columns, 1), 1))


def importance_rows(importance: Any, dims: Sequence[int], name: str) -> Array:
    """Returns the importance of columns as float32 [1, in], or as [matrices, in] if each matrix of
    a stack has its own.

    Args:
        importance: one number per index of the last dim, or this many for each matrix of a stack; a
            numpy array or a torch tensor.
        dims: of the tensor.
        name: the tensor's name in errors.

    Raises:
        TensorError: if the importance is invalid.
    """
    if problem := not_dense(importance):
        raise TensorError(f"importance: {problem}", name)
    given = array_of(importance)
    if not isinstance(given, np.ndarray) or given.dtype.kind not in "fiubV":
        raise TensorError(f"expected the importance as a tensor or an array of real numbers, found {quote(importance)}", name)
    columns, stacks = dims[-1] if dims else 1, dims[0] if len(dims) > 2 else 1
    numbers = float32_of(given).reshape(-1)
    if numbers.size not in (columns, stacks * columns):
        either = f"{columns} or {stacks * columns}" if stacks > 1 else f"{columns}"
        raise TensorError(f"expected {either} importance values, one per column, found {numbers.size}", name)
    if numbers.size > columns and given.ndim > 1 and given.shape[-1] != columns:
        raise TensorError(f"expected importance values [{stacks}, {columns}], found {list(given.shape)}", name)
    valid = (numbers >= 0) & np.isfinite(numbers)
    if not valid.all():
        column = int(valid.argmin())
        problem = f"expected importance values that are finite and not negative, found {given.reshape(-1)[column]:g}"
        raise TensorError(f"{problem} for column {column}", name)
    return numbers.reshape(stacks if numbers.size > columns else 1, columns)


def as_matrix(weights: Array) -> Array:
    """Returns weights of some rows as [rows, numbers per row]."""
    return weights.reshape(len(weights), math.prod(weights.shape[1:]))


def take(fields: Fields, rows: slice) -> Fields:
    """Returns some rows of fields."""
    return {name: field[rows] for name, field in fields.items()}


class RowEncoder(NamedTuple):
    """An encoder of rows of numbers.

    Attributes:
        encode: writes the fields of numbers [rows, in].
        faults: finds the losses of information in a chunk.
        as_float32: whether chunks are converted to float32 for `encode`.
        at_once: whether several threads encode. Encoders that run one array operation after another
            are slower in several threads, because they wait for Python's global lock.
    """

    encode: Callable[[Array, Fields], None]
    faults: Callable[[Array, Fields], Iterable[Fault]]
    as_float32: bool = True
    at_once: bool = False


class TensorPart(NamedTuple):
    """The tensor that weights are a part of, for errors and warnings.

    Attributes:
        name: its name.
        first: the index of the first of the weights in the flattened tensor.
        shape: its shape, or None if the weights are all of the tensor.
    """

    name: str
    first: int = 0
    shape: Sequence[int] | None = None


def encode_chunks(
    encoder: RowEncoder,
    weights: Array,
    out: Fields,
    part_of: TensorPart,
    *,
    watch: Callable[[Array, Fields], None] | None = None,
    lost: Counter[str] | None = None,
) -> None:
    """Encodes weights [rows, ...] of any strides in chunks. Each chunk is also checked, and given
    to `watch`, while it is in the cache.

    Args:
        encoder: encodes and checks a chunk.
        weights: of at least one dim.
        out: the fields, by name.
        part_of: the tensor of `weights`.
        watch: called with each chunk of rows [rows, in], as given, and the fields that encode
            them; in several threads if the encoder is `at_once`.
        lost: gets the count of weights for each kind of loss; by default, losses are warnings.

    Raises:
        TensorError: at the first fatal fault, with the index of its first element.
    """
    counts = Counter[str]() if lost is None else lost
    rows, columns = len(weights), math.prod(weights.shape[1:])

    def run(part: slice) -> None:
        given, encoded = as_matrix(weights[part]), take(out, part)
        numbers = float32_of(given) if encoder.as_float32 else given
        encoder.encode(numbers, encoded)
        for fatal, problem, mask in encoder.faults(numbers, encoded):
            count = int(np.count_nonzero(mask))
            if count and fatal:
                index = part_of.first + part.start * columns + int(mask.argmax())
                shape = weights.shape if part_of.shape is None else part_of.shape
                raise TensorError(problem, part_of.name, index_of(index, shape))
            if count:
                found[part.start][problem] = count
        if watch:
            watch(given, encoded)

    if rows and columns:
        from glft_schema.tensor_types.workers import parts_of, run_parts  # slow to import

        least, most = (max(size // columns, 1) for size in (LEAST_CHUNK, CHUNK))
        parts = list(parts_of(rows, least, most)) if encoder.at_once else list(slices(rows, most))
        found = {part.start: Counter[str]() for part in parts}
        if encoder.at_once:
            run_parts(run, parts)
        else:
            for part in parts:
                run(part)
        for each in found.values():
            counts.update(each)
    if lost is None:
        warn_of_lost(part_of.name, counts)


def has_finite_sum(numbers: Array) -> bool:
    """Tells whether the sum is finite, which is the fastest proof that all numbers are."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(numbers.sum(dtype=np.float32)))


def are_finite(numbers: Array) -> bool:
    """Tells whether all floats are finite; checks the exponents of two-byte floats."""
    exponent = {"float16": 0x7C00, "bfloat16": 0x7F80}.get(name_of(numbers.dtype))
    if exponent is None:
        return has_finite_sum(numbers) or bool(np.isfinite(numbers).all())
    return not numbers.size or int((numbers.view(np.uint16) & np.uint16(exponent)).max()) < exponent


def warn_of_lost(name: str, lost: Mapping[str, int]) -> None:
    """Issues a warning for each kind of loss, with the number of weights lost."""
    for problem, count in lost.items():
        warn(f"tensor {quote(name)}: {count} {problem}", QuantizationWarning)


def index_of(number: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the index of an element of a tensor of `shape`, from its number in C order."""
    index = []
    for size in reversed(shape):
        number, place = divmod(number, size)
        index.append(place)
    return tuple(reversed(index))
