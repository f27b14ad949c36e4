"""Quantizations of one model, ranked by their distance from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from glft_schema.checks.compare import Comparison, size_of
from glft_schema.display import Listing, Part, format_count, percent, size_text, with_display
from glft_schema.errors import safe
from glft_schema.models.predictions import Predictions


@with_display
@dataclass(frozen=True)
class Ranking:
    """Quantizations of one model, the best first.

    They are ordered by divergence, those whose model did not run by signal-to-noise ratio after the
    others. Files with tensors that cannot be compared come last.

    Attributes:
        comparisons: of the model with each quantization, by its name.
        predictions: the model's beside those of each quantization that ran, by the same names.
    """

    comparisons: Mapping[str, Comparison]
    predictions: Mapping[str, Predictions] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.comparisons, key=self._order))

    def snr(self, name: str) -> float:
        """Returns the signal-to-noise ratio of a quantization in dB, over all tensors that differ
        from the model's in at least one of the quantizations; NaN if no tensor can be compared."""
        comparison = self.comparisons[name]
        if comparison.is_apart:
            return math.nan
        return replace(comparison.errors, reference_squares=math.fsum(self._squares.values())).snr

    def remark(self, name: str) -> str:
        """Returns why a file may be no quantization of the model: tensors without a counterpart or
        with values that cannot be compared, other weights, or no error. Otherwise an empty text."""
        comparison = self.comparisons[name]
        if not_compared := comparison.not_compared:
            return "another model" if comparison.is_apart else f"{format_count(not_compared, 'tensor')} not compared"
        (_, before), (_, after) = (size_of(versions) for versions in comparison.versions)
        if not comparison.may_be_same:
            return "different weights"
        equal = "the original's values" if comparison.errors.is_none else ""
        return "more bits per weight than the original" if after > before else equal

    def measures(self, name: str) -> dict[str, Any]:
        """Returns the bytes of the tensors, bits per weight, ratio and remark, for JSON."""
        nbytes, bits = size_of(self.comparisons[name].versions[1])
        snr = ratio if math.isfinite(ratio := self.snr(name)) else None
        return {"bytes": nbytes, "bits_per_weight": bits, "snr": snr, "remark": self.remark(name)}

    def rows(self) -> list[tuple[str, ...]]:
        """Returns a header and a row for each quantization."""
        heads = ["file", "weights", "bits per weight", "SNR"]
        heads += ["perplexity", "divergence", "largest", "same top token"] if self.predictions else []
        remarks = {name: self.remark(name) for name in self}
        rows = [tuple([*heads, "remark"] if any(remarks.values()) else heads)]
        for name, remark in remarks.items():
            nbytes, bits = size_of(self.comparisons[name].versions[1])
            row = [safe(name), size_text(nbytes), f"{bits:.2f}", "" if math.isnan(snr := self.snr(name)) else f"{snr:.1f} dB"]
            if found := self.predictions.get(name):
                measures = f"{found.mean_divergence:.5f}", f"{found.max_divergence:.3f}", percent(found.same_top)
                row += [f"{found.perplexity_b:.4f}", *measures]
            row += [""] * (len(heads) - len(row)) + [remark]
            rows.append(tuple(row[: len(rows[0])]))
        return rows

    @property
    def differing(self) -> int:
        """Number of tensors that the ratios cover."""
        return len(self._squares)

    def _display(self) -> Iterator[Part]:
        head, *rows = self.rows()
        yield f"{format_count(rows, 'quantization')}, the best first"
        yield Listing("quantizations", head, rows, right=len(head) - 1)

    @cached_property
    def _squares(self) -> dict[str, float]:
        """The sum of the squared weights of each of the model's tensors that differ somewhere."""
        squares: dict[str, float] = {}
        for comparison in self.comparisons.values():
            for one in comparison.tensors:
                if one.before and one.errors and not one.errors.is_none:
                    squares[one.before.name] = max(one.errors.reference_squares, squares.get(one.before.name, 0.0))
        return squares

    def _order(self, name: str) -> tuple[int, bool, float]:
        found = self.predictions.get(name)
        return self.comparisons[name].not_compared, found is None, found.mean_divergence if found else -self.snr(name)
