"""Quantization errors: the values of a tensor compared with those of its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from glft_schema.describe.page.frame import number
from glft_schema.describe.page.samples import Floats, describe, sample, sample_parts
from glft_schema.errors import FormatError, TensorError
from glft_schema.storage.dtypes import FLOAT64, Array
from glft_schema.tensor_types.conversions import convert
from glft_schema.tensor_types.differences import NumberErrors
from glft_schema.tensor_types.payload_layout import matrix
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
    if tensor.type.bytes_only or "c" in (tensor.type.dtype.kind, stored.dtype.kind):
        return {"problem": "of a type whose numbers cannot be compared"}
    if stored.shape != tensor.shape:
        return {"problem": f"shape {list(stored.shape)} in the source, {list(tensor.shape)} in the file"}
    try:
        expected = stored.values().reshape(matrix(tensor.shape))
    except (TensorError, FormatError) as error:
        return {"problem": f"the source cannot be read: {error}"}
    parts = [expected[rows.start : rows.stop, across.start : across.stop] for rows, across in sample_parts(tensor, count)]
    if not parts:
        return _totals(tensor, expected)
    sampled = np.concatenate([convert(part, FLOAT64).reshape(-1) for part in parts])
    return {"sample": describe(_difference(sample(tensor, count), sampled))} | _totals(tensor, expected)


def _totals(tensor: Tensor, expected: Array) -> dict[str, Any]:
    errors, columns, start = NumberErrors(), expected.shape[1], 0
    for part in tensor.arrays(AT_ONCE):
        rows = part.reshape(-1, min(columns, part.size))
        errors.add(rows, expected.reshape(-1)[start : start + part.size].reshape(rows.shape))
        start += part.size
    totals: dict[str, Any] = {"count": errors.count, "max": number(errors.largest), "rms": number(errors.rmse)}
    if errors.reference_squares:
        totals["relative"] = number(errors.relative)
    if not math.isnan(errors.cosine):
        totals["cosine"] = number(errors.cosine, 9)
    return totals | ({"unlike": errors.unlike} if errors.unlike else {})


def _difference(stored: Floats, source: Floats) -> Floats:
    """Returns stored - source; 0 if both are NaN, or the same infinity."""
    same = (stored == source) | (np.isnan(stored) & np.isnan(source))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(same, 0.0, stored - source)
