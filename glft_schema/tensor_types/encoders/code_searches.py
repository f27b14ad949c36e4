"""Searches that end with single codes: each is changed if less error is left then, by the scale that fits all of its group.

Tensors are those of `scale_searches`: x and counts [n, groups], row by row, and one number a group, [groups].

Source: ggml-quants.c of llama.cpp; the encoders that use these are checked against it bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable

from glft_schema.lazy import torch
from glft_schema.tensor_types.encoders.scale_searches import TINY, Found, above_zero, divided, peaks, tries
from glft_schema.tensor_types.engine.arithmetic import exceeds, nearest, pick, total


def scale_by_single_codes(x: torch.Tensor, top: int) -> Found:
    """As `scale_alone` where the error of each x counts x^2; but by changing single codes, see `improve`.

    Source: make_q3_quants.
    """
    peak, zeros = peaks(x)
    codes = (x * divided(-top, peak)).round_().clamp_(-top, top - 1)
    scale = improve(x, x * x, codes, -top, top - 1)
    return Found(scale.masked_fill_(zeros, 0), lambda: above_zero(codes, top, zeros))


def scale_of_positives(x: torch.Tensor, counts: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Searches, for each group, the scale that brings ``scale * code`` nearest to its numbers x, which should not be below 0.

    Codes are 0 to `top`. The best of nine scales gives them, then single ones are changed, see `improve`. x are scales
    themselves, and noise may bring one below 0 where a single weight of its group counts. Its code is 0: in that this differs
    from `scale_of_bytes`, and from the reference, whose 255 spoils all scales of the block.

    Args:
        x: [n, groups].
        counts: [n, groups].
        top: the largest code.

    Returns:
        The scales [groups], 0 for groups of zeros, and the codes, int32 [n, groups].

    Source: make_qp_quants.
    """
    peak = x.amax(0)
    zeros = ~(peak >= TINY)
    peak.masked_fill_(zeros, 1)

    def encode(inverse: torch.Tensor, first: bool = False) -> torch.Tensor:
        return (x * inverse).round_().clamp_(0, top)

    codes = encode(_best_of_nine(x, counts, peak, top, encode))
    scale = improve(x, counts, codes, 0, top)
    return scale.masked_fill_(zeros, 0), codes.to(torch.int32).masked_fill_(zeros, 0)


def scale_of_bytes(x: torch.Tensor, counts: torch.Tensor, top: int) -> torch.Tensor:
    """As `scale_of_positives`, but with codes below 0, kept in bytes as the reference keeps them: -1 is 255 when it is read.

    x are weights without signs, below 0 where a sign was flipped. A code is added to the sums as it is made, and taken off as
    it is read. So what `improve` leaves out cannot be left out here: a group may change though its sum is not above 0.

    Returns:
        The scales [groups], which mean nothing for groups of zeros.

    Source: make_qp_quants.
    """

    def encode(inverse: torch.Tensor, first: bool = False) -> torch.Tensor:
        codes = nearest(x * inverse)
        return codes & 255 if first else codes.clamp_(max=top)  # the other trials keep none

    codes = encode(_best_of_nine(x, counts, x.amax(0), top, encode))
    products = counts * x
    sum_xl, sum_l2 = total(products * codes), total((counts * codes).mul_(codes))
    codes &= 255
    for _ in range(5):
        for number, count, product, code in zip(x, counts, products, codes, strict=True):
            other_xl, other_l2 = sum_xl - product * code, sum_l2 - count * code * code
            new = nearest(number * other_l2 / other_xl).clamp_(max=top)
            changed = (other_xl > 0) & (other_l2 > 0) & (new != code)
            new_xl, new_l2 = (product * new).add_(other_xl), (count * new).mul_(new).add_(other_l2)
            changed &= new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2
            sum_xl, sum_l2 = torch.where(changed, new_xl, sum_xl), torch.where(changed, new_l2, sum_l2)
            code.copy_(torch.where(changed, new & 255, code))
    return torch.where(sum_l2 > 0, sum_xl / sum_l2, 0.0)


