"""float32 arithmetic with the same results as C, bit for bit, in the fastest form that torch
offers.

Masks are int32 with all bits set or none, for `pick`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.bits import along, by_words, is_fused

MAGIC = 3.0 * 2**22  # a sum with it has no fraction bits: adding rounds half to even


def total(rows: torch.Tensor) -> torch.Tensor:
    """Adds up rows in order: [n, groups] -> [groups]."""
    if is_fused(rows):
        return rows.sum(0) + 0.0  # unrolled, see `steps.OPTIONS`
    if by_words(rows) and rows[0].numel() > 1:  # numpy adds whole rows; a single column it would add in pairs
        with np.errstate(all="ignore"):
            return torch.from_numpy(np.add.reduce(rows.contiguous().numpy(), 0, initial=0))
    first, *others = rows.unbind(0)
    result = first + 0.0  # a C sum starts with 0, so it is never -0
    for row in others:
        result += row
    return result


def nearest(numbers: torch.Tensor) -> torch.Tensor:
    """Rounds to int32, half to even, in place. Wrong beyond 2^22 and for NaN, as in llama.cpp."""
    return numbers.add_(MAGIC).view(torch.int32).bitwise_and_(0x7FFFFF).sub_(0x400000)


def root(numbers: torch.Tensor) -> torch.Tensor:
    """Returns the square root of float32, correctly rounded; torch's own is not on every CPU."""
    return numbers.to(torch.float64).sqrt_().to(torch.float32)


def exceeds(numbers: torch.Tensor, others: torch.Tensor | float) -> torch.Tensor:
    """Returns the mask of numbers that exceed the others."""
    if is_fused(numbers):
        return numbers > others
    return torch.gt(numbers, others, out=torch.empty_like(numbers, dtype=torch.int32)).neg_()


def is_less(numbers: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Returns the mask of float32 numbers less than the others, by bits: none is negative."""
    if is_fused(numbers):
        return numbers < others
    return numbers.view(torch.int32).sub(others.view(torch.int32)).bitwise_right_shift_(31)


def pick(mask: torch.Tensor, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Replaces `old` by `new` where the mask is set, in place. Ten times as fast as `where`."""
    if is_fused(old):
        return old.copy_(torch.where(mask, new, old))
    bits = old.view(torch.int32)
    bits.bitwise_xor_(torch.bitwise_xor(new.view(torch.int32), bits).bitwise_and_(mask))
    return old


def reciprocal(d: torch.Tensor) -> torch.Tensor:
    """1 / d, or 0 if d is 0."""
    return torch.where(d == 0, 0.0, 1 / d)


BELOW_HALF = 0.5 - 2.0**-25  # the largest float32 below a half


def away_from_zero(numbers: torch.Tensor) -> torch.Tensor:
    """Rounds to int8, halves away from zero, like C's roundf."""
    return truncated(torch.add(numbers, numbers.sign(), alpha=BELOW_HALF))


def truncated(numbers: torch.Tensor) -> torch.Tensor:
    """Returns the integer parts as int8; 0 for numbers beyond 2^31 and NaN, as in C on x86."""
    return (numbers.to(torch.int32) if is_fused(numbers) else numbers).to(torch.int8)


def product(d: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Returns float16 d [blocks, 1] times small integers [blocks, groups], in float32."""
    return d.to(torch.float32) * scales.to(torch.float32)


def float16(d: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Returns d as float16 [blocks, 1]; infinite if a scale of the block is not finite."""
    finite = scale.view(len(d), -1).isfinite().all(1)
    return d.masked_fill(~finite, math.inf).to(torch.float16).unsqueeze(1)


def divided(number: float, divisor: torch.Tensor) -> torch.Tensor:
    """Returns number / divisor, correctly rounded: torch would multiply by the inverse."""
    return torch.full_like(divisor, number).div_(divisor)


def over(numbers: torch.Tensor, divisor: float) -> torch.Tensor:
    """Returns numbers / divisor, correctly rounded: a GPU would multiply by the inverse."""
    return numbers / torch.full_like(numbers, divisor)


def farthest(numbers: torch.Tensor, axis: int = 0) -> torch.Tensor:
    """Returns the (first) number farthest from zero along an axis, which is kept with length 1.

    It is 0, not -0, if all numbers are zeros.
    """
    if is_fused(numbers):
        sizes = numbers.abs()
        peak = sizes.amax(axis, keepdim=True)
        return torch.where(_is_first_negative(sizes == peak, numbers, axis), 0 - peak, peak)
    if not by_words(numbers):
        return numbers.gather(axis, numbers.abs().argmax(axis, keepdim=True)) + 0.0  # -0 + 0 is 0
    low, high = numbers.amin(axis, keepdim=True), numbers.amax(axis, keepdim=True)
    peak = torch.maximum(high, -low).copysign_(high + low)
    tied = (high == -low).squeeze(axis)
    if bool(tied.any()):  # the sign of the first one decides
        some = numbers.movedim(axis, 0)[:, tied]
        peak.movedim(axis, 0)[:, tied] = some.gather(0, some.abs().argmax(0, keepdim=True)) + 0.0
    return peak


def _is_first_negative(chosen: torch.Tensor, numbers: torch.Tensor, axis: int) -> torch.Tensor:
    """Tells whether the first chosen number along an axis is negative or -0."""
    places = along(axis, torch.arange(numbers.shape[axis], dtype=torch.float32), numbers.dim())
    keys = 2 * places - torch.copysign(torch.full_like(numbers, 0.5), numbers) + 0.5  # odd if negative
    return torch.where(chosen, keys, math.inf).amin(axis, keepdim=True).to(torch.int32) & 1 == 1


def first_of_zeros(least: torch.Tensor, numbers: torch.Tensor, axis: int = 0) -> torch.Tensor:
    """Replaces least numbers that are zero by the first zero along the axis, 0 or -0, in place.

    Args:
        least: of the numbers, with length 1 along the axis.
    """
    if is_fused(numbers):
        zero = torch.where(_is_first_negative(numbers == 0, numbers, axis), -0.0, 0.0)
        return least.copy_(torch.where(least == 0, zero, least))
    zero = (least == 0).squeeze(axis)
    if bool(zero.any()):
        some = numbers.movedim(axis, 0)[:, zero]
        least.movedim(axis, 0)[:, zero] = some.gather(0, (some == 0).to(torch.uint8).argmax(0, keepdim=True))
    return least


def codes_unless_zero(scale: torch.Tensor, codes: torch.Tensor, searched: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Replaces codes by those of a search if rounding has made their scale 0."""
    zero = scale == 0
    if not by_words(scale) or bool(zero.any()):  # on other devices, reading a bool back would cost more
        return torch.where(zero, searched().to(codes.dtype), codes)
    return codes


def has_finite_sum(numbers: torch.Tensor) -> bool:
    """Tells whether the sum is finite: the fastest check that all numbers are."""
    return bool(numbers.sum(dtype=torch.float32).isfinite())
