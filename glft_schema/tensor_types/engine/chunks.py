"""Runs a type's formula over a matrix in chunks of rows, which on a CPU fit into its cache.

A formula makes several passes over its data. The passes over a chunk stay in the cache, so memory
is read and written once; docs/speed.md has measurements. A compiled formula is a single pass; see
`compiled`.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from glft_schema.errors import QuantizationWarning, TensorError, shown
from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.compiled import Step, compiles, fixed_chunks, run_compiled
from glft_schema.tensor_types.engine.functions import Encoder, Fields
from glft_schema.tensor_types.engine.memory import keep_freed_memory
from glft_schema.tensor_types.engine.steps import watched

# A loss of information: whether it is fatal, a description, and a mask of the affected elements of
# the chunk [rows, in].
Fault = tuple[bool, str, "torch.Tensor"]

CHUNK = 1 << 20  # numbers in a chunk: 4 MiB as float32
LEAST_CHUNK = 1 << 16  # numbers that are worth a thread
_BY_KERNELS: set[int] = set()  # ids of the formulas whose last chunk kernels ran in; only speed depends on it


def matrix(dims: Sequence[int]) -> tuple[int, int]:
    """Returns `dims` as [out, in]: the first dim and the product of the rest, or one row."""
    return (dims[0], math.prod(dims[1:])) if len(dims) > 1 else (1, math.prod(dims))


def slices(n: int, size: int, start: int = 0) -> Iterator[slice]:
    """Yields slices of `size` that cover `start` to `n`; the last one may be smaller."""
    for first in range(start, n, size):
        yield slice(first, min(first + size, n))


def cache_slices(n: int, size: int, device: torch.device, elsewhere: int) -> Iterator[slice]:
    """Yields slices of `size` on a CPU, for its cache, and of `elsewhere` on other devices."""
    return slices(n, max(size if device.type == "cpu" else elsewhere, 1))


def row_chunks(rows: int, columns: int) -> Iterator[slice]:
    """Yields slices of rows with about `CHUNK` numbers each; none if rows are empty."""
    return slices(rows if columns else 0, max(CHUNK // max(columns, 1), 1))


def spread_importance(importance: torch.Tensor, dims: Sequence[int], name: str) -> torch.Tensor:
    """Expands an importance of columns to all numbers of a tensor: float32, a view [out, rows of
    each, in].

    Args:
        importance: one number per index of the last dim, or for a stack of matrices as many for
            each matrix.
        dims: of the tensor.
        name: the tensor's name in errors.

    Raises:
        TensorError: if the importance is invalid.
    """
    if not isinstance(importance, torch.Tensor) or importance.is_complex():
        raise TensorError(f"expected the importance as a torch.Tensor of real numbers, found {shown(importance)}", name)
    columns, stacks = dims[-1] if dims else 1, dims[0] if len(dims) > 2 else 1
    numbers = importance.detach().to(torch.float32).flatten()
    if numbers.numel() not in (columns, stacks * columns):
        either = f"{columns} or {stacks * columns}" if stacks > 1 else f"{columns}"
        raise TensorError(f"expected {either} importance values, one per column, found {numbers.numel()}", name)
    invalid = ((numbers >= 0) & numbers.isfinite()).logical_not_().nonzero()
    if len(invalid):
        column = int(invalid[0])
        problem = f"expected importance values that are finite and not negative, found {importance.flatten()[column]:g}"
        raise TensorError(f"{problem} for column {column}", name)
    out, width = matrix(dims)
    spread = numbers.view(stacks if numbers.numel() > columns else 1, 1, columns)
    return spread.expand(out, width // columns if columns else 0, columns)


def encode(formula: Encoder, given: Fields, out: Fields) -> None:
    """Writes the fields of weights [rows, ...], with their importance if given."""
    importance = {name: field.flatten(0, -2) for name, field in given.items() if name == "importance"}
    for name, field in formula(as_matrix(given["weights"]), **importance).items():
        out[name].copy_(field)


def encode_float32(formula: Encoder, given: Fields, out: Fields) -> None:
    """Writes the fields of weights converted to float32."""
    encode(formula, {name: field.to(torch.float32) for name, field in given.items()}, out)


def as_matrix(weights: torch.Tensor) -> torch.Tensor:
    """Returns weights of some rows as [rows, numbers per row]."""
    return weights.reshape(len(weights), -1)


def in_chunks(
    step: Step, formula: Any, given: Mapping[str, torch.Tensor], out: Fields, rows: int, columns: int, compiled: bool
) -> Iterator[tuple[int, Fields, Fields]]:
    """Runs a step over rows of `columns` numbers in chunks: of the cache's size, or of fixed sizes
    if it is compiled.

    Yields:
        The first row of the chunk not yielded before, and the arguments and results of the rows
            from there on.
    """
    if not rows or not columns:
        return
    keep_freed_memory()
    on_gpu, done = next(iter(out.values())).is_cuda, 0
    parts = list(fixed_chunks(rows, columns)) if compiled or on_gpu else []
    if not on_gpu and not any(is_fixed for _, is_fixed in parts):  # nothing is compiled
        yield from _on_cpu(step, formula, given, out, rows, columns)
        return
    for part, is_fixed in parts:
        chunk, results = _taken(given, part), _taken(out, part)
        if is_fixed and compiled:
            run_compiled(step, formula, chunk, results)
        else:
            step(formula, chunk, results)
        overlap = done - part.start
        yield done, _taken(chunk, slice(overlap, None)), _taken(results, slice(overlap, None))
        done = part.stop


def _on_cpu(
    step: Step, formula: Any, given: Mapping[str, torch.Tensor], out: Fields, rows: int, columns: int
) -> Iterator[tuple[int, Fields, Fields]]:
    """Runs a step over rows in chunks of the cache's size: in several threads if kernels ran in the
    chunk before.

    Operations one by one are slower in several threads, since they wait for Python's global lock.
    """
    size, threads = max(CHUNK // columns, 1), torch.get_num_threads()

    def chunks(first: int, size: int) -> Iterator[tuple[int, Fields, Fields]]:
        for part in slices(rows, size, first):
            yield part.start, _taken(given, part), _taken(out, part)

    def run(chunk: tuple[int, Fields, Fields]) -> None:
        with watched() as by_kernels:
            step(formula, *chunk[1:])
        (_BY_KERNELS.add if any(by_kernels) else _BY_KERNELS.discard)(id(formula))

    done = 0
    if id(formula) not in _BY_KERNELS:
        first = next(chunks(0, size))
        run(first)
        yield first
        done = size
    left = rows - done
    if threads > 1 and left * columns > LEAST_CHUNK and id(formula) in _BY_KERNELS:
        from glft_schema.tensor_types.engine.workers import in_order  # slow to import

        rounds = -(-left // (threads * size))
        yield from in_order(run, chunks(done, max(-(-left // (threads * rounds)), LEAST_CHUNK // columns)))
    else:
        for chunk in chunks(done, size):
            run(chunk)
            yield chunk


def _taken(fields: Mapping[str, torch.Tensor], rows: slice) -> Fields:
    return {name: field[rows] for name, field in fields.items()}


def quantize_chunks(
    formula: Encoder,
    weights: torch.Tensor,
    out: Fields,
    as_float32: bool,
    faults: Callable[[torch.Tensor, Fields], Iterable[Fault]],
    name: str,
    shape: Sequence[int] | None = None,
    importance: torch.Tensor | None = None,
    lost: Counter[str] | None = None,
) -> Iterator[tuple[torch.Tensor, Fields]]:
    """Writes ``formula(weights)`` into the fields `out`, for `weights` seen as a matrix [out, in].

    Args:
        formula: numbers [rows, in] -> fields [rows, numbers per row].
        weights: a tensor of at least one dim and any strides.
        out: the fields, by name.
        as_float32: whether chunks are converted to float32 for the formula.
        faults: finds what the formula loses of a chunk.
        name: of the tensor, for errors and warnings.
        shape: of the tensor, for errors, if `weights` has another one.
        importance: [rows, ..., in], if the formula uses one.
        lost: gets the count of weights for each kind of loss; by default they are a warning.

    Yields:
        Some rows of the matrix and their fields, while they are in the CPU's cache.

    Raises:
        TensorError: at the first fatal fault, with the index of its first element.
    """
    counts = Counter[str]() if lost is None else lost
    weights = weights.detach()
    columns = math.prod(weights.shape[1:])
    step = encode_float32 if as_float32 else encode
    given = {"weights": weights} if importance is None else {"weights": weights, "importance": importance}
    compiled = compiles(next(iter(out.values())))
    for start, taken, encoded in in_chunks(step, formula, given, out, len(weights), columns, compiled):
        chunk = as_matrix(taken["weights"])
        for fatal, problem, mask in faults(chunk.to(torch.float32) if as_float32 else chunk, encoded):
            count = int(mask.sum())
            if count and fatal:
                first = start * columns + int(mask.flatten().to(torch.uint8).argmax())
                raise TensorError(problem, name, index_of(first, weights.shape if shape is None else shape))
            if count:
                counts[problem] += count
        yield chunk, encoded
    if lost is None:
        warn_of_lost(name, counts)


def warn_of_lost(name: str, lost: Mapping[str, int]) -> None:
    """Warns of the weights of a tensor that encoding has lost, by kind."""
    for problem, count in lost.items():
        warnings.warn(f"tensor {shown(name)}: {count} {problem}", QuantizationWarning, stacklevel=4)


def index_of(number: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the index of an element of a tensor of `shape`, from its number in C order."""
    index = []
    for size in reversed(shape):
        number, place = divmod(number, size)
        index.append(place)
    return tuple(reversed(index))