def _best_of_nine(
    x: torch.Tensor, counts: torch.Tensor, peak: torch.Tensor, top: int, encode: Callable[[torch.Tensor, bool], torch.Tensor]
) -> torch.Tensor:
    """Returns the inverse of a scale: of nine that give peak the code top, or by tenths more or less, the best one.

    Args:
        x: [n, groups].
        counts: [n, groups].
        peak: the largest x, [groups].
        top: the largest code.
        encode: (the inverse of a scale, whether it is the first of the nine) -> codes [n, groups].
    """

    def error(inverse: torch.Tensor, first: bool = False) -> torch.Tensor:
        wrong = x - encode(inverse, first) * (1 / inverse)
        return total((counts * wrong).mul_(wrong))

    kept, *trials = (divided(number, peak) for number in tries(0, 0.1, (0, -4, -3, -2, -1, 1, 2, 3, 4), top))
    best = error(kept, first=True)
    for trial in trials:
        new = error(trial)
        better = exceeds(best, new)
        pick(better, new, best)
        pick(better, trial, kept)
    return kept


def improve(x: torch.Tensor, counts: torch.Tensor, codes: torch.Tensor, least: int, top: int) -> torch.Tensor:
    """Improves the codes of each group, in place, one after another, and returns the scales that fit them: [groups].

    Each code in turn is made anew, of its x and the scale that fits all other codes, and that is kept where it leaves less
    error: one code moves two sums, of count * x * code and of count * code^2, which say both. All codes are gone through until
    none changes, but five times at most.

    Args:
        x: [n, groups].
        counts: [n, groups].
        codes: whole numbers from `least` to `top`, float32 [n, groups], none of another sign than its x.
        least: the least code that there is.
        top: the greatest.
    """
    sum_xl = total(torch.mul(counts, x).mul_(codes))
    sum_l2 = total(torch.mul(counts, codes).mul_(codes))
    groups = (sum_xl > 0).nonzero().squeeze(1)  # where it is not, it is the sum of no positive numbers, and so are parts of it
    for _ in range(5):
        xs, ns, some, some_xl, some_l2 = (rows.index_select(-1, groups) for rows in (x, counts, codes, sum_xl, sum_l2))
        changed = _change(xs, ns, some, some_xl, some_l2, least, top)
        for rows, new in ((codes, some), (sum_xl, some_xl), (sum_l2, some_l2)):
            rows.index_copy_(-1, groups, new)
        groups = groups[changed != 0]
    return (sum_xl / sum_l2).masked_fill_(~(sum_l2 > 0), 0)


def _change(
    x: torch.Tensor,
    counts: torch.Tensor,
    codes: torch.Tensor,
    sum_xl: torch.Tensor,
    sum_l2: torch.Tensor,
    least: int,
    top: int,
) -> torch.Tensor:
    """Tries to change each code once, in place, as the sums, and returns, as a mask, in which groups some did: [groups]."""
    some = torch.zeros_like(sum_xl, dtype=torch.int32)
    for number, count, product, code in zip(x, counts, counts * x, codes, strict=True):
        other_xl, other_l2 = sum_xl - product * code, sum_l2 - (count * code).mul_(code)
        new = nearest((number * other_l2).div_(other_xl)).clamp_(least, top).to(torch.float32)
        new_xl, new_l2 = (product * new).add_(other_xl), (count * new).mul_(new).add_(other_l2)
        gain = (new_xl * new_xl).mul_(sum_l2).sub_((sum_xl * sum_xl).mul_(new_l2))
        for positive in (other_xl, new_l2, (new - code).abs_()):  # so that one comparison does for four
            torch.minimum(gain, positive, out=gain)
        changed = exceeds(gain, 0)
        some |= changed
        for found, kept in ((new_xl, sum_xl), (new_l2, sum_l2), (new, code)):
            pick(changed, found, kept)
    return some
