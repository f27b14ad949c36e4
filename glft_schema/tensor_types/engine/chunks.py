"""Drives a type's formula over a matrix in chunks of rows: on a processor such that stay in its cache.

The formulas make several passes over their data. A chunk's passes run in cache, so that the matrix itself is read once and
written once; see docs/design.md for what that is worth. Compiled they are one pass, see `compiled`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from glft_schema.errors import QuantizationWarning, TensorError, shown
from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.compiled import Step, compiles_decoding, compiles_encoding, fixed_chunks, run_compiled
from glft_schema.tensor_types.engine.scaled import Encoder, Fields, Formula, Scaled

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


def spread_importance(importance: torch.Tensor, dims: Sequence[int], name: str) -> torch.Tensor:
    """Returns an importance of columns as one of numbers: float32, a view [out, rows of each, in].

    Args:
        importance: as many numbers as the last dim has, or of a stack of matrices as many for each of these.
        dims: of the tensor.
        name: how errors call it.

    Raises:
        TensorError: where it is no such importance.
    """
    if not isinstance(importance, torch.Tensor) or importance.is_complex():
        raise TensorError(f"expected its importance as a torch.Tensor of real numbers, found {shown(importance)}", name)
    columns, stacks = dims[-1] if dims else 1, dims[0] if len(dims) > 2 else 1
    numbers = importance.detach().to(torch.float32).flatten()
    if numbers.numel() not in (columns, stacks * columns):
        either = f"{columns} or {stacks * columns}" if stacks > 1 else f"{columns}"
        raise TensorError(f"expected the importance of {either} columns, found {numbers.numel()} numbers", name)
    bad = ((numbers >= 0) & numbers.isfinite()).logical_not().nonzero()
    if len(bad):
        column = int(bad[0])
        problem = f"expected an importance that float32 holds and that is not below 0, found {importance.flatten()[column]:g}"
        raise TensorError(f"{problem} for column {column}", name)
    out, width = matrix(dims)
    spread = numbers.view(stacks if numbers.numel() > columns else 1, 1, columns)
    return spread.expand(out, width // columns if columns else 0, columns)


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
    compiles, (rows, columns) = compiles_decoding(out), out.shape
    if compiles and out.numel():  # so that each of its dims is a loop, as the formula has them
        dims, is_paired = _dims(formula, fields)
        out = out.view(rows, *dims)
        if is_paired and not out.is_cuda and out.dtype == torch.float32 and out.storage_offset() % 2 == 0:
            out = out.view(torch.int64).squeeze(-1)
    for _ in in_chunks(decode, formula, fields, {"weights": out}, rows, columns, compiles):
        pass


_DIMS: dict[Hashable, tuple[Sequence[int], bool]] = {}


def _dims(formula: Formula, fields: Fields) -> tuple[Sequence[int], bool]:
    """Returns the shape of the weights that a formula makes of a row, and whether it makes them in pairs."""
    key = formula, *(field.shape[1:] for field in fields.values())
    if key not in _DIMS:
        row = formula(**{name: field[:1] for name, field in fields.items()})
        _DIMS[key] = row.shape[1:], isinstance(row, Scaled) and row.is_paired
    return _DIMS[key]


def decode(formula: Formula, taken: Fields, made: Fields) -> None:
    """Makes weights of fields."""
    weights = formula(**taken)
    if isinstance(weights, Scaled):
        weights.write(made["weights"])
    else:
        made["weights"].copy_(weights)


def encode(formula: Encoder, taken: Fields, made: Fields) -> None:
    """Makes fields of weights [rows, ...], and of their importance, where there is one."""
    given = [as_matrix(taken["weights"])]
    if "importance" in taken:
        given.append(taken["importance"].flatten(0, -2))
    for name, field in formula(*given).items():
        made[name].copy_(field)


def encode_float32(formula: Encoder, taken: Fields, made: Fields) -> None:
    """The same with a formula that takes float32."""
    encode(formula, {name: field.to(torch.float32) for name, field in taken.items()}, made)


def as_matrix(weights: torch.Tensor) -> torch.Tensor:
    """Returns weights of some rows as [rows, numbers of a row]."""
    return weights.reshape(len(weights), -1)


def in_chunks(
    step: Step, formula: Any, taken: Mapping[str, torch.Tensor | Rows], made: Fields, rows: int, columns: int, compiles: bool
) -> Iterator[tuple[int, Fields, Fields]]:
    """Runs a step over rows of `columns` numbers, some at a time, and yields what it took and made each time.

    Run operation by operation, a chunk stays in the processor's cache; a step that is compiled takes as much as pays.

    Yields:
        The number of the first row that was not done before; what was taken of it and those after, and what was made.
    """
    if not rows or not columns:
        return
    keep_freed_memory()
    on_gpu, done = next(iter(made.values())).is_cuda, 0
    parts = list(fixed_chunks(rows, columns)) if compiles or on_gpu else []
    if not on_gpu and not any(is_fixed for _, is_fixed in parts):  # nothing is compiled
        parts = [(part, False) for part in row_chunks(rows, columns)]
    for part, is_fixed in parts:
        given, results = ({name: field[part] for name, field in fields.items()} for fields in (taken, made))
        if is_fixed and compiles:
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


def quantize_chunks(
    formula: Encoder,
    weights: torch.Tensor | Rows,
    out: Fields,
    as_float32: bool,
    faults: Callable[[torch.Tensor, Fields], Iterable[Fault]],
    name: str,
    shape: Sequence[int] | None = None,
    importance: torch.Tensor | None = None,
    searches: bool = False,
) -> Iterator[tuple[torch.Tensor, Fields]]:
    """Writes ``formula(weights)`` into the fields `out`, for `weights` of any strides, seen as a matrix [out, in].

    Args:
        formula: numbers [rows, in] -> fields [rows, numbers per row].
        weights: a tensor of at least one dim, or what gives its rows.
        out: the fields, by name.
        as_float32: whether the formula takes float32, to which each chunk is converted, or the weights as they are.
        faults: what the formula loses of a chunk.
        name: the tensor's, for errors and warnings.
        shape: the tensor's, for errors, where `weights` was given another one.
        importance: [rows, ..., in], as many numbers as weights, where the formula takes one.
        searches: whether the formula is thousands of operations, which nobody should compile.

    Yields:
        Some rows of the matrix, and the fields made of them, while they are in the processor's cache.

    Raises:
        TensorError: at the first fatal fault, with the index of its first element.
    """
    lost: dict[str, int] = {}
    weights = weights.detach() if isinstance(weights, torch.Tensor) else weights
    columns = math.prod(weights.shape[1:])
    step = encode_float32 if as_float32 else encode
    given = {"weights": weights} if importance is None else {"weights": weights, "importance": importance}
    compiles = compiles_encoding(next(iter(out.values()))) and not searches and importance is None
    for start, taken, made in in_chunks(step, formula, given, out, len(weights), columns, compiles):
        chunk = as_matrix(taken["weights"])
        for fatal, problem, mask in faults(chunk.to(torch.float32) if as_float32 else chunk, made):
            count = int(mask.sum())
            if count and fatal:
                first = start * columns + int(mask.flatten().to(torch.uint8).argmax())
                raise TensorError(problem, name, index_of(first, weights.shape if shape is None else shape))
            if count:
                lost[problem] = lost.get(problem, 0) + count
        yield chunk, made
    for problem, count in lost.items():
        warnings.warn(f"tensor {shown(name)}: {count} {problem}", QuantizationWarning, stacklevel=3)


def index_of(number: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the index of an element of a tensor of `shape`, from its number in C order."""
    index = []
    for size in reversed(shape):
        number, place = divmod(number, size)
        index.append(place)
    return tuple(reversed(index))
