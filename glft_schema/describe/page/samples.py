"""Statistics of a tensor: a bounded sample from a few runs of the payload, and its histogram."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from glft_schema.describe.page.frame import number
from glft_schema.storage.dtypes import FLOAT64
from glft_schema.storage.source import ReadSource
from glft_schema.tensor_types.conversions import convert
from glft_schema.tensor_types.payload_layout import matrix
from glft_schema.tensors.tensor import Tensor

SAMPLE = 1 << 16  # numbers of a tensor, about
OF_ALL = 1 << 24  # numbers of all tensors, about: samples are smaller if there are many tensors
FEWEST = 1 << 10  # numbers of a sample, for any number of tensors
GRID = 12, 24  # rows and columns of a heat map, at most
OF_GRID = 1 << 16  # numbers that a heat map is made from, at most
LEVELS = "0123456789abcdefghijklmnopqrstuvwxyz"  # of a cell
RUNS = 8  # of adjacent numbers in a sample: each may make the system read ahead
BINS = 32

Floats = np.ndarray[Any, np.dtype[np.float64]]
Part = tuple[range, range]  # rows and columns of the matrix


def sample_size(tensors: int) -> int:
    """Returns the size of the sample of each tensor, for a number of tensors."""
    return max(min(SAMPLE, OF_ALL // max(tensors, 1)), FEWEST)


def sample_parts(tensor: Tensor, count: int) -> list[Part]:
    """Returns the parts of the matrix [out, in] for a sample of about `count` numbers.

    There are at most `RUNS` parts of one size. Each is a run of adjacent numbers, so that a sample
    reads few pages of a large file. They are evenly spread from the start to the end and aligned
    to the type's blocks or groups.
    """
    out, columns = matrix(tensor.shape)
    if out * columns <= count:
        return [(range(out), range(columns))] if out * columns else []
    run = max(count // RUNS, 1)
    if columns <= run:  # whole rows
        rows = run // columns
        return [(range(row, row + rows), range(columns)) for row in _spread(out - rows, min(RUNS, out // rows))]
    unit = tensor.type.unit(tensor.shape)
    width = max(run // unit, 1) * unit
    across, last = columns // width, (columns - width) // unit  # runs in a row, and the start of the last one
    if out >= RUNS or across == 1:  # along the diagonal
        count = min(RUNS, out)
        corners = list(zip(_spread(out - 1, count), _spread(last, count), strict=True))
    else:  # several in a row
        runs = (divmod(i, across) for i in _spread(out * across - 1, min(RUNS, out * across)))
        corners = [(row, last * column // (across - 1)) for row, column in runs]
    return [(range(row, row + 1), range(at * unit, at * unit + width)) for row, at in corners]


def _spread(last: int, count: int) -> list[int]:
    return [last * i // max(count - 1, 1) for i in range(count)]


def stored_parts(tensor: Tensor, parts: Sequence[Part]) -> Floats:
    """Returns parts of one size, dequantized together, as float64; complex numbers as pairs.

    Reads only their bytes.
    """
    source, width = ReadSource(tensor.identity[0]), len(parts[0][1])
    cuts = [tensor.type.cut(source, tensor.position, tensor.shape, *part, tensor.order) for part in parts]
    fields = {name: np.concatenate([cut[name] for cut in cuts]) for name in cuts[0]} if len(cuts) > 1 else cuts[0]
    numbers = tensor.type.decode(fields, width)
    if numbers.dtype.kind == "c":
        numbers = np.stack((numbers.real, numbers.imag), -1)
    return convert(numbers, FLOAT64)


def sample(tensor: Tensor, count: int) -> Floats:
    """Returns about `count` numbers of a tensor as float64, always the same ones."""
    taken = sample_parts(tensor, count)
    return stored_parts(tensor, taken).reshape(-1) if taken else np.empty(0)


def describe(numbers: Floats) -> dict[str, Any]:
    """Returns the counts of numbers, NaNs and infinities, and statistics of the finite ones."""
    finite = numbers[np.isfinite(numbers)]
    statistics: dict[str, Any] = {"count": len(numbers)}
    if nan := int(np.isnan(numbers).sum()):
        statistics["nan"] = nan
    if infinite := len(numbers) - len(finite) - nan:
        statistics["inf"] = infinite
    if not len(finite):
        return statistics
    with np.errstate(over="ignore", invalid="ignore"):  # the sum of numbers near the maximum is infinite, and shown as such
        statistics |= {"mean": number(finite.mean()), "std": number(finite.std())}
    return statistics | {"min": number(finite.min(), 9), "max": number(finite.max(), 9), "histogram": histogram(finite)}


def histogram(numbers: Floats) -> list[int]:
    """Returns a count for each of `BINS` equal intervals, or one count if all are equal."""
    _, exponents = np.frexp(np.abs(numbers).max())
    scaled = np.ldexp(numbers, -int(exponents))  # the range must neither overflow nor underflow
    least, greatest = scaled.min(), scaled.max()
    if least == greatest:
        return [len(numbers)]
    bins = np.minimum((scaled - least) / (greatest - least) * BINS, BINS - 1).astype(np.int64)
    counts: list[int] = np.bincount(bins, minlength=BINS).tolist()
    return counts


def heat_map(tensor: Tensor) -> dict[str, Any] | None:
    """Returns the mean magnitude of parts of evenly spaced rows, each as one of `LEVELS`, or ``-``
    if it is not finite. Returns None for a tensor with a single row or column, with very long rows,
    or without a finite mean."""
    out, columns = matrix(tensor.shape)
    across, count = min(GRID[1], columns), min(GRID[0], out, OF_GRID // max(columns, 1))
    if count < 2 or across < 2:
        return None
    rows = range(0, out, (out - 1) // (count - 1))[:count]
    numbers = np.abs(stored_parts(tensor, [(rows, range(columns))]).reshape(count, columns, -1))
    edges = [columns * k // across for k in range(across + 1)]
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(numbers.sum(axis=2), edges[:-1], axis=1)
        means = sums / (np.diff(edges) * numbers.shape[2])
    finite = np.where(np.isfinite(means), means, np.nan)
    if np.isnan(finite).all():
        return None
    least, most = float(np.nanmin(finite)), float(np.nanmax(finite))
    scaled = (finite - least) / ((most - least) or 1.0) * (len(LEVELS) - 1)
    cells = "".join("-" if math.isnan(level) else LEVELS[round(level)] for level in scaled.reshape(-1).tolist())
    return {"step": rows.step, "count": count, "columns": columns, "least": number(least), "most": number(most), "cells": cells}
