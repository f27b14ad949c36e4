"""How the scale of a group of weights is found: searches that the encoders of several types share.

A group is stored as small integers, its codes, and a scale. Any scale gives codes, by division and rounding; and any codes
give the scale that fits them best, by least squares. What is best together cannot be computed, so it is searched for: from a
few scales codes are made, from these the scale that fits them, and the one that leaves the least error is kept. Some searches
go on from there, code by code: see `code_searches`.

All groups are searched at once. Weights come as columns [n, groups], x: row i holds weight i of every group, so that a sum over
groups adds up rows, one after another, as the reference adds numbers: sums of float32 depend on their order. What is one number
a group is [groups]. Counts, as many as there are weights, say how much the error of each counts.

Source: ggml-quants.c of llama.cpp, whose functions (each search names its own) these follow operation by operation; the
encoders that use them are checked against it bit by bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.arithmetic import exceeds, pick, root, total
from glft_schema.tensor_types.engine.bits import by_words

TINY = 1e-15  # a group whose weights are all smaller is taken for zeros, where there is no minimum


def columns(weights: torch.Tensor, n: int) -> torch.Tensor:
    """Cuts blocks into groups of `n`: [blocks, k n] -> [n, blocks k]."""
    return weights.reshape(-1, n).t().clone(memory_format=torch.contiguous_format)  # a copy, also of one group


def of_columns(codes: torch.Tensor, weights: int) -> torch.Tensor:
    """The inverse, for codes of at most eight bits: [n, groups] -> u8 [blocks, weights]."""
    return codes.to(torch.int8).view(torch.uint8).t().reshape(-1, weights)


def unless_zero(scale: torch.Tensor, codes: torch.Tensor, found: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Takes the codes that a search has found, int32, where the scale has become 0 since, so that it gives no codes."""
    zero = scale == 0
    if not by_words(scale) or bool(zero.any()):
        pick(zero.to(torch.int32).neg_(), found(), codes)
    return codes


def divided(number: float, divisor: torch.Tensor) -> torch.Tensor:
    """Returns a number over each divisor, correctly rounded: torch would multiply by the inverse."""
    return torch.full_like(divisor, number).div_(divisor)


def over(numbers: torch.Tensor, divisor: float) -> torch.Tensor:
    """Returns numbers over a divisor, correctly rounded: a GPU would multiply by its inverse."""
    return numbers / torch.full_like(numbers, divisor)


def tries(first: float, delta: float, numbers: Iterable[int], top: float) -> list[float]:
    """Returns first + delta * number + top for each number, rounded to float32 each time: what is tried for top."""
    found: list[float] = (torch.tensor([*numbers], dtype=torch.float32, device="cpu") * delta + first + top).tolist()
    return found


def farthest(numbers: torch.Tensor, axis: int = 0) -> torch.Tensor:
    """Returns, with its sign, the first of the numbers along an axis, which is left 1 long, that is farthest from zero."""
    if not by_words(numbers):
        return numbers.gather(axis, numbers.abs().argmax(axis, keepdim=True))
    low, high = numbers.amin(axis, keepdim=True), numbers.amax(axis, keepdim=True)
    found = torch.maximum(high, -low).copysign_(high + low)
    tied = (high == -low).squeeze(axis)
    if bool(tied.any()):  # then the first of the two decides
        some = numbers[tied] if axis else numbers[:, tied]
        firsts = some.gather(axis, some.abs().argmax(axis, keepdim=True))
        if axis:
            found[tied] = firsts
        else:
            found[:, tied] = firsts
    return found


def mean_square(weights: torch.Tensor, row: int, factor: int = 1) -> torch.Tensor:
    """Returns factor * the mean of w^2 in each row of so many weights: [blocks, k row] -> [blocks k]."""
    return over(total(columns(weights, row).square_()) * factor, row)


