"""Quantization errors: the values of a tensor compared with those of its source."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from glft_schema.describe.page.frame import number
from glft_schema.describe.page.samples import Floats, Part, describe, sample_parts, stored_parts
from glft_schema.errors import FormatError, TensorError
from glft_schema.storage.dtypes import FLOAT64, Array
from glft_schema.tensor_types.engine.chunks import matrix
from glft_schema.tensor_types.engine.conversions import convert
from glft_schema.tensor_types.engine.differences import NumberErrors
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.tensors.tensor import Tensor

AT_ONCE = 1 << 22  # numbers compared in one step


def errors(tensor: Tensor, source: Mapping[str, StoredTensor], count: int) -> dict[str, Any]:
    """Returns the errors of a tensor against its source, or why they cannot be computed.

    ``rms`` and ``max`` measure stored - source; ``relative`` is ``rms`` over the rms of the source.
    Equal numbers, including NaNs and infinities, have no error. Unequal pairs with a number that is
    not finite are only counted, as ``unlike``. The histogram of errors uses the same sample as the
    tensor's own histogram.

    Args:
        tensor: of the file.
        source: the tensors that the file was made from, by name.
        count: the size of the sample, about.
    """
    if tensor.name not in source:
        return {"problem": "not in the source"}
    stored = source[tensor.name]
    if tensor.type.bytes_only or stored.dtype.kind == "c":
        return {"problem": "of a type whose numbers cannot be compared"}
    if stored.shape != tensor.shape:
        return {"problem": f"shape {list(stored.shape)} in the source, {list(tensor.shape)} in the file"}
    try:
        expected = stored.values().reshape(matrix(tensor.shape))
    except (TensorError, FormatError) as error:
        return {"problem": f"the source cannot be read: {error}"}
    sampled = [_difference(tensor, expected, part).reshape(-1) for part in sample_parts(tensor, count)]
    histogram = {"sample": describe(np.concatenate(sampled))} if sampled else {}
    return histogram | _totals(tensor, expected)


def _totals(tensor: Tensor, expected: Array) -> dict[str, Any]:
    errors = NumberErrors()
    for part in _all(tensor):
        errors.add(stored_parts(tensor, [part]), _cut(expected, part))
    totals: dict[str, Any] = {"count": errors.count, "max": number(errors.largest), "rms": number(errors.rmse)}
    if errors.reference_squares:
        totals["relative"] = number(errors.relative)
    if not math.isnan(errors.cosine):
        totals["cosine"] = number(errors.cosine, 9)
    return totals | ({"unlike": errors.unlike} if errors.unlike else {})


def _all(tensor: Tensor) -> Iterator[Part]:
    """Yields the whole matrix in parts of about `AT_ONCE` numbers."""
    out, columns = matrix(tensor.shape)
    unit = tensor.type.unit(tensor.shape)
    width = min(columns, max(AT_ONCE // unit, 1) * unit)
    rows = max(AT_ONCE // max(width, 1), 1)
    for row in range(0, out if columns else 0, rows):
        for column in range(0, columns, width):
            yield range(row, min(row + rows, out)), range(column, min(column + width, columns))


def _difference(tensor: Tensor, expected: Array, part: Part) -> Floats:
    """Returns stored - source for a part; 0 if both are NaN, or the same infinity."""
    stored, source = stored_parts(tensor, [part]), convert(_cut(expected, part), FLOAT64)
    same = (stored == source) | (np.isnan(stored) & np.isnan(source))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(same, 0.0, stored - source)


def _cut(matrix: Array, part: Part) -> Array:
    rows, columns = part
    return matrix[rows.start : rows.stop : rows.step, columns.start : columns.stop]
