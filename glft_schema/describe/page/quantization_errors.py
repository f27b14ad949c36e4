"""What quantizing has cost: the numbers of a tensor beside those that it was made from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from glft_schema.describe.page.samples import Part, describe, sample_parts, stored_parts
from glft_schema.describe.page.text import number
from glft_schema.errors import FormatError, TensorError
from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.chunks import matrix
from glft_schema.tensors.tensor import Tensor
from glft_schema.weights.stored_tensors import StoredTensor

AT_ONCE = 1 << 22  # numbers compared in one step


def errors(tensor: Tensor, source: Mapping[str, StoredTensor], count: int) -> dict[str, Any]:
    """Returns how far a tensor's numbers are from those of its source, over all of them; or the problem with that.

    ``rms`` and ``max`` are of stored - source; ``relative`` is rms over the source's own rms. Equal numbers, NaN and infinities
    of both sides included, have no error; numbers of which only one is finite are counted as ``unlike`` and left out of the
    rest. The histogram is of the errors of the same sample that the tensor's own is of.

    Args:
        tensor: of the file.
        source: what the file was made from.
        count: about how many numbers the sample has.
    """
    if tensor.name not in source:
        return {"problem": "not in the source"}
    stored = source[tensor.name]
    if not tensor.dtype.is_known or stored.dtype.is_complex:
        return {"problem": "of a type whose numbers cannot be compared"}
    if stored.shape != tensor.shape:
        return {"problem": f"shape {list(stored.shape)} in the source, {list(tensor.shape)} in the file"}
    try:
        expected = stored.load().detach().cpu().reshape(matrix(tensor.shape))
    except (TensorError, FormatError) as error:
        return {"problem": f"the source cannot be read: {error}"}
    sampled = [_difference(tensor, expected, part)[0].reshape(-1) for part in sample_parts(tensor, count)]
    found = {"sample": describe(torch.cat(sampled).numpy())} if sampled else {}
    return found | _totals(tensor, expected)


def _totals(tensor: Tensor, expected: torch.Tensor) -> dict[str, Any]:
    squares = own = theirs = both = largest = 0.0
    unlike = 0
    for part in _all(tensor):
        error, found, wanted = _difference(tensor, expected, part)
        alike = error.isfinite()
        unlike += error.numel() - int(alike.sum())
        counted = alike & found.isfinite()
        error, found, wanted = (numbers[counted] for numbers in (error, found, wanted))
        squares, both = squares + float(error.square().sum()), both + float((found * wanted).sum())
        own, theirs = own + float(found.square().sum()), theirs + float(wanted.square().sum())
        largest = max(largest, float(error.abs().max())) if len(error) else largest
    count = math.prod(tensor.shape)
    rms = math.sqrt(squares / max(count - unlike, 1))
    totals: dict[str, Any] = {"count": count, "max": number(largest), "rms": number(rms)}
    if theirs:
        totals["relative"] = number(math.sqrt(squares / theirs))
    if theirs and own:
        totals["cosine"] = number(both / math.sqrt(theirs) / math.sqrt(own), 9)
    return totals | ({"unlike": unlike} if unlike else {})


def _all(tensor: Tensor) -> Iterator[Part]:
    """Yields the whole matrix in parts of about `AT_ONCE` numbers."""
    out, columns = matrix(tensor.shape)
    unit = tensor.dtype.unit(tensor.shape)
    width = min(columns, max(AT_ONCE // unit, 1) * unit)
    rows = max(AT_ONCE // max(width, 1), 1)
    for row in range(0, out if columns else 0, rows):
        for column in range(0, columns, width):
            yield range(row, min(row + rows, out)), range(column, min(column + width, columns))


def _difference(tensor: Tensor, expected: torch.Tensor, part: Part) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns stored - source of a part of the matrix, and both; 0 where they are equal or both NaN."""
    rows, columns = part
    found = stored_parts(tensor, [part])
    wanted = expected[rows.start : rows.stop : rows.step, columns.start : columns.stop].double()
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    return (found - wanted).masked_fill(same, 0.0), found, wanted
