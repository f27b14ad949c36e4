"""The loop of every search: tries scales or codes in turn, and keeps the best trial of each group.

A group of weights x is stored as small integers, its codes, and a scale. What a search minimizes is
the sum of ``count * (x - scale * code) ** 2`` over the group, where the counts weight the errors. C
keeps a running best with rounded comparisons. So does `keep_better`, for all groups at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.arithmetic import exceeds, pick, total

# A trial: the mask of the groups in which it is the best so far, and the values to keep there.
Trial = tuple["torch.Tensor", Sequence["torch.Tensor"]]


def keep_better(best: Sequence[torch.Tensor], trials: Iterable[Trial]) -> None:
    """Replaces values in place, [..., groups] each, by those of each better trial in turn.

    Trials may be lazy: each is evaluated after the ones before it have replaced the values.
    """
    for better, values in trials:
        for value, kept in zip(values, best, strict=True):
            pick(better, value, kept)


def by_error(least: torch.Tensor, error: torch.Tensor, *values: torch.Tensor) -> Trial:
    """Returns a trial that is better if its error is less, which is its first value."""
    return exceeds(least, error), (error, *values)


def by_fit(best: torch.Tensor, fit: torch.Tensor, size: torch.Tensor, *values: torch.Tensor) -> Trial:
    """Returns a trial of codes, for which the best scale is known by least squares: fit / size.

    That scale reduces the error by fit ** 2 / size, of which `best` is the largest so far. The
    values of the trial are fit ** 2 / size, the scale, and `values`.

    Args:
        best: [groups].
        fit: the sum of count * x * code of each group.
        size: the sum of count * code ** 2 of each group.
        values: more values to keep, [..., groups] each.
    """
    scale, gain = fit / size, (fit * fit).sub_(best * size)
    return exceeds(torch.minimum(gain, size, out=gain), 0), (scale * fit, scale, *values)  # one comparison instead of two


def fit_and_size(x: torch.Tensor, counts: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the sums of count * x * code and of count * code ** 2."""
    return total((counts * x).mul_(codes)), total((counts * codes).mul_(codes))


def first_fit(fit: torch.Tensor, size: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what `by_fit` compares later trials with, and the scale, of the first trial."""
    scale = (fit / size).masked_fill_(size == 0, 0)
    return scale * fit, scale


def tries(first: float, delta: float, numbers: Iterable[int], top: float) -> torch.Tensor:
    """Returns first + delta * number + top for each number, rounded to float32 at each step."""
    return torch.tensor([*numbers], dtype=torch.float32, device="cpu") * delta + first + top
