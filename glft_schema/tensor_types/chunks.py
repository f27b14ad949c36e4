"""Drives a type's formula over a matrix in chunks of rows that stay in the processor's cache.

The formulas make several passes over their data. A chunk's passes run in cache, so that the matrix itself is read once and
written once; see docs/design.md for what that is worth. On a GPU the formula takes the matrix whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from glft_schema.errors import QuantizationWarning, TensorError, shown
from glft_schema.lazy import torch

# What a formula may lose: whether that is fatal, in words, and of which elements, as a mask over the chunk [rows, in].
Fault = tuple[bool, str, "torch.Tensor"]

CHUNK = 1 << 20  # numbers in a chunk: 4 MiB as float32


def row_chunks(rows: int, columns: int, whole: bool) -> Iterator[slice]:
    """Yields slices of rows that hold about `CHUNK` numbers each, or one slice for the whole; none if rows are empty."""
    if not columns:
        return
    step = max(rows if whole else CHUNK // max(columns, 1), 1)
    for first in range(0, rows, step):
        yield slice(first, min(first + step, rows))


def dequantize_chunks(formula: Callable[..., torch.Tensor], fields: Mapping[str, torch.Tensor], out: torch.Tensor) -> None:
    """Writes ``formula(**fields)`` into `out` [rows, in], whatever its float dtype; `fields` have one row per row of it."""
    for rows in row_chunks(out.shape[0], out.shape[1], whole=out.is_cuda):
        out[rows].copy_(formula(**{name: field[rows] for name, field in fields.items()}))


def quantize_chunks(
    formula: Callable[[torch.Tensor], Mapping[str, torch.Tensor]],
    weights: torch.Tensor,
    out: Mapping[str, torch.Tensor],
    dtype: torch.dtype | None,
    faults: Callable[[torch.Tensor, Mapping[str, torch.Tensor]], Iterable[Fault]],
    name: str,
    shape: Sequence[int] | None = None,
) -> None:
    """Writes ``formula(weights)`` into the fields `out`, for `weights` of any strides, seen as a matrix [out, in].

    Args:
        formula: numbers [rows, in] -> fields [rows, numbers per row].
        weights: a tensor of at least one dim.
        out: the fields, by name.
        dtype: what each chunk is converted to before the formula sees it; None leaves it as it is.
        faults: what the formula loses of a chunk.
        name: the tensor's, for errors and warnings.
        shape: the tensor's, for errors, where `weights` was given another one.

    Raises:
        TensorError: at the first fatal fault, with the index of its first element.
    """
    lost: dict[str, int] = {}
    columns = weights[:1].numel()
    for rows in row_chunks(len(weights), columns, whole=weights.is_cuda):
        chunk = weights[rows].detach().reshape(rows.stop - rows.start, columns)
        chunk = chunk if dtype is None else chunk.to(dtype)
        made = formula(chunk)
        for fatal, problem, mask in faults(chunk, made):
            count = int(mask.sum())
            if count and fatal:
                first = rows.start * columns + int(mask.flatten().to(torch.uint8).argmax())
                raise TensorError(problem, name, index_of(first, weights.shape if shape is None else shape))
            if count:
                lost[problem] = lost.get(problem, 0) + count
        for key, field in made.items():
            out[key][rows] = field
    for problem, count in lost.items():
        warnings.warn(f"tensor {shown(name)}: {count} {problem}", QuantizationWarning, stacklevel=3)


def index_of(number: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the index of an element of a tensor of `shape`, from its number in C order."""
    index = []
    for size in reversed(shape):
        number, place = divmod(number, size)
        index.append(place)
    return tuple(reversed(index))
