"""The numbers of a tensor in brief: a bounded sample from a few places of the payload, and its histogram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glft_schema.describe.page.text import number
from glft_schema.describe.threads import one_thread
from glft_schema.lazy import torch
from glft_schema.storage.source import ReadSource
from glft_schema.tensor_types.engine.chunks import matrix
from glft_schema.tensors.tensor import Tensor

SAMPLE = 1 << 16  # numbers of a tensor, about
OF_ALL = 1 << 24  # numbers of all tensors together, about: where there are many, each has a smaller sample
FEWEST = 1 << 10  # numbers of a sample, however many tensors there are
PLACES = 8  # runs of neighbouring numbers in a sample: each may make the system read ahead
BINS = 32

Floats = np.ndarray[Any, np.dtype[np.float64]]
Part = tuple[range, range]  # rows and columns of the matrix


def sample_size(tensors: int) -> int:
    """Returns how many numbers to take of each of so many tensors."""
    return max(min(SAMPLE, OF_ALL // max(tensors, 1)), FEWEST)


def sample_parts(tensor: Tensor, count: int) -> list[Part]:
    """Returns which parts of the matrix [out, in] a sample of about `count` numbers consists of: all if there are no more.

    There are at most `PLACES` parts of one size, each one run of neighbouring numbers, so that a sample reads few pages of a
    large file. They are evenly spread, the first at the beginning and the last at the end, and begin and end where the type's
    blocks or groups do.
    """
    out, columns = matrix(tensor.shape)
    if out * columns <= count:
        return [(range(out), range(columns))] if out * columns else []
    run = max(count // PLACES, 1)
    if columns <= run:  # whole rows
        rows = run // columns
        return [(range(row, row + rows), range(columns)) for row in _spread(out - rows, min(PLACES, out // rows))]
    unit = tensor.dtype.unit(tensor.shape)
    width = max(run // unit, 1) * unit
    across, last = columns // width, (columns - width) // unit  # runs that a row has room for, and where the last one begins
    if out >= PLACES or across == 1:  # along the diagonal
        count = min(PLACES, out)
        corners = list(zip(_spread(out - 1, count), _spread(last, count), strict=True))
    else:  # several in a row
        places = (divmod(i, across) for i in _spread(out * across - 1, min(PLACES, out * across)))
        corners = [(row, last * place // (across - 1)) for row, place in places]
    return [(range(row, row + 1), range(at * unit, at * unit + width)) for row, at in corners]


def _spread(last: int, count: int) -> list[int]:
    """Returns `count` integers, evenly spread from 0 to `last`."""
    return [last * i // max(count - 1, 1) for i in range(count)]


def stored_parts(tensor: Tensor, parts: Sequence[Part]) -> torch.Tensor:
    """Returns the numbers of parts of the matrix of one size, dequantized together, as float64; only their bytes are read."""
    source, width = ReadSource(tensor.identity[0]), len(parts[0][1])
    found = [tensor.dtype.cut(source, tensor.position, tensor.shape, *part, tensor.order) for part in parts]
    fields = {name: torch.cat([cut[name] for cut in found]) for name in found[0]} if len(found) > 1 else found[0]
    return tensor.dtype.decode(fields, width).double()


@one_thread()
def sample(tensor: Tensor, count: int) -> Floats:
    """Returns about `count` numbers of a tensor as float64: the same ones each time."""
    taken = sample_parts(tensor, count)
    numbers: Floats = stored_parts(tensor, taken).reshape(-1).numpy() if taken else np.empty(0)
    return numbers


def summary(tensor: Tensor, count: int) -> dict[str, Any]:
    """Returns what a page says of a tensor's numbers, from a sample of about `count`."""
    if not tensor.dtype.is_known:
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
