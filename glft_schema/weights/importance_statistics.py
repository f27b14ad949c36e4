"""Statistics of an importance matrix, which show where a few columns dominate.

The formulas are those of ``llama-imatrix --show-statistics``, in float64. Source:
tools/imatrix/imatrix.cpp of llama.cpp, `compute_statistics` and `compute_cossim`, b6000 to b7000.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from glft_schema.display import Results, with_display
from glft_schema.formats.gguf_names import LAYER
from glft_schema.storage.dtypes import Array

INACTIVE = 1e-5  # mean squares up to this do not count as active


@with_display
class ColumnStatistics(NamedTuple):
    """Statistics of the mean squared activations of a matrix, over its n columns.

    Attributes:
        name: of the matrix.
        layer: the number after ``blk.`` in the name; None if there is none.
        n: the number of columns, over all experts with data.
        total, min, max, mean, std: of the mean squares.
        active: the share of columns above 1e-5.
        entropy: the entropy of the columns' shares of the total, in bits.
        normalized_entropy: the entropy divided by that of equal columns, log2(n); 0 for one column.
        z_score: the share of columns more than one standard deviation above the mean.
        cosine: the cosine similarity of the sums to those of the same matrix in the layer before;
            None if that matrix is missing or has another size, or if the sums of either are all 0.
    """

    name: str
    layer: int | None
    n: int
    total: float
    min: float
    max: float
    mean: float
    std: float
    active: float
    entropy: float
    normalized_entropy: float
    z_score: float
    cosine: float | None

    @property
    def tensor(self) -> str:
        """The part of the name before ``.weight``, such as ``attn_q``; otherwise the whole name."""
        parts = self.name.split(".")
        return parts[parts.index("weight") - 1] if "weight" in parts[1:] else self.name


class Columns(Protocol):
    """Sums [matrices, columns] and counts [matrices] of a matrix or a stack of them."""

    @property
    def sums(self) -> Array: ...

    @property
    def counts(self) -> Array: ...


def column_statistics(columns: Mapping[str, Columns]) -> list[ColumnStatistics]:
    """Returns the statistics of all matrices with data, sorted by `tensor`, then by total, largest
    first."""
    with np.errstate(all="ignore"):
        rows = [_statistics(name, columns) for name in columns if bool((columns[name].counts > 0).any())]
    return Results(sorted(rows, key=lambda row: (row.tensor, -row.total)), "tensor")


def _statistics(name: str, columns: Mapping[str, Columns]) -> ColumnStatistics:
    sums, counts = columns[name].sums, columns[name].counts
    used = counts > 0  # llama-imatrix divides by the count of an unused expert, and prints NaN
    means = (sums[used].astype(np.float64) / counts[used, None]).reshape(-1)
    n, total = means.size, float(means.sum())
    mean, std = total / n, float(means.std())
    shares = means[means > 0] / total if total > 0 else means[:0]
    entropy = -float(np.nansum(shares * np.log2(shares)))
    layer = LAYER.search(name)
    return ColumnStatistics(
        name,
        int(layer[1]) if layer else None,
        n,
        total,
        float(means.min()),
        float(means.max()),
        mean,
        std,
        float((np.abs(means) > INACTIVE).mean()),
        entropy,
        entropy / math.log2(n) if n > 1 else 0.0,
        float((means > mean + std).mean()) if std > 0 else 0.0,
        _cosine(sums, columns.get(LAYER.sub(_before, name, 1))) if layer else None,
    )


def _before(layer: re.Match[str]) -> str:
    return f"blk.{int(layer[1]) - 1}."


def _cosine(sums: Array, before: Columns | None) -> float | None:
    if before is None or before.sums.size != sums.size:
        return None
    one, other = (part.astype(np.float64).reshape(-1) for part in (sums, before.sums))
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / size if size else None
