"""Error measures of numbers against a reference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from glft_schema.display import with_display
from glft_schema.storage.dtypes import Array
from glft_schema.storage.torch_tensors import array_of
from glft_schema.tensor_types.chunks import index_of, row_chunks
from glft_schema.tensor_types.conversions import widen


def max_error(found: Any, expected: Any) -> float:
    """Returns max |found - expected| of arrays or torch tensors. Equal infinities, or two NaN,
    differ by 0."""
    found, expected = widen(array_of(found)), widen(array_of(expected))
    if not found.size:
        return 0.0
    narrow = all(array.dtype.kind == "f" and array.itemsize <= 4 for array in (found, expected))
    with np.errstate(all="ignore"):
        for dtype in ("float32", "float64")[not narrow :]:  # float64 holds every number except integers beyond 2^53
            one, other = found.astype(dtype, copy=False), expected.astype(dtype, copy=False)
            errors = one - other
            low, high = float(errors.min()), float(errors.max())  # NaN if any error is
            if math.isfinite(low) and math.isfinite(high):
                return max(0.0, -low, high)
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        return float(np.where(same, 0.0, np.nan_to_num(np.abs(errors), nan=np.inf, posinf=np.inf)).max())


@with_display
@dataclass
class NumberErrors:
    """Sums over pairs of a number and its reference, and the error measures that follow from them.

    Equal numbers, two NaN, and equal infinities have no error. Other pairs with a number that is
    not finite are counted as `unlike`; no other measure includes them.

    Attributes:
        count: number of pairs.
        unlike: number of pairs with different numbers, of which one is not finite.
        squares: sum of (number - reference)².
        own_squares: sum of number².
        reference_squares: sum of reference².
        products: sum of number * reference.
        largest: max |number - reference|.
        worst_row: index, in all dims except the last, of the row with the largest relative error;
            None if no row differs.
        worst_row_error: the relative error of that row.
    """

    count: int = 0
    unlike: int = 0
    squares: float = 0.0
    own_squares: float = 0.0
    reference_squares: float = 0.0
    products: float = 0.0
    largest: float = 0.0
    worst_row: tuple[int, ...] | None = None
    worst_row_error: float = 0.0

    def _display(self) -> Iterator[str]:
        yield f"SNR {self.snr:.1f} dB, relative error {self.relative:.3g}, largest {self.largest:.3g}"

    @property
    def rmse(self) -> float:
        """The root of the mean squared error."""
        return math.sqrt(self.squares / max(self.count - self.unlike, 1))

    @property
    def relative(self) -> float:
        """The root mean square of the errors, relative to the references."""
        if not self.reference_squares:
            return math.inf if self.squares else 0.0
        return math.sqrt(self.squares / self.reference_squares)

    @property
    def snr(self) -> float:
        """The signal-to-noise ratio in dB; infinite without errors, -infinite if all are unlike."""
        if not self.squares or not self.reference_squares:
            return -math.inf if self.squares or self.unlike else math.inf
        return 10 * (math.log10(self.reference_squares) - math.log10(self.squares))

    @property
    def cosine(self) -> float:
        """The cosine similarity of all numbers with their references; NaN if one side is all 0."""
        norms = math.sqrt(self.own_squares) * math.sqrt(self.reference_squares)
        return self.products / norms if norms else math.nan

    @property
    def is_none(self) -> bool:
        """Whether all numbers equal their references."""
        return not self.squares and not self.largest and not self.unlike

    def add(self, numbers: Any, reference: Any) -> tuple[Array, Array]:
        """Includes pairs [rows, columns], of arrays or torch tensors.

        Returns:
            The sums of the squared errors and of the squared references of each row.
        """
        with np.errstate(all="ignore"):
            own, reference = (widen(array_of(part)).astype(np.float64) for part in (numbers, reference))
            error = own - reference
            if not math.isfinite(float(error.sum())):
                same = (own == reference) | (np.isnan(own) & np.isnan(reference))
                alike = same | np.isfinite(error)
                self.unlike += error.size - int(np.count_nonzero(alike))
                counted = alike & np.isfinite(own)
                error, own, reference = (np.where(counted, part, 0.0) for part in (error, own, reference))
            self.largest = max(self.largest, float(error.max()), -float(error.min())) if error.size else self.largest
            self.count += error.size
            self.own_squares += float(np.vdot(own, own))
            self.products += float(np.vdot(own, reference))
            squares, references = np.einsum("ij,ij->i", error, error), np.einsum("ij,ij->i", reference, reference)
            self.squares += float(squares.sum())
            self.reference_squares += float(references.sum())
        return squares, references

    def include(self, other: NumberErrors) -> None:
        """Includes the pairs of `other`, except for its worst row."""
        for name in ("count", "unlike", "squares", "own_squares", "reference_squares", "products"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.largest = max(self.largest, other.largest)


def errors_of(numbers: Any, reference: Any) -> NumberErrors:
    """Returns the errors of an array or a torch tensor against a reference of the same shape."""
    numbers, reference = array_of(numbers), array_of(reference)
    errors, shape = NumberErrors(), numbers.shape or (1,)
    rows, columns = math.prod(shape[:-1]), shape[-1]
    own, expected = numbers.reshape(rows, columns), reference.reshape(rows, columns)
    for part in row_chunks(rows, columns):
        squares, references = errors.add(own[part], expected[part])
        with np.errstate(all="ignore"):
            relative = np.nan_to_num(np.sqrt(squares / references), nan=0.0, posinf=np.inf)  # 0 / 0 is no error
        row = int(relative.argmax())
        if float(relative[row]) > errors.worst_row_error:
            errors.worst_row_error = float(relative[row])
            errors.worst_row = index_of(part.start + row, shape[:-1])
    return errors
