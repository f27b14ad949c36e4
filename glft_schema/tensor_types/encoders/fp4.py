"""Encoders of MXFP4, NVFP4 and ggml's IQ4, as scalar functions.

Source: ggml-quants.c of llama.cpp; checked against it bit by bit.
"""

from __future__ import annotations

from itertools import pairwise

from glft_schema.scalar.language import LookupTable, as_bits, as_float, float32, floats, int32, integers, nearest, truncated
from glft_schema.tensor_types.encoders.legacy import pack_halves
from glft_schema.tensor_types.encoders.searches import (
    TINY,
    code_between,
    count_squares,
    count_weights,
    farthest,
    inverse_of,
    largest,
    mean_square,
)
from glft_schema.tensor_types.small_floats import IQ4_VALUES, half_e4m3, half_power

LEAST_NORMAL = 2.0**-126
PER_LN_2 = 1.442695  # 1 / ln 2
INFINITY = float("inf")


def to_mxfp4(w, e, qs):
    """The scale is 2^n / 4, n being floor(log2(max |w|)) as C rounds it.

    Source: quantize_row_mxfp4_ref.
    """
    peak = largest(w)
    power = floor_of_log2(peak) - 2 + 127 & 255 if peak > 0.0 else 0
    e[0] = power
    codes = integers(32)
    e2m1_codes(w, half_power(power), codes)
    pack_halves(codes, qs)


def to_nvfp4(w, d, qs):
    """The scale of 16 weights is max |w| / 6.

    Source: quantize_row_nvfp4_ref.
    """
    for g in range(4):
        x = w[16 * g : 16 * g + 16]
        scale, codes = to_ue4m3(largest(x) / 6.0), integers(16)
        d[g] = scale
        e2m1_codes(x, half_e4m3(scale), codes)
        pack_halves(codes, qs[8 * g : 8 * g + 8])


def search_mxfp4(w, importance, e, qs):
    """Tries the exponents from two below ggml's to one above it, and keeps the one with the least
    sum of importance * error^2."""
    peak = largest(w)
    first = floor_of_log2(peak) - 2 + 127 & 255 if peak > 0.0 else 0
    power, least = first, squared_error(w, importance, half_power(first))
    for n in range(-2, 2):
        tried = min(max(first + n, 0), 254)
        error = squared_error(w, importance, half_power(tried))
        if error < least:
            power, least = tried, error
    e[0] = power
    codes = integers(32)
    e2m1_codes(w, half_power(power & 255), codes)
    pack_halves(codes, qs)


def search_nvfp4(w, importance, d, qs):
    """Tries the scales from six steps of E4M3 below ggml's, which is max |w| / 6, to six steps
    above it, beyond max |w| / 4, and keeps the one with the least sum of importance * error^2.
    Lower scales clip weights, which only pays if these have little importance."""
    for g in range(4):
        x, counts = w[16 * g : 16 * g + 16], importance[16 * g : 16 * g + 16]
        first = to_ue4m3(largest(x) / 6.0)
        scale, least = first, squared_error(x, counts, half_e4m3(first))
        for n in range(-6, 7):
            tried = min(max(first + n, 0), 126)
            error = squared_error(x, counts, half_e4m3(tried))
            if error < least:
                scale, least = tried, error
        d[g] = scale
        codes = integers(16)
        e2m1_codes(x, half_e4m3(scale), codes)
        pack_halves(codes, qs[8 * g : 8 * g + 8])


def squared_error(x, counts, half):
    """Returns the sum of count * error^2 for the E2M1 numbers nearest to x / half / 2. NaN, which
    is never less, if 1 / half overflows."""
    inverse, total = inverse_of(half), float32(0)
    for i in range(len(x)):
        size = min(abs(x[i]) * inverse, float32(12))
        step = float32(1) if size < 4.0 else float32(2) if size < 8.0 else float32(4)
        wrong = abs(x[i]) - half * (step * float32(nearest(size / step)))
        total += counts[i] * (wrong * wrong)
    return total


def floor_of_log2(x):
    """Returns what floorf(log2f(x)) is in C, for x > 0.

    C rounds the logarithm. So it counts a number just below 2^n as 2^n: if x is 2^n * (1 - m), and
    m is small, then log2(x) is n - m / ln 2, which may round to n. If m is larger, it does not.
    """
    bits = as_bits(x if x >= LEAST_NORMAL else x * 16777216.0)
    n = (bits >> 23) - 126 if x >= LEAST_NORMAL else (bits >> 23) - 150
    m = 1.0 - as_float(bits & 0x7FFFFF | 126 << 23)
    return n if float32(n) - m * PER_LN_2 == float32(n) else n - 1


def to_ue4m3(x):
    """Rounds float32 to unsigned E4M3, halves up; numbers from 248 on become 448.

    Source: ggml_fp32_to_ue4m3.
    """
    bits = as_bits(min(x, float32(448)))
    exponent = (bits >> 23) - 120
    normal = (exponent << 3) + (bits >> 20 & 7) + (bits >> 19 & 1)
    subnormal = min(truncated(x * 512.0 + 0.5), 7)
    return (normal if normal < 120 else 126) if exponent > 0 else subnormal


