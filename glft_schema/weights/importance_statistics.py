"""Statistics of an importance matrix: which matrices have a few columns that matter most.

The formulas are those of ``llama-imatrix --show-statistics``, in float64. Source:
tools/imatrix/imatrix.cpp of llama.cpp, `compute_statistics` and `compute_cossim`, b6000 to b7000.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from glft_schema.display import Results, with_display
from glft_schema.lazy import torch

INACTIVE = 1e-5  # mean squares up to this do not count as active
LAYER = re.compile(r"blk\.([0-9]{1,9})\.")


@with_display
class ColumnStatistics(NamedTuple):
    """Statistics of the mean squared activations of a matrix, over its n columns.

    Attributes:
        name: of the matrix.
        layer: the number after ``blk.`` in the name; None without one.
        n: the number of columns, over all experts with data.
        total, min, max, mean, std: of the mean squares.
        active: the share of columns above 1e-5.
        entropy: of the columns' shares of the total, in bits.
        normalized_entropy: the entropy divided by that of equal columns, log2(n); 0 for one column.
        z_score: the share of columns more than one standard deviation above the mean.
        cosine: the cosine of the sums with those of the same matrix one layer before; None without
            that matrix.
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
    def sums(self) -> torch.Tensor: ...

    @property
    def counts(self) -> torch.Tensor: ...


def column_statistics(columns: Mapping[str, Columns]) -> list[ColumnStatistics]:
    """Returns the statistics of all matrices with data, sorted by `tensor`, then by total, largest
    first."""
    rows = [_statistics(name, columns) for name in columns if bool((columns[name].counts > 0).any())]
    return Results(sorted(rows, key=lambda row: (row.tensor, -row.total)), "tensor")


def _statistics(name: str, columns: Mapping[str, Columns]) -> ColumnStatistics:
    sums, counts = columns[name].sums, columns[name].counts
    used = counts > 0  # llama-imatrix divides by the count of an unused expert, and prints NaN
    means = (sums[used].double() / counts[used].unsqueeze(1)).flatten()
    n, total = means.numel(), float(means.sum())
    mean, std = total / n, float(means.std(correction=0))
    shares = means / total if total > 0 else means.new_zeros(0)
    entropy = -float((shares * shares.log2()).nansum())  # nan: 0 * log2(0)
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
        float((means.abs() > INACTIVE).double().mean()),
        entropy,
        entropy / math.log2(n) if n > 1 else 0.0,
        float((means > mean + std).double().mean()) if std > 0 else 0.0,
        _cosine(sums, columns.get(LAYER.sub(_before, name, 1))) if layer else None,
    )


def _before(layer: re.Match[str]) -> str:
    return f"blk.{int(layer[1]) - 1}."


def _cosine(sums: torch.Tensor, before: Columns | None) -> float | None:
    if before is None or before.sums.numel() != sums.numel():
        return None
    one, other = sums.double().flatten(), before.sums.double().flatten()
    size = float(one.norm() * other.norm())
    return float(one @ other) / size if size else None
