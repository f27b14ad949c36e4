"""Searches for the scale of a group of weights, or its scale and minimum, shared by the encoders of
several types.

A scale determines codes, by division and rounding, and codes determine the best scale, by least
squares. There is no closed form for the best pair. So a few scales are tried: the codes of each
give a better scale, and the one with the smallest error is kept; see `trials`. Some searches then
change single codes, see `code_searches`.

All groups are searched at once. Weights are columns x [n, groups]: row i holds weight i of every
group, so that a sum over a group adds up rows in order, as C does; float32 sums depend on their
order. Numbers per group are [groups]. Counts [n, groups] weight the errors.

Source: ggml-quants.c of llama.cpp, whose functions (named in each search) the searches follow
operation by operation; the encoders that use the searches are checked against it bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from glft_schema.lazy import torch
from glft_schema.tensor_types.encoders.trials import by_error, by_fit, first_fit, fit_and_size, keep_better, tries
from glft_schema.tensor_types.engine.arithmetic import divided, exceeds, farthest, first_of_zeros, over, pick, root, total
from glft_schema.tensor_types.engine.steps import step

TINY = 1e-15  # groups whose weights are all smaller are stored as zeros, in searches without a minimum


def columns(weights: torch.Tensor, n: int) -> torch.Tensor:
    """Splits blocks into groups of `n`: [blocks, k n] -> [n, blocks k], always a copy."""
    return weights.reshape(-1, n).t().clone(memory_format=torch.contiguous_format)


def of_columns(codes: torch.Tensor, weights: int) -> torch.Tensor:
    """The inverse of `columns` for codes of eight bits: [n, groups] -> u8 [blocks, weights]."""
    return codes.to(torch.int8).view(torch.uint8).t().reshape(-1, weights)


def by_block(numbers: torch.Tensor, groups: int) -> torch.Tensor:
    """One number per group -> rows [groups of a block, blocks]."""
    return numbers.view(-1, groups).t().contiguous()


def mean_square(weights: torch.Tensor, row: int, factor: int = 1) -> torch.Tensor:
    """Returns factor * the mean of w^2 per row of `row` weights: [blocks, k row] -> [blocks k]."""
    return over(total(columns(weights, row).square_()) * factor, row)


def by_importance(weights: torch.Tensor, importance: torch.Tensor, n: int, row: int, factor: int = 1) -> torch.Tensor:
    """Returns the counts importance * sqrt(factor * the mean of w^2 in its row + w^2) of each
    weight w.

    Weights [blocks, k n] and an importance of as many numbers give columns [n, blocks k]. A row has
    `row` weights.
    """
    mean = mean_square(weights, row, factor).repeat_interleave(row // n)
    return root(columns(weights, n).square_().add_(mean)).mul_(columns(importance, n))


class Affine(NamedTuple):
    """A scale and a minimum for each group, [groups], and their codes: () -> int32 [n, groups]."""

    scale: torch.Tensor
    minimum: torch.Tensor
    codes: Callable[[], torch.Tensor]


def scale_and_minimum(x: torch.Tensor, counts: torch.Tensor, top: int, parts: torch.Tensor, absolute: bool = False) -> Affine:
    """Searches for the scale and the minimum of each group.

    Minimizes the sum over a group of ``count * error ** 2``, or of ``count * |error|`` if
    `absolute`. The first trial spans the range from the least weight, or 0, to the greatest. Then
    the range is divided into `parts`, a few more or fewer than `top`: that gives codes, whose best
    scale and minimum solve two linear equations. The minimum of the best trial so far is the origin
    of the range for the next one. A minimum is never above 0. Codes are 0 to `top`.

    Source: make_qkx2_quants and make_qkx3_quants.
    """
    minimum = first_of_zeros(x.amin(0, keepdim=True), x).squeeze(0).clamp_(max=0)
    high = x.amax(0).add_(0.0)  # 0, not -0, so that a range of zeros is 0, too
    sum_w, sum_x = total(counts), total(counts * x)
    least, scale, origin, inverse = _first_range(x, counts, minimum, high, top=top, absolute=absolute)
    best = least, scale, origin, inverse, minimum
    for part in parts:
        _try_range(x, counts, sum_w, sum_x, high, part, *best, top=top, absolute=absolute)
    return Affine(scale, minimum, lambda: _codes_from(x, origin, inverse, top).to(torch.int32))


def _codes_from(x: torch.Tensor, origin: torch.Tensor, inverse: torch.Tensor, top: int) -> torch.Tensor:
    """Returns float32 codes from 0 to `top`."""
    return (x - origin).mul_(inverse).round_().clamp_(0, top)


def _error(
    x: torch.Tensor, counts: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor, absolute: bool
) -> torch.Tensor:
    """Returns the error of each group, overwriting the codes."""
    wrong = codes.mul_(scale).add_(minimum).sub_(x)
    return total((wrong.abs_() if absolute else wrong.square_()).mul_(counts))


@step
def _first_range(
    x: torch.Tensor, counts: torch.Tensor, minimum: torch.Tensor, high: torch.Tensor, *, top: int, absolute: bool
) -> tuple[torch.Tensor, ...]:
    """Tries the range from the minimum to the greatest weight. Returns the error, the scale, the
    origin, and the inverse that gives codes.
    """
    inverse = divided(top, high - minimum)
    scale = 1 / inverse
    inverse = inverse.masked_fill_(inverse == math.inf, 0)  # a range too small to divide by: all codes are 0
    least = _error(x, counts, _codes_from(x, minimum, inverse, top), scale, minimum, absolute)
    return least, scale, minimum.clone(), inverse


@step
def _try_range(
    x: torch.Tensor,
    counts: torch.Tensor,
    sum_w: torch.Tensor,
    sum_x: torch.Tensor,
    high: torch.Tensor,
    part: torch.Tensor,
    least: torch.Tensor,
    scale: torch.Tensor,
    origin: torch.Tensor,
    inverse: torch.Tensor,
    minimum: torch.Tensor,
    *,
    top: int,
    absolute: bool,
) -> None:
    """Tries the range divided into `part` parts. A better trial replaces the last five tensors."""
    new_inverse = part / (high - minimum)
    codes = _codes_from(x, minimum, new_inverse, top)
    counted = counts * codes
    sum_l = total(counted)
    sum_xl, sum_l2 = total(counted * x), total(counted.mul_(codes))
    determinant = sum_w * sum_l2 - sum_l * sum_l
    new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
    new_minimum = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
    new_scale = pick(exceeds(new_minimum, 0), sum_xl / sum_l2, new_scale)
    new_minimum = new_minimum.clamp_(max=0)
    error = _error(x, counts, codes, new_scale, new_minimum, absolute)
    better, values = by_error(least, error, new_scale, minimum, new_inverse, new_minimum)
    keep_better((least, scale, origin, inverse, minimum), [(better & exceeds(determinant, 0), values)])


class Signed(NamedTuple):
    """A scale for each group, [groups], and its codes plus `top`: () -> int32 [n, groups].

    Both are 0 for a group of zeros.
    """

    scale: torch.Tensor
    codes: Callable[[], torch.Tensor]


def scale_alone(x: torch.Tensor, counts: torch.Tensor, top: int) -> Signed:
    """Searches for the scale of each group. Codes are -top to top - 1.

    The first trial gives the x farthest from zero the code -top, which has no positive counterpart;
    the others a little more or less than -top, by tenths.

    Source: make_qx_quants.
    """
    peak, zeros = peaks(x)
    first, *tenths = -tries(0, 0.1, (0, *range(-9, 0), *range(1, 10)), top)
    best = _first_scale(x, counts, first, peak, top=top)
    for number in tenths:
        _try_scale(x, counts, number, peak, *best, top=top)
    _, scale, inverse = best
    return Signed(scale.masked_fill_(zeros, 0), lambda: above_zero(_signed_codes(x, inverse, top), top, zeros))


def _signed_codes(x: torch.Tensor, inverse: torch.Tensor, top: int) -> torch.Tensor:
    """Returns float32 codes from -top to top - 1."""
    return (x * inverse).round_().clamp_(-top, top - 1)


@step
def _first_scale(
    x: torch.Tensor, counts: torch.Tensor, number: torch.Tensor, peak: torch.Tensor, *, top: int
) -> tuple[torch.Tensor, ...]:
    """Tries the scale that gives the peak the code `number`. Returns what it reduces the error by,
    the best scale for its codes, and its inverse.
    """
    inverse = number / peak
    return (*first_fit(*fit_and_size(x, counts, _signed_codes(x, inverse, top))), inverse)


@step
def _try_scale(
    x: torch.Tensor,
    counts: torch.Tensor,
    number: torch.Tensor,
    peak: torch.Tensor,
    best: torch.Tensor,
    scale: torch.Tensor,
    inverse: torch.Tensor,
    *,
    top: int,
) -> None:
    """Tries another number. A better trial replaces the last three tensors."""
    tried = number / peak
    keep_better((best, scale, inverse), [by_fit(best, *fit_and_size(x, counts, _signed_codes(x, tried, top)), tried)])


def scale_of_table(
    x: torch.Tensor, counts: torch.Tensor, values: Callable[[torch.Tensor], torch.Tensor], extreme: int
) -> torch.Tensor:
    """Searches for the scale of each group, whose weights are scale * value, with values from a
    table.

    As in `scale_alone`, the trials give the x farthest from zero the extreme value, or by whole
    numbers more or less. Returns the scales, 0 for groups of zeros.

    `values` maps numbers to the nearest values of the table and may overwrite its argument.
    `extreme` is the value farthest from zero, which is negative.

    Source: quantize_row_iq4_nl_impl.
    """
    peak, zeros = peaks(x)
    scaled = torch.empty_like(x)

    def sums(inverse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value = values(torch.mul(x, inverse, out=scaled))
        counted = counts * value
        return total(torch.mul(counted, x, out=scaled)), total(counted.mul_(value))

    inverses = (divided(extreme + number, peak) for number in range(-7, 8))
    best, scale = first_fit(*sums(1 / over(peak, -extreme)))
    keep_better((best, scale), (by_fit(best, *sums(inverse)) for inverse in inverses))
    return scale.masked_fill_(zeros, 0)


def peaks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the weight farthest from zero, 1 for groups of zeros, and the mask of these."""
    peak = farthest(x).squeeze(0)
    zeros = ~(peak.abs() >= TINY)
    return peak.masked_fill_(zeros, 1), zeros


def above_zero(codes: torch.Tensor, top: int, zeros: torch.Tensor) -> torch.Tensor:
    """Returns codes from -top on, [n, groups], as `Signed.codes`."""
    return codes.to(torch.int32).add_(top).masked_fill_(zeros, 0)
