"""Arithmetic of encoders as scalar functions. Reductions use integers, because compilers do not
reorder reductions of floats.
"""

from __future__ import annotations

from glft_schema.scalar.language import as_bits, as_float, float32, truncated

BELOW_HALF = 0.5 - 2.0**-25  # the largest float32 below a half


def largest(x):
    """Returns max |x|. Floats that are not negative have the order of their bits."""
    peak = 0
    for i in range(len(x)):
        peak = max(peak, as_bits(x[i]) & 0x7FFFFFFF)
    return as_float(peak)


def farthest(x):
    """Returns the (first) number farthest from zero, 0 rather than -0."""
    high, low = 0, 0  # the bits of max x and of -min x, if they are above 0
    for i in range(len(x)):
        high, low = max(high, as_bits(x[i])), max(low, as_bits(-x[i]))
    peak = as_float(high) if high > low else -as_float(low)
    if high == low:  # the first one decides
        for i in range(len(x)):
            last = x[len(x) - 1 - i]
            peak = last if abs(last) == as_float(high) else peak
    return peak + 0.0  # -0 + 0 is 0


def least_and_greatest(x):
    """Returns min x and max x. If min x is zero, it is the first zero, 0 or -0, as in C."""
    low, high = to_ordered(as_bits(x[0])), to_ordered(as_bits(x[0]))
    for i in range(len(x)):
        low, high = min(low, to_ordered(as_bits(x[i]))), max(high, to_ordered(as_bits(x[i])))
    least = as_float(to_ordered(low))
    if least == 0.0:
        for i in range(len(x)):
            last = x[len(x) - 1 - i]
            least = last if last == 0.0 else least
    return least, as_float(to_ordered(high))


def to_ordered(bits):
    """Maps the bits of floats to integers in the same order. It is its own inverse."""
    return bits ^ bits >> 31 & 0x7FFFFFFF


def inverse_of(d):
    """Returns 1 / d, or 0 if d is 0."""
    return 1.0 / d if d != 0.0 else float32(0)


def away_from_zero(x):
    """Rounds to int32, halves away from zero, like C's roundf."""
    return truncated(x + BELOW_HALF if x > 0.0 else x - BELOW_HALF)
