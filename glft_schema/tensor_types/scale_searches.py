"""How the scale of a group of weights is found: searches that the encoders of several types share.

A group is stored as small integers, its codes, and a scale. Any scale gives codes, by division and rounding; and any codes
give the scale that fits them best, by least squares. What is best together cannot be computed, so it is searched for: from a
few scales codes are made, from these the scale that fits them, and the one that leaves the least error is kept.

All groups are searched at once. Weights come as columns [n, groups]: row i holds weight i of every group, so that a sum over
groups adds up rows, one after another, as the reference adds numbers: sums of float32 depend on their order. What is one number
a group is [groups].

Source: the functions make_qx_quants, make_q3_quants, make_qkx3_quants and make_qp_quants in ggml-quants.c of llama.cpp, which
these follow operation by operation; the encoders that use them are checked against it bit by bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from glft_schema.lazy import torch
from glft_schema.tensor_types.bits import by_words
from glft_schema.tensor_types.c_arithmetic import exceeds, nearest, pick, root, total

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


def steps(first: float, delta: float, numbers: Iterable[int], top: float) -> list[float]:
    """Returns first + delta * number + top for each number, rounded to float32 each time."""
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
    mean = over(total(columns(weights, row).square_()) * factor, row)
    return root(columns(weights, n).square_().add_(mean.repeat_interleave(row // n))).mul_(columns(importance, n))


class Fit(NamedTuple):
    """A scale and a minimum for each group, [groups].

    Attributes:
        scale: to multiply codes by.
        least: what is added; at most 0.
        codes: () -> the codes that they fit, int32 [n, groups].
    """

    scale: torch.Tensor
    least: torch.Tensor
    codes: Callable[[], torch.Tensor]


def scale_and_minimum(x: torch.Tensor, weights: torch.Tensor, top: int, parts: Sequence[float], absolute: bool = False) -> Fit:
    """Searches, for each group, the scale and the minimum that bring ``scale * code + minimum`` nearest to its weights x.

    What is made small is the sum over a group of ``weight * error ** 2``, or of ``weight * |error|`` where it is `absolute`.
    Codes are 0 to `top`. The first guess spans the range from the least weight, or 0, to the greatest. Then the range is cut
    into a few more or fewer parts: that gives codes, and for given codes the best scale and minimum solve two linear equations.
    Each pair that leaves less error than all before is kept, and its minimum is where the range begins from then on. A minimum
    is never above 0.

    Args:
        x: [n, groups].
        weights: how much the error of each x counts.
        top: the largest code.
        parts: into how many parts each trial cuts the range.
        absolute: whether errors count as they are, not squared.
    """
    least, high = x.amin(0).clamp_(max=0), x.amax(0)
    sum_w, sum_x = total(weights), total(weights * x)
    codes, product = torch.empty_like(x), torch.empty_like(x)

    def encode(origin: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        return torch.sub(x, origin, out=codes).mul_(inverse).round_().clamp_(0, top)

    def error(scale: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
        wrong = torch.mul(codes, scale, out=product).add_(least).sub_(x)
        return total((wrong.abs_() if absolute else wrong.square_()).mul_(weights))

    origin, inverse = least.clone(), divided(top, high - least)
    scale = 1 / inverse
    inverse.masked_fill_(inverse == math.inf, 0)  # a range too small to divide by: all codes are 0
    encode(origin, inverse)
    best = error(scale, least)
    for part in parts:
        trial = divided(part, high - least)
        encode(least, trial)
        weighted = torch.mul(weights, codes, out=product)
        sum_l = total(weighted)
        sum_xl, sum_l2 = total(weighted * x), total(weighted.mul_(codes))
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_least = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        pick(exceeds(new_least, 0), sum_xl / sum_l2, new_scale)
        new = error(new_scale, new_least.clamp_(max=0))
        better = exceeds(best, new).bitwise_and_(exceeds(determinant, 0))
        for found, kept in ((new, best), (new_scale, scale), (least, origin), (trial, inverse), (new_least, least)):
            pick(better, found, kept)
    return Fit(scale, least, lambda: encode(origin, inverse).to(torch.int32))


class Found(NamedTuple):
    """A scale alone for each group, [groups].

    Attributes:
        scale: to multiply codes by; 0 for a group of zeros.
        codes: () -> the codes that it fits, and the largest of them, `top`, added: int32 [n, groups]; 0 for a group of zeros.
    """

    scale: torch.Tensor
    codes: Callable[[], torch.Tensor]


Sums = Callable[["torch.Tensor"], tuple["torch.Tensor", "torch.Tensor"]]


def scale_alone(x: torch.Tensor, weights: torch.Tensor, top: int) -> Found:
    """Searches, for each group, the scale that brings ``scale * code`` nearest to its weights x.

    What is made small is the sum of ``weight * error ** 2``. Codes are -top to top - 1. First the x that is farthest from zero
    gets the code -top, which has no counterpart; then a little more or less than -top, by tenths.
    """
    peak, dead = _peak(x)
    weighted, codes, product = weights * x, torch.empty_like(x), torch.empty_like(x)

    def encode(inverse: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, inverse, out=codes).round_().clamp_(-top, top - 1)

    def sums(inverse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        encode(inverse)
        sum_xl = total(torch.mul(weighted, codes, out=product))
        return sum_xl, total(torch.mul(weights, codes, out=product).mul_(codes))

    tenths = steps(0, 0.1, (*range(-9, 0), *range(1, 10)), top)
    scale, inverse = _best(sums, (divided(-number, peak) for number in (top, *tenths)))
    return Found(scale.masked_fill_(dead, 0), lambda: _stored(encode(inverse), top, dead))


def scale_of_table(
    x: torch.Tensor, weights: torch.Tensor, values: Callable[[torch.Tensor], torch.Tensor], least: int
) -> torch.Tensor:
    """Searches, for each group, the scale that brings ``scale * value`` nearest to its weights x, of a table's values.

    It goes as in `scale_alone`, by whole numbers more or less than the value that is farthest from zero.

    Args:
        x: [n, groups].
        weights: how much the error of each x counts.
        values: numbers -> the value of the table that is nearest to each; may write over what it is given.
        least: the value farthest from zero, which is negative.

    Returns:
        The scale of each group, 0 for a group of zeros.
    """
    peak, dead = _peak(x)
    scaled = torch.empty_like(x)

    def sums(inverse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value = values(torch.mul(x, inverse, out=scaled))
        weighted = weights * value
        return total(torch.mul(weighted, x, out=scaled)), total(weighted.mul_(value))

    trials = (divided(least + number, peak) for number in range(-7, 8))
    scale, _ = _best(sums, itertools.chain([1 / over(peak, -least)], trials))
    return scale.masked_fill_(dead, 0)


def _peak(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the weight of each group that is farthest from zero, 1 for groups of zeros; and which groups are such."""
    peak = farthest(x).squeeze(0)
    dead = ~(peak.abs() >= TINY)
    return peak.masked_fill_(dead, 1), dead


