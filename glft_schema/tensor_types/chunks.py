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
    formula: Callable[[torch.Tensor], dict[str, torch.Tensor]],
    weights: torch.Tensor,
    faults: Callable[[torch.Tensor, Mapping[str, torch.Tensor]], Iterable[tuple[bool, str, torch.Tensor]]],
    dtype: torch.dtype | None,
    name: str,
) -> dict[str, torch.Tensor]:
    """Returns ``formula(weights)`` for `weights` of any strides and at least one dim, seen as a matrix [out, in].

    Args:
        formula: numbers [rows, in] -> fields [rows, numbers per row].
        weights: the tensor.
        faults: what the formula may lose, see `TensorType.faults`.
        dtype: what each chunk is converted to before the formula sees it; None leaves it as it is.
        name: the tensor's, for errors and warnings.

    Raises:
        TensorError: at the first fatal fault, with the index of the first element concerned.
    """
    fields: dict[str, torch.Tensor] = {}
    lost: dict[str, int] = {}
    for rows in row_chunks(len(weights), weights[:1].numel(), whole=weights.is_cuda):
        chunk = weights[rows].detach().reshape(rows.stop - rows.start, -1)
        chunk = chunk if dtype is None else chunk.to(dtype)
        made = formula(chunk)
        for fatal, problem, mask in faults(chunk, made):
            if fatal and bool(mask.any()):
                row, column = divmod(int(mask.flatten().int().argmax()), mask.shape[1])
                raise TensorError(problem, name, _index(rows.start + row, column, weights.shape))
            lost[problem] = lost.get(problem, 0) + int(mask.sum())
        if not fields:
            fields = {key: part.new_empty(len(weights), *part.shape[1:]) for key, part in made.items()}
        for key, part in made.items():
            fields[key][rows] = part
    for problem, count in lost.items():
        if count:
            warnings.warn(f"tensor {name!r}: {count} {problem}", QuantizationWarning, stacklevel=2)
    return fields


def _index(row: int, column: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the index in a tensor of `shape` of an element of its matrix [out, in]."""
    inner = []
    for size in reversed(shape[1:]):
        column, place = divmod(column, size)
        inner.append(place)
    return (row, *reversed(inner))
