"""Searches that finish code by code: a code is changed if that reduces the error of its group, with
the scale refitted to the group.

Tensors have the shapes of `scale_searches`: x and counts are [n, groups], numbers per group are
[groups].

Source: ggml-quants.c of llama.cpp; the encoders that use these are checked against it bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable

from glft_schema.lazy import torch
from glft_schema.tensor_types.encoders.scale_searches import TINY, Signed, above_zero, peaks
from glft_schema.tensor_types.encoders.trials import by_error, fit_and_size, keep_better, tries
from glft_schema.tensor_types.engine.arithmetic import divided, exceeds, nearest, total
from glft_schema.tensor_types.engine.steps import step


def scale_by_single_codes(x: torch.Tensor, top: int) -> Signed:
    """Searches like `scale_alone` with the counts x^2, but by changing single codes, see `improve`.

    Source: make_q3_quants.
    """
    peak, zeros = peaks(x)
    counts, codes, fit, size = _rounded(x, peak, top=top)
    scale = improve(x, counts, codes, fit, size, -top, top - 1)
    return Signed(scale.masked_fill_(zeros, 0), lambda: above_zero(codes, top, zeros))


def scale_of_positives(x: torch.Tensor, counts: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Searches for the scale of each group, of numbers x that should not be negative. Codes are 0
    to `top`.

    The best of nine scales gives the codes, then single ones are changed, see `improve`. The
    numbers x are scales themselves, and noise may make one negative if a single weight of its group
    counts. Its code is 0. In that this differs from `scale_of_bytes` and from llama.cpp, which
    stores 255 and so spoils all scales of the block.

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
    scale = improve(x, counts, codes, *fit_and_size(x, counts, codes), 0, top)
    return scale.masked_fill_(zeros, 0), codes.to(torch.int32).masked_fill_(zeros, 0)


def scale_of_bytes(x: torch.Tensor, counts: torch.Tensor, top: int) -> torch.Tensor:
    """Searches like `scale_of_positives`, but stores negative codes in bytes, as llama.cpp does: -1
    is read as 255.

    The numbers x are absolute weights, negative if a sign was flipped. A code is added to the sums
    as it is computed, and subtracted as it is read. So a group may change although its sum is not
    above 0, and `improve` does not apply. The scale of a group of zeros is meaningless.

    Source: make_qp_quants.
    """

    def encode(inverse: torch.Tensor, first: bool = False) -> torch.Tensor:
        codes = nearest(x * inverse)
        return codes & 255 if first else codes.clamp_(max=top)  # C stores the codes of the first trial only

    codes = encode(_best_of_nine(x, counts, x.amax(0), top, encode))
    products = counts * x
    fit, size = total(products * codes), total((counts * codes).mul_(codes))
    codes &= 255
    for _ in range(5):
        for number, count, product, code in zip(x, counts, products, codes, strict=True):
            other_fit, other_size = fit - product * code, size - count * code * code
            new = nearest(number * other_size / other_fit).clamp_(max=top)
            new_fit, new_size = (product * new).add_(other_fit), (count * new).mul_(new).add_(other_size)
            better = (other_fit > 0) & (other_size > 0) & (new != code) & (new_fit * new_fit * size > fit * fit * new_size)
            keep_better((fit, size, code), [(better.to(torch.int32).neg_(), (new_fit, new_size, new & 255))])
    return torch.where(size > 0, fit / size, 0.0)


def _best_of_nine(
    x: torch.Tensor, counts: torch.Tensor, peak: torch.Tensor, top: int, encode: Callable[[torch.Tensor, bool], torch.Tensor]
) -> torch.Tensor:
    """Returns the best of nine inverses of scales, which give the peak, the largest x, the code
    top, or by tenths more or less.

    `encode` takes the inverse of a scale, and whether it is the first of the nine, and returns the
    codes [n, groups].
    """

    def error(inverse: torch.Tensor, first: bool = False) -> torch.Tensor:
        wrong = x - encode(inverse, first) * (1 / inverse)
        return total((counts * wrong).mul_(wrong))

    inverses = tries(0, 0.1, (0, -4, -3, -2, -1, 1, 2, 3, 4), top).unsqueeze(1) / peak
    best, others = inverses[0], inverses[1:]
    least = error(best, first=True)
    keep_better((least, best), (by_error(least, error(inverse), inverse) for inverse in others))
    return best


def improve(
    x: torch.Tensor, counts: torch.Tensor, codes: torch.Tensor, fit: torch.Tensor, size: torch.Tensor, least: int, top: int
) -> torch.Tensor:
    """Improves the codes of each group in place, one by one, and returns the scales that fit them.

    Each code is recomputed from its x and the scale that fits all other codes, and changed if that
    leaves less error. A code enters two sums, `fit` and `size` of `by_fit`, from which the scale
    and the error follow; they are updated, too. At most five passes are made over all codes, fewer
    if none changes. Codes are integers from `least` to `top`, in float32, 0 or of the sign of their
    x.
    """
    groups = (fit > 0).nonzero().squeeze(1)  # no term of the sum is negative, so that no other group can change
    for _ in range(5):
        parts = [rows.index_select(-1, groups) for rows in (x, counts, codes, fit, size)]
        (changed,) = _change(*parts[:2], *parts[3:], *parts[2], least=least, top=top)
        for rows, new in zip((codes, fit, size), parts[2:], strict=True):
            rows.index_copy_(-1, groups, new)
        groups = groups[changed]
    return (fit / size).masked_fill_(~(size > 0), 0)


@step
def _rounded(x: torch.Tensor, peak: torch.Tensor, *, top: int) -> tuple[torch.Tensor, ...]:
    """Returns the counts x^2, the codes for which the peak is -top, and their fit and size."""
    counts, codes = x * x, (x * divided(-top, peak)).round_().clamp_(-top, top - 1)
    return counts, codes, *fit_and_size(x, counts, codes)


@step
def _change(
    x: torch.Tensor, counts: torch.Tensor, fit: torch.Tensor, size: torch.Tensor, *codes: torch.Tensor, least: int, top: int
) -> tuple[torch.Tensor]:
    """Tries to change each code once, in place, with fit and size. Returns which groups changed."""
    changed = torch.zeros_like(fit, dtype=torch.int32)
    for number, count, product, code in zip(x, counts, counts * x, codes, strict=True):
        other_fit, other_size = fit - product * code, size - (count * code).mul_(code)
        new = nearest((number * other_size).div_(other_fit)).clamp_(least, top).to(torch.float32)
        new_fit, new_size = (product * new).add_(other_fit), (count * new).mul_(new).add_(other_size)
        gain = (new_fit * new_fit).mul_(size).sub_((fit * fit).mul_(new_size))
        for positive in (other_fit, new_size, (new - code).abs_()):  # one comparison instead of four
            torch.minimum(gain, positive, out=gain)
        better = exceeds(gain, 0)
        changed |= better
        keep_better((fit, size, code), [(better, (new_fit, new_size, new))])
    return (changed != 0,)