def _stored(codes: torch.Tensor, top: int, dead: torch.Tensor) -> torch.Tensor:
    """Returns codes as `Found` gives them."""
    return codes.to(torch.int32).add_(top).masked_fill_(dead, 0)


def _best(sums: Sums, trials: Iterable[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Searches the scale that leaves the least of ``sum(weight * (x - scale * code) ** 2)``, of the codes that trials give.

    For given codes that is sum_xl / sum_l2, where the sums are those of weight * x * code and weight * code^2, and it takes
    sum_xl^2 / sum_l2 off the error that no scale at all leaves. So the largest of these wins.

    Args:
        sums: the inverse of a scale -> both sums, of the codes that it gives.
        trials: the inverses.

    Returns:
        The scale, and the inverse that gave the codes.
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


def scale_by_single_codes(x: torch.Tensor, top: int) -> Found:
    """As `scale_alone` where the error of each x counts x^2; but by changing single codes, see `improve`."""
    peak, dead = _peak(x)
    codes = (x * divided(-top, peak)).round_().clamp_(-top, top - 1)
    scale = improve(x, x * x, codes, -top, top - 1)
    return Found(scale.masked_fill_(dead, 0), lambda: _stored(codes, top, dead))


def positive_steps(numbers: torch.Tensor, weights: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Writes numbers of at least 0, which are scales of groups, as d * code, with one d for each block.

    What is made small is the sum of ``weight * error ** 2``: first the largest number gets a little more or less than `top`, by
    tenths, then single codes are changed. Less than 0 is what noise makes of a group in which a single weight counts: its code
    is 0. The reference stores it as 255, which spoils the scales of the block.

    Args:
        numbers: [n, blocks].
        weights: how much the error of each counts.
        top: the largest code.

    Returns:
        d [blocks], and the codes, int32 [n, blocks].
    """
    peak = numbers.amax(0)
    dead = ~(peak >= TINY)
    peak.masked_fill_(dead, 1)

    def encode(inverse: torch.Tensor) -> torch.Tensor:
        return (numbers * inverse).round_().clamp_(0, top)

    def error(inverse: torch.Tensor) -> torch.Tensor:
        wrong = numbers - encode(inverse) * (1 / inverse)
        return total((weights * wrong).mul_(wrong))

    inverse = divided(top, peak)
    best = error(inverse)
    for number in steps(0, 0.1, (-4, -3, -2, -1, 1, 2, 3, 4), top):
        trial = divided(number, peak)
        new = error(trial)
        better = exceeds(best, new)
        pick(better, new, best)
        pick(better, trial, inverse)
    codes = encode(inverse)
    d = improve(numbers, weights, codes, 0, top)
    return d.masked_fill_(dead, 0), codes.to(torch.int32).masked_fill_(dead, 0)


def improve(x: torch.Tensor, weights: torch.Tensor, codes: torch.Tensor, least: int, top: int) -> torch.Tensor:
    """Improves the codes of each group, in place, one after another, and returns the scales that fit them.

    One code moves both sums, of weight * x * code and of weight * code^2, and with them the scale. So it is tried to make of it
    x over the scale that fits all others, and that is kept where it leaves less error. All codes are gone through until none
    changes, but five times at most.

    Args:
        x: [n, groups].
        weights: how much the error of each x counts.
        codes: whole numbers from `least` to `top`, float32 [n, groups].
        least: the least code that there is.
        top: the greatest.
    """
    sum_xl = total(torch.mul(weights, x).mul_(codes))
    sum_l2 = total(torch.mul(weights, codes).mul_(codes))
    groups = (sum_xl > 0).nonzero().squeeze(1)  # where it is not, it is the sum of no positive numbers, and so are parts of it
    for _ in range(5):
        part, counts, some, some_xl, some_l2 = (rows.index_select(-1, groups) for rows in (x, weights, codes, sum_xl, sum_l2))
        changed = _change(part, counts, some, some_xl, some_l2, least, top)
        for rows, new in ((codes, some), (sum_xl, some_xl), (sum_l2, some_l2)):
            rows.index_copy_(-1, groups, new)
        groups = groups[changed != 0]
    return (sum_xl / sum_l2).masked_fill_(~(sum_l2 > 0), 0)


def _change(
    x: torch.Tensor,
    weights: torch.Tensor,
    codes: torch.Tensor,
    sum_xl: torch.Tensor,
    sum_l2: torch.Tensor,
    least: int,
    top: int,
) -> torch.Tensor:
    """Tries to change each code once, and returns, as a mask, in which groups some did."""
    some = torch.zeros_like(sum_xl, dtype=torch.int32)
    for number, w, wx, code in zip(x, weights, weights * x, codes, strict=True):
        other_xl, other_l2 = sum_xl - wx * code, sum_l2 - (w * code).mul_(code)
        new = nearest((number * other_l2).div_(other_xl)).clamp_(least, top).to(torch.float32)
        new_xl, new_l2 = (wx * new).add_(other_xl), (w * new).mul_(new).add_(other_l2)
        gain = (new_xl * new_xl).mul_(sum_l2).sub_((sum_xl * sum_xl).mul_(new_l2))
        for positive in (other_xl, new_l2, (new - code).abs_()):  # so that one comparison does for four
            torch.minimum(gain, positive, out=gain)
        changed = exceeds(gain, 0)
        some |= changed
        for found, kept in ((new_xl, sum_xl), (new_l2, sum_l2), (new, code)):
            pick(changed, found, kept)
    return some
