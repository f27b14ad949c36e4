"""Decodes fields into weights with a type's formula, in chunks. `decoders` does so by kernels."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.bits import by_words
from glft_schema.tensor_types.engine.chunks import in_chunks
from glft_schema.tensor_types.engine.compiled import compiles
from glft_schema.tensor_types.engine.scaled import Fields, Formula, Scaled


def dequantize_chunks(formula: Formula, fields: Fields, out: torch.Tensor) -> None:
    """Writes the weights of ``formula(**fields)`` into `out` [rows, in], contiguous, of any float
    dtype.

    `fields` have as many rows as `out`.
    """
    compiled, (rows, columns) = compiles(out), out.shape
    if compiled and out.numel():  # with the dims of the formula, each of which becomes a loop
        out = out.view(rows, *dims_of(formula, fields)[0])
    for _ in in_chunks(decode, formula, fields, {"weights": out}, rows, columns, compiled):
        pass


_DIMS: dict[Hashable, tuple[Sequence[int], bool]] = {}


def dims_of(formula: Formula, fields: Fields) -> tuple[Sequence[int], bool]:
    """Returns the shape of a formula's weights per row, and whether the weights are paired."""
    key = formula, *(field.shape[1:] for field in fields.values())
    if key not in _DIMS:
        row = formula(**{name: field[:1] for name, field in fields.items()})
        _DIMS[key] = row.shape[1:], isinstance(row, Scaled) and row.is_paired
    return _DIMS[key]


def decode(formula: Formula, given: Fields, out: Fields) -> None:
    """Writes the weights of fields."""
    weights = formula(**given)
    pairs = out["weights"].dtype == torch.int64  # two weights in an element
    if by_words(out["weights"]) and not pairs and math.prod(weights.shape) != out["weights"].numel():
        expected, found = list(out["weights"].shape), list(weights.shape)
        raise ValueError(f"expected weights {expected} from the formula, found {found}")
    if isinstance(weights, Scaled):
        weights.write(out["weights"])
    else:
        out["weights"].copy_(weights)
