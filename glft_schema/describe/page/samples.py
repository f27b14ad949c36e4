"""The numbers of a tensor in brief: a bounded sample of them, spread over the payload, and its histogram."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from glft_schema.describe.page.text import number
from glft_schema.describe.threads import one_thread
from glft_schema.lazy import torch
from glft_schema.tensor_types.chunks import matrix
from glft_schema.tensor_types.tensor_type import OpaqueType
from glft_schema.tensors import Tensor

SAMPLE = 1 << 16  # numbers of a tensor, about
OF_ALL = 1 << 24  # numbers of all tensors together, about: where there are many, each has a smaller sample
FEWEST = 1 << 10  # numbers of a sample, however many tensors there are
ROWS = 64  # rows of the matrix [out, in] that a sample touches, unless the rows are short
WINDOWS = 8  # of a long row
BINS = 32

Floats = np.ndarray[Any, np.dtype[np.float64]]
Part = tuple[range, range]  # rows and columns of the matrix


def sample_size(tensors: int) -> int:
    """Returns how many numbers to take of each of so many tensors."""
    return max(min(SAMPLE, OF_ALL // max(tensors, 1)), FEWEST)


def parts(tensor: Tensor, count: int) -> list[Part]:
    """Returns which parts of the matrix [out, in] a sample of about `count` numbers consists of: all where there are no more.

    They are evenly spread, and begin and end where the type's blocks or groups do.
    """
    out, columns = matrix(tensor.shape)
    if not out * columns:
        return []
    unit = tensor.dtype.unit(tensor.shape)
    across = min(columns, max(count // min(out, ROWS) // unit, 1) * unit)
    rows = min(out, max(count // across, 1))
    down = range(0, out, -(-out // rows))
    if across == columns:
        return [(down, range(columns))]
    width = max(across // WINDOWS // unit, 1) * unit
    windows = min(WINDOWS, across // width)
    return [(down, range(start, start + width)) for start in _spread(columns // unit, width // unit, windows, unit)]


def _spread(units: int, width: int, windows: int, unit: int) -> Iterator[int]:
    """Yields where `windows` of `width` units begin that are evenly spread over `units`; counted in numbers."""
    for i in range(windows):
        yield (units - width) * i // max(windows - 1, 1) * unit


def stored_part(tensor: Tensor, part: Part) -> torch.Tensor:
    """Returns the numbers of a part of the matrix, dequantized, as float64; only their bytes are read."""
    rows, columns = part
    fields = tensor.dtype.cut(tensor.place[0], tensor.position, tensor.shape, rows, columns, tensor.order)
    return tensor.dtype.decode(fields, len(columns)).double()


@one_thread()
def sample(tensor: Tensor, count: int) -> Floats:
    """Returns about `count` numbers of a tensor as float64: the same ones each time."""
    found = [stored_part(tensor, part).reshape(-1) for part in parts(tensor, count)]
    numbers: Floats = torch.cat(found).numpy() if found else np.empty(0)
    return numbers


def summary(tensor: Tensor, count: int) -> dict[str, Any]:
    """Returns what a page says of a tensor's numbers, from a sample of about `count`."""
    if isinstance(tensor.dtype, OpaqueType):
        return {"problem": f"the type with code {tensor.dtype.code} is not known, so its numbers are not"}
    return describe(sample(tensor, count))


def describe(numbers: Floats) -> dict[str, Any]:
    """Returns how many numbers there are, of them NaN and infinite, and of the finite ones range, mean, std and histogram.

    The histogram is the counts of `BINS` equal parts of the range, the last of which holds its end, too.
    """
    finite = numbers[np.isfinite(numbers)]
    found: dict[str, Any] = {"count": len(numbers)}
    if nan := int(np.isnan(numbers).sum()):
        found["nan"] = nan
    if infinite := len(numbers) - len(finite) - nan:
        found["inf"] = infinite
    if not len(finite):
        return found
    with np.errstate(over="ignore", invalid="ignore"):  # of numbers near the largest: the sum is infinite, and shown so
        found |= {"mean": number(finite.mean()), "std": number(finite.std())}
    return found | {"min": number(finite.min(), 9), "max": number(finite.max(), 9), "histogram": histogram(finite)}


def histogram(numbers: Floats) -> list[int]:
    """Returns the counts of equal parts of the range; all numbers in one part where they are equal."""
    _, exponents = np.frexp(np.abs(numbers).max())
    scaled = np.ldexp(numbers, -int(exponents))  # so that the range neither overflows nor vanishes
    least, greatest = scaled.min(), scaled.max()
    if least == greatest:
        return [len(numbers)]
    places = np.minimum((scaled - least) / (greatest - least) * BINS, BINS - 1).astype(np.int64)
    counts: list[int] = np.bincount(places, minlength=BINS).tolist()
    return counts
