"""Encoders of ggml's first quantized types, as scalar functions.

Source: ggml-quants.c of llama.cpp, the functions quantize_row_TYPE_ref and, by importance,
quantize_row_TYPE_impl; checked against it bit by bit.

The encoders compute in float32 with the scale before it is rounded to float16, like llama.cpp. If
all weights of a block are so small that 1 / d is infinite, d is stored as 0 and the codes are
meaningless.
"""

from __future__ import annotations

from glft_schema.scalar.language import float32, floats, int32, integers, truncated
from glft_schema.tensor_types.encoders.searches import (
    away_from_zero,
    best_scale_and_minimum,
    code_between,
    count_weights,
    farthest,
    inverse_of,
    largest,
    least_and_greatest,
    scale_alone,
)


def to_q1_0(w, d, qs):
    """d is the mean of |w|, added in order."""
    total = float32(0)
    for i in range(128):
        total += abs(w[i])
    d[0] = total / 128.0
    for b in range(16):
        byte = 0
        for j in range(8):
            byte |= int32(w[8 * b + j] >= 0.0) << j
        qs[b] = byte


def to_q2_0(w, d, qs):
    """d is max |w|."""
    d[0] = largest(w)
    inverse, codes = inverse_of(largest(w)), integers(64)
    for i in range(64):
        codes[i] = away_from_zero(w[i] * inverse) + 1 & 3
    for b in range(16):
        qs[b] = codes[4 * b] | codes[4 * b + 1] << 2 | codes[4 * b + 2] << 4 | codes[4 * b + 3] << 6


def to_q4_0(w, d, qs):
    """d maps the weight farthest from zero to code 0, which stands for -8."""
    codes = integers(32)
    d[0] = scale_of_farthest(w, codes, top=8)
    pack_halves(codes, qs)


def to_q4_0_by_importance(w, importance, mean_square, d, qs):
    """Searches for the scale."""
    codes = integers(32)
    d[0] = search_scale(w, importance, mean_square[0], codes, top=8)
    pack_halves(codes, qs)


def to_q4_1(w, d, m, qs):
    """d and m map the least weight to code 0 and the greatest weight to code 15."""
    codes = integers(32)
    scale, low = scale_of_range(w, codes, top=15)
    d[0], m[0] = scale, low
    pack_halves(codes, qs)


def to_q4_1_by_importance(w, importance, mean_square, d, m, qs):
    """Searches for the scale and the minimum."""
    codes = integers(32)
    scale, low = search_range(w, importance, mean_square[0], codes, top=15)
    d[0], m[0] = scale, low
    pack_halves(codes, qs)


def to_q5_0(w, d, qh, qs):
    """Like Q4_0; code 0 stands for -16."""
    codes = integers(32)
    d[0] = scale_of_farthest(w, codes, top=16)
    qh[0] = fifth_bits(codes)
    pack_halves(codes, qs)


def to_q5_0_by_importance(w, importance, mean_square, d, qh, qs):
    """Searches for the scale."""
    codes = integers(32)
    d[0] = search_scale(w, importance, mean_square[0], codes, top=16)
    qh[0] = fifth_bits(codes)
    pack_halves(codes, qs)


def to_q5_1(w, d, m, qh, qs):
    """Like Q4_1, with codes up to 31."""
    codes = integers(32)
    scale, low = scale_of_range(w, codes, top=31)
    d[0], m[0], qh[0] = scale, low, fifth_bits(codes)
    pack_halves(codes, qs)


def to_q5_1_by_importance(w, importance, mean_square, d, m, qh, qs):
    """Searches for the scale and the minimum."""
    codes = integers(32)
    scale, low = search_range(w, importance, mean_square[0], codes, top=31)
    d[0], m[0], qh[0] = scale, low, fifth_bits(codes)
    pack_halves(codes, qs)


def to_q8_0(w, d, qs):
    """d is max |w| / 127."""
    scale = largest(w) / 127.0
    d[0], inverse = scale, inverse_of(scale)
    for i in range(32):
        qs[i] = away_from_zero(w[i] * inverse)


def to_q8_1(w, d, s, qs):
    """Like Q8_0; s is d times the sum of the codes."""
    scale = largest(w) / 127.0
    inverse, codes, total = inverse_of(scale), integers(32), 0
    for i in range(32):
        codes[i] = away_from_zero(w[i] * inverse)
        total += codes[i]
    for i in range(32):
        qs[i] = codes[i]
    d[0], s[0] = scale, float32(total) * scale


def scale_of_farthest(w, codes, *, top):
    """Returns the scale that maps the weight farthest from zero to the code -top. `codes` gets
    codes plus `top`, at most 2 * top - 1."""
    scale = farthest(w) / -top
    inverse = inverse_of(scale)
    for i in range(32):
        codes[i] = min(truncated(w[i] * inverse + (top + 0.5)), 2 * top - 1)
    return scale


def search_scale(w, importance, mean, codes, *, top):
    """Searches for the scale. `codes` gets codes plus `top`; 0 for a block of zeros."""
    counts = floats(32)
    count_weights(w, importance, counts, mean)
    scale, inverse = scale_alone(w, counts, top=top)
    for i in range(32):
        codes[i] = code_between(inverse * w[i], low=-top, high=top - 1) + top if inverse != 0.0 else 0
    return scale


def scale_of_range(w, codes, *, top):
    """Returns the scale and the minimum that give codes from 0 to `top`."""
    low, high = least_and_greatest(w)
    scale = (high - low) / top
    inverse = inverse_of(scale)
    for i in range(32):
        codes[i] = min(truncated((w[i] - low) * inverse + 0.5), top)
    return scale, low


def search_range(w, importance, mean, codes, *, top):
    """Searches for the scale and the minimum for codes from 0 to `top`, and returns them."""
    counts = floats(32)
    count_weights(w, importance, counts, mean)
    scale, low, origin, inverse = best_scale_and_minimum(w, counts, top=top, first=-0.9, delta=0.05, tries=37, absolute=False)
    for i in range(32):
        codes[i] = code_between(inverse * (w[i] - origin), low=0, high=top)
    return scale, low


def pack_halves(codes, qs):
    """Packs the low four bits of each code: the first half as low nibbles, the second as high
    ones."""
    for i in range(len(qs)):
        qs[i] = codes[i] & 15 | (codes[len(qs) + i] & 15) << 4


def fifth_bits(codes):
    """Returns the fifth bit of each of 32 codes."""
    bits = 0
    for i in range(32):
        bits |= (codes[i] >> 4 & 1) << i
    return bits
