"""Parts of a tensor, selected by integers, slices and ``...``."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import NamedTuple

from numpy.lib.stride_tricks import as_strided

from glft_schema.errors import quote
from glft_schema.lazy import torch
from glft_schema.storage.dtypes import Array

Index = int | slice | EllipsisType
Indices = Index | tuple[Index, ...]


class MatrixBlock(NamedTuple):
    """A part of a tensor, located in a block of rows and columns of its matrix.

    Attributes:
        rows: of the matrix.
        columns: of the matrix, whole units of the type.
        shape: of the part.
        steps: for each dim of the part, its stride within a row of the block, or None if it spans
            rows.
        first: the index of the part's first number in a row of the block.
    """

    rows: range
    columns: range
    shape: Sequence[int]
    steps: Sequence[int | None] = ()
    first: int = 0

    @classmethod
    def flat(cls, rows: range, columns: range) -> MatrixBlock:
        """Returns all numbers of a block as a part of one dim."""
        return cls(rows, columns, [len(rows) * len(columns)])

    @property
    def is_whole(self) -> bool:
        """Whether the block has no other numbers."""
        return math.prod(self.shape) == len(self.rows) * len(self.columns)

    def of_array(self, block: Array) -> Array:
        """Returns the part of a decoded block [rows, columns], as a view."""
        if self.is_whole:
            return block.reshape(self.shape)
        return as_strided(block[:, self.first :], self.shape, self._strides(block.strides))

    def of_tensor(self, block: torch.Tensor) -> torch.Tensor:
        """Returns the part of a decoded block [rows, columns], as a view."""
        if self.is_whole:
            return block.reshape(tuple(self.shape))
        return block[:, self.first :].as_strided(self.shape, self._strides(block.stride()))

    def _strides(self, strides: Sequence[int]) -> list[int]:
        down, across = strides
        return [down if step is None else step * across for step in self.steps]


def part_at(index: Indices, shape: Sequence[int], unit: int, name: str) -> MatrixBlock:
    """Returns the location of a part of a tensor.

    Args:
        index: as in ``tensor[index]``.
        shape: of the tensor.
        unit: how many neighbours share a stored number.
        name: of the tensor, for errors.

    Raises:
        IndexError: as torch does; also for a step below 1 and other kinds of index.
    """
    ranges, dropped = _ranges(index, shape, name)
    sizes = [len(part) for part, drop in zip(ranges, dropped, strict=True) if not drop]
    if 0 in sizes:
        return MatrixBlock(range(0), range(0), sizes, [], 0)
    has_rows = len(ranges) > 1  # otherwise the matrix has one row, see `matrix`
    rows, inner = (ranges[0], ranges[1:]) if has_rows else (range(1), ranges)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(has_rows, len(shape))]
    first = sum(part[0] * stride for part, stride in zip(inner, strides, strict=True))
    last = sum(part[-1] * stride for part, stride in zip(inner, strides, strict=True))
    columns = range(first // unit * unit, -(-(last + 1) // unit) * unit)
    steps = [*[None] * has_rows, *(stride * part.step for part, stride in zip(inner, strides, strict=True))]
    kept = [step for step, drop in zip(steps, dropped, strict=True) if not drop]
    return MatrixBlock(rows, columns, sizes, kept, first - columns.start)


def _ranges(index: Indices, shape: Sequence[int], name: str) -> tuple[list[range], list[bool]]:
    """Returns the range of each dim, and whether the result drops the dim."""
    indices = list(index) if isinstance(index, tuple) else [index]
    if any(part is None for part in indices):
        raise IndexError("new axes (None) are not supported in slices: index with integers, slices and ...")
    ellipses = [at for at, part in enumerate(indices) if part is ...] or [len(indices)]
    if len(ellipses) > 1:
        raise IndexError("an index can have at most one ellipsis ('...')")
    missing = len(shape) - sum(part is not ... for part in indices)
    if missing < 0:
        raise IndexError(f"too many indices for tensor {quote(name)} of {len(shape)} dims")
    indices[ellipses[0] : ellipses[0] + 1] = [slice(None)] * missing
    ranges = []
    for axis, (part, size) in enumerate(zip(indices, shape, strict=True)):
        if isinstance(part, slice) and (part.step is None or part.step > 0):
            picked = range(size)[part]
            ranges.append(range(picked[0], picked[0] + 1) if len(picked) == 1 else picked)  # any step
            continue
        try:
            at = None if isinstance(part, (bool, slice, EllipsisType)) else operator.index(part)  # accepts numpy integers
        except TypeError:
            at = None
        if at is None:
            raise IndexError(f"expected an integer, a slice with a positive step, or ..., found {quote(part)}")
        if not -size <= at < size:
            raise IndexError(f"index {at} is out of bounds for dim {axis} of size {size}")
        ranges.append(range(at % size, at % size + 1))
    return ranges, [not isinstance(part, slice) for part in indices]