def by_importance(weights: torch.Tensor, importance: torch.Tensor, n: int, row: int, factor: int = 1) -> torch.Tensor:
    """Returns how much the error of a weight w counts: importance * sqrt(factor * the mean of w^2 in its row + w^2).

    Args:
        weights: [blocks, k n].
        importance: of as many numbers in the same order, of any shape.
        n: weights of a group.
        row: how many weights the mean is taken of.
        factor: of the mean.

    Returns:
        Columns [n, blocks k].
    """
    mean = mean_square(weights, row, factor).repeat_interleave(row // n)
    return root(columns(weights, n).square_().add_(mean)).mul_(columns(importance, n))


class Fit(NamedTuple):
    """A scale and a minimum for each group, [groups].

    Attributes:
        scale: to multiply codes by.
        minimum: what is added; at most 0.
        codes: () -> the codes that they fit, int32 [n, groups].
    """

    scale: torch.Tensor
    minimum: torch.Tensor
    codes: Callable[[], torch.Tensor]


def scale_and_minimum(x: torch.Tensor, counts: torch.Tensor, top: int, parts: Sequence[float], absolute: bool = False) -> Fit:
    """Searches, for each group, the scale and the minimum that bring ``scale * code + minimum`` nearest to its weights x.

    What is made small is the sum over a group of ``count * error ** 2``, or of ``count * |error|`` where it is `absolute`.
    Codes are 0 to `top`. The first guess spans the range from the least weight, or 0, to the greatest. Then the range is cut
    into a few more or fewer parts: that gives codes, and for given codes the best scale and minimum solve two linear equations.
    Each pair that leaves less error than all before is kept, and its minimum is where the range begins from then on. A minimum
    is never above 0.

    Args:
        x: [n, groups].
        counts: [n, groups].
        top: the largest code.
        parts: into how many parts each trial cuts the range.
        absolute: whether errors count as they are, not squared.

    Source: make_qkx2_quants and make_qkx3_quants.
    """
    minimum, high = x.amin(0).clamp_(max=0), x.amax(0)
    sum_w, sum_x = total(counts), total(counts * x)
    codes, product = torch.empty_like(x), torch.empty_like(x)

    def encode(origin: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        return torch.sub(x, origin, out=codes).mul_(inverse).round_().clamp_(0, top)

    def error(scale: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
        wrong = torch.mul(codes, scale, out=product).add_(minimum).sub_(x)
        return total((wrong.abs_() if absolute else wrong.square_()).mul_(counts))

    origin, inverse = minimum.clone(), divided(top, high - minimum)
    scale = 1 / inverse
    inverse.masked_fill_(inverse == math.inf, 0)  # a range too small to divide by: all codes are 0
    encode(origin, inverse)
    best = error(scale, minimum)
    for part in parts:
        trial = divided(part, high - minimum)
        encode(minimum, trial)
        counted = torch.mul(counts, codes, out=product)
        sum_l = total(counted)
        sum_xl, sum_l2 = total(counted * x), total(counted.mul_(codes))
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_minimum = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        pick(exceeds(new_minimum, 0), sum_xl / sum_l2, new_scale)
        new = error(new_scale, new_minimum.clamp_(max=0))
        better = exceeds(best, new).bitwise_and_(exceeds(determinant, 0))
        for found, kept in ((new, best), (new_scale, scale), (minimum, origin), (trial, inverse), (new_minimum, minimum)):
            pick(better, found, kept)
    return Fit(scale, minimum, lambda: encode(origin, inverse).to(torch.int32))


class Found(NamedTuple):
    """A scale alone for each group, [groups].

    Attributes:
        scale: to multiply codes by; 0 for a group of zeros.
        codes: () -> the codes that it fits, and the largest of them, `top`, added: int32 [n, groups]; 0 for a group of zeros.
    """

    scale: torch.Tensor
    codes: Callable[[], torch.Tensor]


def scale_alone(x: torch.Tensor, counts: torch.Tensor, top: int) -> Found:
    """Searches, for each group, the scale that brings ``scale * code`` nearest to its weights x.

    What is made small is the sum of ``count * error ** 2``. Codes are -top to top - 1. First the x that is farthest from zero
    gets the code -top, which has no counterpart; then a little more or less than -top, by tenths.

    Args:
        x: [n, groups].
        counts: [n, groups].
        top: the largest code and 1.

    Source: make_qx_quants.
    """
    peak, zeros = peaks(x)
    products, codes, product = counts * x, torch.empty_like(x), torch.empty_like(x)

    def encode(inverse: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, inverse, out=codes).round_().clamp_(-top, top - 1)

    def sums(inverse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        encode(inverse)
        sum_xl = total(torch.mul(products, codes, out=product))
        return sum_xl, total(torch.mul(counts, codes, out=product).mul_(codes))

    tenths = tries(0, 0.1, (0, *range(-9, 0), *range(1, 10)), top)
    scale, inverse = _best(sums, (divided(-number, peak) for number in tenths))
    return Found(scale.masked_fill_(zeros, 0), lambda: above_zero(encode(inverse), top, zeros))


def scale_of_table(
    x: torch.Tensor, counts: torch.Tensor, values: Callable[[torch.Tensor], torch.Tensor], extreme: int
) -> torch.Tensor:
    """Searches, for each group, the scale that brings ``scale * value`` nearest to its weights x, of a table's values.

    It goes as in `scale_alone`, by whole numbers more or less than the value that is farthest from zero.

    Args:
        x: [n, groups].
        counts: [n, groups].
        values: numbers -> the value of the table that is nearest to each; may write over what it is given.
        extreme: the value farthest from zero, which is negative.

    Returns:
        The scale of each group, 0 for a group of zeros.

    Source: quantize_row_iq4_nl_impl.
    """
    peak, zeros = peaks(x)
    scaled = torch.empty_like(x)

    def sums(inverse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value = values(torch.mul(x, inverse, out=scaled))
        counted = counts * value
        return total(torch.mul(counted, x, out=scaled)), total(counted.mul_(value))

    trials = (divided(extreme + number, peak) for number in range(-7, 8))
    scale, _ = _best(sums, itertools.chain([1 / over(peak, -extreme)], trials))
    return scale.masked_fill_(zeros, 0)


def peaks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the weight of each group that is farthest from zero, 1 for groups of zeros; and which are such: [groups]."""
    peak = farthest(x).squeeze(0)
    zeros = ~(peak.abs() >= TINY)
    return peak.masked_fill_(zeros, 1), zeros


def above_zero(codes: torch.Tensor, top: int, zeros: torch.Tensor) -> torch.Tensor:
    """Returns codes from -top on, [n, groups], as `Found` gives them."""
    return codes.to(torch.int32).add_(top).masked_fill_(zeros, 0)


# The inverse of a scale -> the sums of count * x * code and of count * code^2, of the codes that it gives: [groups] each.
Sums = Callable[["torch.Tensor"], tuple["torch.Tensor", "torch.Tensor"]]


def _best(sums: Sums, trials: Iterable[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Searches the scale that leaves the least of ``sum(count * (x - scale * code) ** 2)``, of the codes that trials give.

    For given codes that is sum_xl / sum_l2, of the two `sums`, and it takes sum_xl^2 / sum_l2 off the error that no scale at
    all leaves. So the largest of these wins.

    Returns:
        The scale, and of the trials, which are inverses of scales, the one that gave the codes.
    """
    first, *others = trials
    sum_xl, sum_l2 = sums(first)
    inverse, scale = first, (sum_xl / sum_l2).masked_fill_(sum_l2 == 0, 0)
    best = scale * sum_xl
    for trial in others:
        sum_xl, sum_l2 = sums(trial)
        better = exceeds(sum_xl * sum_xl, best * sum_l2).bitwise_and_(exceeds(sum_l2, 0))
        pick(better, sum_xl / sum_l2, scale)
        pick(better, scale * sum_xl, best)
        pick(better, trial, inverse)
    return scale, inverse
