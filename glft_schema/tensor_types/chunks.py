"""Drives a type's formula over a matrix in chunks of rows that stay in the processor's cache.

The formulas make several passes over their data. A chunk's passes run in cache, so that the matrix itself is read once and
written once; see docs/design.md for what that is worth. On a GPU the formula takes the matrix whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from glft_schema.errors import QuantizationWarning, TensorError
from glft_schema.lazy import torch

CHUNK = 1 << 19  # numbers in a chunk: 2 MiB as float32


def row_chunks(rows: int, columns: int, whole: bool) -> Iterator[slice]:
    """Yields slices of rows that hold about `CHUNK` numbers each, or one slice for the whole."""
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
) -> None:
    """Writes ``formula(weights)`` into the fields `out`, for `weights` of any strides, seen as a matrix [out, in].

    Args:
        formula: numbers [rows, in] -> fields [rows, numbers per row].
        weights: a tensor of at least one dim.
        out: the fields, by name.
        dtype: what each chunk is converted to before the formula sees it; None leaves it as it is.
    """
    for rows in row_chunks(len(weights), weights[:1].numel(), whole=weights.is_cuda):
        chunk = weights[rows].detach().reshape(rows.stop - rows.start, -1)
        for name, field in formula(chunk if dtype is None else chunk.to(dtype)).items():
            out[name][rows] = field


def report_faults(faults: Iterable[tuple[bool, str, torch.Tensor]], name: str, shape: Sequence[int]) -> None:
    """Raises at the first fatal fault, and warns of the others; see `TensorType.faults`.

    Args:
        faults: what a formula lost, each with a mask over the matrix [out, in].
        name: the tensor's.
        shape: the tensor's.

    Raises:
        TensorError: with the index of the first element concerned.
    """
    for fatal, problem, mask in faults:
        count = int(mask.sum())
        if count and fatal:
            row, column = divmod(int(mask.flatten().to(torch.uint8).argmax()), mask.shape[1])
            raise TensorError(problem, name, _index(row, column, shape))
        if count:
            warnings.warn(f"tensor {name!r}: {count} {problem}", QuantizationWarning, stacklevel=2)


def _index(row: int, column: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the index in a tensor of `shape` of an element of its matrix [out, in]."""
    inner = []
    for size in reversed(shape[1:]):
        column, place = divmod(column, size)
        inner.append(place)
    return (row, *reversed(inner))
