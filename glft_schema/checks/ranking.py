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
        from the model's in at least one of the quantizations: one signal for all."""
        return replace(self.comparisons[name].errors, reference_squares=self._signal).snr

    def not_compared(self, name: str) -> int:
        """Returns the number of tensors that only one side has, or whose values cannot all be
        compared."""
        tensors = self.comparisons[name].tensors
        return sum(not (one.before and one.after) or bool(one.problem or (one.errors and one.errors.unlike)) for one in tensors)

    def measures(self, name: str) -> dict[str, Any]:
        """Returns bytes, bits per weight, ratio and tensors not compared, for JSON."""
        nbytes, bits = size_of(one.after for one in self.comparisons[name].tensors)
        snr = ratio if math.isfinite(ratio := self.snr(name)) else None
        return {"bytes": nbytes, "bits_per_weight": bits, "snr": snr, "not_compared": self.not_compared(name)}

    def rows(self) -> list[tuple[str, ...]]:
        """Returns a header and a row for each quantization."""
        heads = ["file", "size", "bits per weight", "SNR"]
        heads += ["perplexity", "divergence", "largest", "same top token"] if self.predictions else []
        are_apart = any(map(self.not_compared, self.comparisons))
        rows = [tuple([*heads, "not compared"] if are_apart else heads)]
        for name in self:
            nbytes, bits = size_of(one.after for one in self.comparisons[name].tensors)
            row = [safe(name), size_text(nbytes), f"{bits:.2f}", f"{self.snr(name):.1f} dB"]
            if found := self.predictions.get(name):
                measures = f"{found.mean_divergence:.5f}", f"{found.max_divergence:.3f}", percent(found.same_top)
                row += [f"{found.perplexity_b:.4f}", *measures]
            row += [""] * (len(heads) - len(row))
            rows.append(tuple([*row, format_count(self.not_compared(name), "tensor")] if are_apart else row))
        return rows

    def _display(self) -> Iterator[Part]:
        head, *rows = self.rows()
        yield f"{format_count(rows, 'quantization')}, the best first"
        yield Listing("quantizations", head, rows, right=len(head) - 1)

    @cached_property
    def _signal(self) -> float:
        """The sum of the squared weights of the tensors that differ in any quantization."""
        squares: dict[str, float] = {}
        for comparison in self.comparisons.values():
            for one in comparison.tensors:
                if one.before and one.errors:
                    squares[one.before.name] = max(one.errors.reference_squares, squares.get(one.before.name, 0.0))
        return math.fsum(squares.values())

    def _order(self, name: str) -> tuple[int, bool, float]:
        found = self.predictions.get(name)
        return self.not_compared(name), found is None, found.mean_divergence if found else -self.snr(name)