def e2m1_codes(x, half, codes):
    """Sets the codes of E2M1 numbers nearest to x / half. They are 0 if `half`, half of a scale,
    is 0.

    The products are exact: no scale has more than four bits. A weight out of range gets the last
    code. llama.cpp gives it the first code if it is at least 2^25 scales, because rounding then
    makes all errors equal.
    """
    step = half if half > 0.0 else float32(INFINITY)
    for i in range(len(x)):
        size, code = abs(x[i]), int32(x[i] < -0.5 * step) << 3  # zero has no sign
        for b in range(7):
            code += int32(size > E2M1_BORDERS[b] * step)  # ties go to the smaller one
        codes[i] = code


def to_iq4_nl(w, d, qs):
    """Searches for the scale. Errors count w^2.

    Source: quantize_row_iq4_nl_impl, for this function and the next three.
    """
    counts = floats(32)
    count_squares(w, counts)
    finish_iq4_nl(w, counts, d, qs)


def to_iq4_nl_by_importance(w, importance, d, qs):
    """Errors count importance * sqrt(2 mean w^2 + w^2), with the mean of the block."""
    counts = floats(32)
    count_weights(w, importance, counts, mean_square(w, factor=2))
    finish_iq4_nl(w, counts, d, qs)


def to_iq4_xs(w, d, scales_h, scales_l, qs):
    """Searches for the scales of groups of 32 weights, stored in steps of d; the scale farthest
    from zero is -32 steps. Errors count w^2."""
    counts = floats(256)
    count_squares(w, counts)
    finish_iq4_xs(w, counts, d, scales_h, scales_l, qs)


def to_iq4_xs_by_importance(w, importance, d, scales_h, scales_l, qs):
    """Errors count importance * sqrt(2 mean w^2 + w^2), with the mean of the block."""
    counts = floats(256)
    count_weights(w, importance, counts, mean_square(w, factor=2))
    finish_iq4_xs(w, counts, d, scales_h, scales_l, qs)


def finish_iq4_nl(w, counts, d, qs):
    """Searches for the scale and packs the codes."""
    scale = scale_of_iq4(w, counts)
    d[0] = scale
    pack_iq4(w, inverse_of(scale), qs)


def finish_iq4_xs(w, counts, d, scales_h, scales_l, qs):
    """Searches for the scales and packs the codes. d is infinite if a scale is not finite."""
    found, sixes, high, defect = floats(8), integers(8), 0, float32(0)
    for g in range(8):
        found[g] = scale_of_iq4(w[32 * g : 32 * g + 32], counts[32 * g : 32 * g + 32])
        defect += found[g] - found[g]  # 0 if it is finite, else NaN
    step = farthest(found) / -32.0
    d[0] = step if defect == 0.0 else float32(INFINITY)
    inverse = inverse_of(step)
    for g in range(8):
        scale = code_between(found[g] * inverse, low=-32, high=31)
        pack_iq4(w[32 * g : 32 * g + 32], inverse_of(step * float32(scale)), qs[16 * g : 16 * g + 16])
        sixes[g] = scale + 32
        high |= sixes[g] >> 4 << 2 * g
    scales_h[0] = high
    for j in range(4):
        scales_l[j] = sixes[2 * j] & 15 | (sixes[2 * j + 1] & 15) << 4


def scale_of_iq4(x, counts):
    """Searches for the scale of x. The first trial maps the x farthest from zero to 127, the others
    to -134, -133, ... -120. Returns 0 for a group of zeros.

    Source: quantize_row_iq4_nl_impl.
    """
    peak, scale, best = farthest(x), float32(0), float32(0)
    values = floats(32)
    if abs(peak) >= TINY:
        for n in range(-8, 8):  # -8 stands for the first trial, with 127
            inverse = 1.0 / (peak / 127.0) if n == -8 else float32(n - 127) / peak
            fit, size = float32(0), float32(0)
            for i in range(len(x)):
                values[i] = iq4_value(x[i] * inverse)
            for i in range(len(x)):
                fit += counts[i] * values[i] * x[i]
                size += counts[i] * values[i] * values[i]
            if n == -8 or (size > 0.0 and fit * fit > best * size):
                scale = fit / size if size != 0.0 else float32(0)
                best = scale * fit
    return scale


def pack_iq4(x, inverse, qs):
    """Packs the codes nearest to x * inverse."""
    codes = integers(32)
    for i in range(32):
        codes[i] = iq4_code(x[i] * inverse)
    pack_halves(codes, qs)


def iq4_code(x):
    """Returns the code of the value nearest to x; ties go up. For NaN, it is 8, with value 1."""
    code = 8
    for b in range(8):
        code -= int32(x < IQ4_BORDERS[b])
    for b in range(8, 15):
        code += int32(x >= IQ4_BORDERS[b])
    return code


def iq4_value(x):
    """Returns the value of `iq4_code`. Vector units compare faster than they look up."""
    value = float32(1)
    for b in range(8):
        value -= IQ4_STEPS[b] if x < IQ4_BORDERS[b] else float32(0)
    for b in range(8, 15):
        value += IQ4_STEPS[b] if x >= IQ4_BORDERS[b] else float32(0)
    return value


E2M1_BORDERS = LookupTable(lambda: [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0])  # between the doubled numbers of E2M1
IQ4_BORDERS = LookupTable(lambda: [(low + high) / 2 for low, high in pairwise(IQ4_VALUES)])
IQ4_STEPS = LookupTable(lambda: [float(high - low) for low, high in pairwise(IQ4_VALUES)])
