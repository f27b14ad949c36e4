"""Drives a type's formula over a matrix in chunks of rows: on a processor such that stay in its cache.

The formulas make several passes over their data. A chunk's passes run in cache, so that the matrix itself is read once and
written once; see docs/design.md for what that is worth. On a GPU they are compiled into one pass, see `compiled`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from glft_schema.errors import QuantizationWarning, TensorError, shown
from glft_schema.lazy import torch
from glft_schema.tensor_types.compiled import Fields, Step, fixed_chunks, run_compiled
from glft_schema.tensor_types.scaled import Encoder, Formula, Scaled

# What a formula may lose: whether that is fatal, in words, and of which elements, as a mask over the chunk [rows, in].
Fault = tuple[bool, str, "torch.Tensor"]

CHUNK = 1 << 20  # numbers in a chunk: 4 MiB as float32
LARGEST_KEPT = 31 << 20  # bytes of a block of memory that glibc can be made to keep; its own limit is 32 MiB


def matrix(dims: Sequence[int]) -> tuple[int, int]:
    """Returns `dims` as [out, in]: the first dim and the product of the rest. With fewer than two dims there is one row."""
    return (dims[0], math.prod(dims[1:])) if len(dims) > 1 else (1, math.prod(dims))


@dataclass(frozen=True)
class Rows:
    """A matrix of numbers that are elsewhere, of which some rows are read at a time. It is cut as a tensor is.

    Attributes:
        dims: the sizes of the tensor that they are.
        dtype: of the numbers.
        read: (the number of the first one, a shape) -> so many from there on, as a tensor.
    """

    dims: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[int, Sequence[int]], torch.Tensor]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return matrix(self.dims)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> torch.Tensor:
        columns = self.shape[1]
        return self.read(rows.start * columns, [rows.stop - rows.start, columns])


def row_chunks(rows: int, columns: int) -> Iterator[slice]:
    """Yields slices of rows that hold about `CHUNK` numbers each; none if rows are empty."""
    step = max(CHUNK // max(columns, 1), 1)
    for first in range(0, rows if columns else 0, step):
        yield slice(first, min(first + step, rows))


@lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Makes the C library keep what a chunk's passes free, for the next chunk.

    glibc gives large blocks back to the system, which clears each page of them when they are asked for again: that takes
    longer than the passes do. What is large it learns from the largest block that was freed, so one is, untouched.
    """
    torch.empty(LARGEST_KEPT, dtype=torch.uint8, device="cpu")


def dequantize_chunks(formula: Formula, fields: Fields, out: torch.Tensor) -> None:
    """Writes the weights of ``formula(**fields)`` into `out` [rows, in], contiguous, whatever its float dtype.

    `fields` have one row per row of `out`.
    """
    for _ in in_chunks(decode, formula, fields, {"weights": out}, *out.shape):
        pass


def decode(formula: Formula, taken: Fields, made: Fields) -> None:
    """Makes weights of fields."""
    weights = formula(**taken)
    if isinstance(weights, Scaled):
        weights.write(made["weights"])
    else:
        made["weights"].copy_(weights)


def encode(formula: Encoder, taken: Fields, made: Fields) -> None:
    """Makes fields of weights [rows, ...]."""
    for name, field in formula(as_matrix(taken["weights"])).items():
        made[name].copy_(field)


def encode_float32(formula: Encoder, taken: Fields, made: Fields) -> None:
    """The same with a formula that takes float32."""
    encode(formula, {"weights": taken["weights"].to(torch.float32)}, made)


def as_matrix(weights: torch.Tensor) -> torch.Tensor:
    """Returns weights of some rows as [rows, numbers of a row]."""
    return weights.reshape(len(weights), -1)


def in_chunks(
    step: Step, formula: Any, taken: Mapping[str, torch.Tensor | Rows], made: Fields, rows: int, columns: int
) -> Iterator[tuple[int, Fields, Fields]]:
    """Runs a step over rows of `columns` numbers, some at a time, and yields what it took and made each time.

    On a processor a chunk stays in its cache; on a GPU it is as large as pays, and the step is compiled.

    Yields:
        The number of the first row that was not done before; what was taken of it and those after, and what was made.
    """
    if not rows or not columns:
        return
    keep_freed_memory()
    compiles, done = on_gpu(next(iter(made.values()))), 0
    for part, is_fixed in fixed_chunks(rows, columns) if compiles else ((part, False) for part in row_chunks(rows, columns)):
        given, results = ({name: field[part] for name, field in fields.items()} for fields in (taken, made))
        if is_fixed:
            run_compiled(step, formula, given, results)
        else:
            step(formula, given, results)
        again = done - part.start
        yield (
            done,
            {name: field[again:] for name, field in given.items()},
            {name: field[again:] for name, field in results.items()},
        )
        done = part.stop


def on_gpu(tensor: torch.Tensor) -> bool:
    """Tells whether formulas that make such a tensor are compiled."""
    return tensor.is_cuda


def quantize_chunks(
    formula: Encoder,
    weights: torch.Tensor | Rows,
    out: Fields,
    as_float32: bool,
    faults: Callable[[torch.Tensor, Fields], Iterable[Fault]],
    name: str,
    shape: Sequence[int] | None = None,
) -> None:
    """Writes ``formula(weights)`` into the fields `out`, for `weights` of any strides, seen as a matrix [out, in].

    Args:
        formula: numbers [rows, in] -> fields [rows, numbers per row].
        weights: a tensor of at least one dim, or what gives its rows.
        out: the fields, by name.
        as_float32: whether the formula takes float32, to which each chunk is converted, or the weights as they are.
        faults: what the formula loses of a chunk.
        name: the tensor's, for errors and warnings.
        shape: the tensor's, for errors, where `weights` was given another one.

    Raises:
        TensorError: at the first fatal fault, with the index of its first element.
    """
    lost: dict[str, int] = {}
    weights = weights.detach() if isinstance(weights, torch.Tensor) else weights
    columns = math.prod(weights.shape[1:])
    step = encode_float32 if as_float32 else encode
    for start, taken, made in in_chunks(step, formula, {"weights": weights}, out, len(weights), columns):
        chunk = as_matrix(taken["weights"])
        for fatal, problem, mask in faults(chunk.to(torch.float32) if as_float32 else chunk, made):
            count = int(mask.sum())
            if count and fatal:
                first = start * columns + int(mask.flatten().to(torch.uint8).argmax())
                raise TensorError(problem, name, index_of(first, weights.shape if shape is None else shape))
            if count:
                lost[problem] = lost.get(problem, 0) + count
    for problem, count in lost.items():
        warnings.warn(f"tensor {shown(name)}: {count} {problem}", QuantizationWarning, stacklevel=3)


def index_of(number: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the index of an element of a tensor of `shape`, from its number in C order."""
    index = []
    for size in reversed(shape):
        number, place = divmod(number, size)
        index.append(place)
    return tuple(reversed(index))
