"""Encoders of ggml's k-quants, as scalar functions of one block.

They search for the scale of each group, and then for d, the step in which the block stores these
scales. Last, codes are computed from the scales as stored. If a scale is stored as 0, the group
keeps the codes of its search. The encoders by importance weight errors by it, and fit d, too.

If a scale or an error overflows, d is stored as infinity, so that the block is refused.

Source: ggml-quants.c of llama.cpp, quantize_row_q4_K_ref and quantize_row_q4_K_impl and their like
for the other types; checked against it bit by bit.
"""

from __future__ import annotations

from glft_schema.scalar.language import float16, float32, floats, integers, root
from glft_schema.tensor_types.encoders.searches import (
    TINY,
    code_between,
    count_weights,
    farthest,
    mean_square,
    scale_alone,
    scale_and_minimum,
    scale_by_single_codes,
    scale_of_positives,
)

INFINITY = float("inf")


def to_q2_k(w, scales, qs, d, dmin):
    """Scales and minima of 16 weights, in 15 steps. Minimizes the sum of |w| * |error|."""
    counts, codes, steps, low_steps = floats(256), integers(256), integers(16), integers(16)
    for i in range(256):
        counts[i] = abs(w[i])
    d[0], dmin[0] = encode_ranges(
        w, counts, codes, steps, low_steps, size=16, top=3, last=15, first=-0.5, tries=16, absolute=True
    )
    pack_q2_k(codes, steps, low_steps, scales, qs)


def to_q2_k_by_importance(w, importance, scales, qs, d, dmin):
    """Minimizes the sum of importance * sqrt(mean w^2 + w^2) * error^2."""
    counts, codes, steps, low_steps = floats(256), integers(256), integers(16), integers(16)
    count_weights(w, importance, counts, mean_square(w))
    d[0], dmin[0] = encode_ranges_by_counts(w, counts, codes, steps, low_steps, size=16, top=3, last=15)
    pack_q2_k(codes, steps, low_steps, scales, qs)


def pack_q2_k(codes, steps, low_steps, scales, qs):
    for g in range(16):
        scales[g] = steps[g] | low_steps[g] << 4
    pack(codes, qs, width=2)


def to_q3_k(w, hmask, qs, scales, d):
    """Scales of 16 weights, of which the farthest from zero is -32 * d.

    Minimizes the sum of w^2 * error^2.
    """
    found, codes, steps = floats(16), integers(256), integers(16)
    for g in range(16):
        found[g] = scale_by_single_codes(w[16 * g : 16 * g + 16], codes[16 * g : 16 * g + 16], top=4)
    step = signed_steps(found, steps, last=32, tiny=0.0)
    if step == 0.0:
        for g in range(16):
            steps[g] = -32
    d[0] = finish_q3_k(w, found, codes, step, steps, hmask, qs, scales)


def to_q3_k_by_importance(w, importance, hmask, qs, scales, d):
    """Minimizes the sum of importance * sqrt(2 * mean w^2 + w^2) * error^2."""
    found, codes, steps, counts, sums = floats(16), integers(256), integers(16), floats(256), floats(16)
    count_weights(w, importance, counts, mean_square(w, factor=2))
    for g in range(16):
        group = counts[16 * g : 16 * g + 16]
        found[g] = scale_and_codes(w[16 * g : 16 * g + 16], group, codes[16 * g : 16 * g + 16], top=4)
        sums[g] = sum_of(group)
    step = scale_and_codes(found, sums, steps, top=32)
    d[0] = finish_q3_k(w, found, codes, step, steps, hmask, qs, scales)


def finish_q3_k(w, found, codes, step, steps, hmask, qs, scales):
    """Computes the codes and packs them, and the scales. Returns d.

    Scale g has four low bits in byte g % 8, and two high bits in byte 8 + g % 4.
    """
    d = float16(step if all_finite(found) else float32(INFINITY))
    for g in range(16):
        round_codes(w[16 * g : 16 * g + 16], codes[16 * g : 16 * g + 16], d * float32(steps[g]), float32(0), low=-4, high=3)
    for i in range(256):
        codes[i] += 4
    for g in range(16):
        steps[g] += 32
    for g in range(8):
        scales[g] = steps[g] & 15 | (steps[g + 8] & 15) << 4
    for g in range(4):
        scales[g + 8] = steps[g] >> 4 | steps[g + 4] >> 4 << 2 | steps[g + 8] >> 4 << 4 | steps[g + 12] >> 4 << 6
    pack(codes, hmask, width=1, shift=2)
    pack(codes, qs, width=2)
    return d


def to_q4_k(w, d, dmin, scales, qs):
    """Scales and minima of 32 weights, in 63 steps.

    Minimizes the sum of (|w| + sqrt(mean w^2)) * error^2, with the mean of the group.
    """
    codes = integers(256)
    d[0], dmin[0] = encode_six_bits(w, codes, scales, top=15, first=-1.0, tries=21)
    pack(codes, qs, width=4)


def to_q4_k_by_importance(w, importance, d, dmin, scales, qs):
    """Minimizes the sum of importance * sqrt(2 * mean w^2 + w^2) * error^2."""
    codes = integers(256)
    d[0], dmin[0] = encode_six_bits_by_importance(w, importance, codes, scales, top=15)
    pack(codes, qs, width=4)


def to_q5_k(w, d, dmin, scales, qh, qs):
    """Like Q4_K."""
    codes = integers(256)
    d[0], dmin[0] = encode_six_bits(w, codes, scales, top=31, first=-0.5, tries=16)
    pack(codes, qh, width=1, shift=4)
    pack(codes, qs, width=4)


def to_q5_k_by_importance(w, importance, d, dmin, scales, qh, qs):
    """Like Q4_K."""
    codes = integers(256)
    d[0], dmin[0] = encode_six_bits_by_importance(w, importance, codes, scales, top=31)
    pack(codes, qh, width=1, shift=4)
    pack(codes, qs, width=4)


def encode_six_bits(w, codes, scales, *, top, first, tries):
    """Q4_K and Q5_K: computes codes, stores scales and minima, and returns d and dmin."""
    counts, steps, low_steps = floats(256), integers(8), integers(8)
    for g in range(8):
        deviation = root(mean_square(w[32 * g : 32 * g + 32]))
        for i in range(32):
            counts[32 * g + i] = deviation + abs(w[32 * g + i])
    d, dmin = encode_ranges(
        w, counts, codes, steps, low_steps, size=32, top=top, last=63, first=first, tries=tries, absolute=False
    )
    pack_six_bits(steps, low_steps, scales)
    return d, dmin


def encode_six_bits_by_importance(w, importance, codes, scales, *, top):
    counts, steps, low_steps = floats(256), integers(8), integers(8)
    count_weights(w, importance, counts, mean_square(w, factor=2))
    d, dmin = encode_ranges_by_counts(w, counts, codes, steps, low_steps, size=32, top=top, last=63)
    pack_six_bits(steps, low_steps, scales)
    return d, dmin


def pack_six_bits(steps, low_steps, scales):
    """The inverse of `scale_and_minimum` of the decoders, for all groups."""
    for g in range(4):
        scales[g] = steps[g] | steps[g + 4] >> 4 << 6
        scales[g + 4] = low_steps[g] | low_steps[g + 4] >> 4 << 6
        scales[g + 8] = steps[g + 4] & 15 | (low_steps[g + 4] & 15) << 4


def to_q6_k(w, ql, qh, scales, d):
    """Scales of 16 weights, of which the farthest from zero is -128 * d.

    Minimizes the sum of w^2 * error^2.
    """
    counts = floats(256)
    for i in range(256):
        counts[i] = w[i] * w[i]
    d[0] = quantize_q6_k(w, counts, ql, qh, scales)


def to_q6_k_by_importance(w, importance, ql, qh, scales, d):
    """Minimizes the sum of importance * error^2."""
    d[0] = quantize_q6_k(w, importance, ql, qh, scales)


def quantize_q6_k(w, counts, ql, qh, scales):
    """Stores codes and scales, and returns d. If all scales are tiny, all bytes are 0."""
    found, codes, steps = floats(16), integers(256), integers(16)
    for g in range(16):
        found[g] = scale_and_codes(w[16 * g : 16 * g + 16], counts[16 * g : 16 * g + 16], codes[16 * g : 16 * g + 16], top=32)
    step = signed_steps(found, steps, last=128, tiny=TINY)
    d = float16(step if all_finite(found) else float32(INFINITY))
    for g in range(16):
        round_codes(w[16 * g : 16 * g + 16], codes[16 * g : 16 * g + 16], d * float32(steps[g]), float32(0), low=-32, high=31)
        scales[g] = steps[g]
    for i in range(256):
        codes[i] = codes[i] + 32 if step != 0.0 else 0
    pack(codes, ql, width=4, apart=64)
    pack(codes, qh, width=2, shift=4)
    return d


def to_q8_k(w, d, qs, bsums):
    """d gives the weight farthest from zero the code -127. If 127 / w overflows, all codes are 0."""
    peak = farthest(w)
    inverse = -127 / peak if peak != 0.0 else float32(0)
    d[0] = 1.0 / inverse if peak != 0.0 else float32(0)
    if abs(inverse) == INFINITY:
        inverse = float32(0)
    for g in range(16):
        codes_sum = 0
        for i in range(16):
            code = code_between(inverse * w[16 * g + i], low=-127, high=127)
            qs[16 * g + i] = code
            codes_sum += code
        bsums[g] = codes_sum


# Scales and minima: weights are scale * code - minimum.


def encode_ranges(w, counts, codes, steps, low_steps, *, size, top, last, first, tries, absolute):
    """Searches for scales and minima of groups of `size` weights. Computes the codes from 0 to
    `top`, and the scales and minima from 0 to `last`. Returns d and dmin."""
    found, low_found = floats(256 // size), floats(256 // size)
    for g in range(256 // size):
        x, count, code = w[size * g : size * g + size], counts[size * g : size * g + size], codes[size * g : size * g + size]
        found[g], low_found[g] = range_and_codes(
            x, count, code, top=top, first=first, delta=0.1, tries=tries, absolute=absolute
        )
    d, dmin = float16(positive_steps(found, steps, last=last)), float16(positive_steps(low_found, low_steps, last=last))
    round_ranges(w, codes, d, dmin, steps, low_steps, size=size, top=top)
    return d, dmin


def encode_ranges_by_counts(w, counts, codes, steps, low_steps, *, size, top, last):
    """Like `encode_ranges`, with more trials, and d and dmin that leave the least error. The error
    of a scale or a minimum counts the sum of its group."""
    found, low_found, sums = floats(256 // size), floats(256 // size), floats(256 // size)
    lost = False
    for g in range(256 // size):
        x, count, code = w[size * g : size * g + size], counts[size * g : size * g + size], codes[size * g : size * g + size]
        found[g], low_found[g] = range_and_codes(x, count, code, top=top, first=-0.9, delta=0.05, tries=37, absolute=False)
        sums[g] = sum_of(count)
        energy = float32(0)
        for i in range(size):
            energy += count[i] * x[i] * x[i]
        lost = lost or not is_finite(energy)  # errors overflowed, so that every trial failed
    step, low_step = scale_of_positives(found, sums, steps, top=last), scale_of_positives(low_found, sums, low_steps, top=last)
    d, dmin = float16(float32(INFINITY) if lost else step), float16(low_step)
    round_ranges(w, codes, d, dmin, steps, low_steps, size=size, top=top)
    return d, dmin


def range_and_codes(x, counts, codes, *, top, first, delta, tries, absolute):
    """Returns the scale and the minimum that `scale_and_minimum` finds, and computes the codes."""
    scale, low, origin, inverse = scale_and_minimum(
        x, counts, top=top, first=first, delta=delta, tries=tries, absolute=absolute
    )
    for i in range(len(x)):
        codes[i] = code_between(inverse * (x[i] - origin), low=0, high=top)
    return scale, -low


def positive_steps(x, steps, *, last):
    """Stores numbers as multiples, 0 to `last`, of a step, which is returned. The greatest is
    `last` steps, and negative numbers are 0."""
    greatest = float32(0)
    for g in range(len(x)):
        greatest = max(greatest, x[g])
    inverse = last / greatest if greatest != 0.0 else float32(0)
    for g in range(len(x)):
        steps[g] = code_between(inverse * x[g], low=0, high=last)
    return greatest / last


def round_ranges(w, codes, d, dmin, steps, low_steps, *, size, top):
    """Computes the codes for scales and minima as stored."""
    for g in range(256 // size):
        scale, minimum = d * float32(steps[g]), dmin * float32(low_steps[g])
        round_codes(w[size * g : size * g + size], codes[size * g : size * g + size], scale, minimum, low=0, high=top)


# Scales alone.


def scale_and_codes(x, counts, codes, *, top):
    """Returns the scale that `scale_alone` finds, and computes the codes; -top for zeros."""
    scale, inverse = scale_alone(x, counts, top=top)
    for i in range(len(x)):
        codes[i] = code_between(inverse * x[i], low=-top, high=top - 1) if inverse != 0.0 else -top
    return scale


def signed_steps(x, steps, *, last, tiny):
    """Stores numbers as multiples, -last to last - 1, of a step, which is returned. The farthest
    from zero is -last steps. If all are below `tiny` or 0, the step and the multiples are 0."""
    peak = farthest(x)
    inverse = -last / peak if abs(peak) >= tiny and peak != 0.0 else float32(0)
    for g in range(len(x)):
        steps[g] = code_between(inverse * x[g], low=-last, high=last - 1)
    return 1.0 / inverse if inverse != 0.0 else float32(0)


# Codes of both.


def round_codes(x, codes, scale, minimum, *, low, high):
    """Computes the codes of a group, unless rounding has made its scale 0."""
    if scale != 0.0:
        for i in range(len(x)):
            codes[i] = code_between((x[i] + minimum) / scale, low=low, high=high)


def pack(codes, packed, *, width, shift=0, apart=32):
    """Packs `width` bits of each code, from bit `shift` on. The weights of a byte are `apart`."""
    for h in range(32 * width // apart):
        for i in range(apart):
            byte = 0
            for k in range(8 // width):
                byte |= (codes[(8 // width * h + k) * apart + i] >> shift & (1 << width) - 1) << width * k
            packed[apart * h + i] = byte


def sum_of(x):
    """Returns the sum, added in order."""
    total = float32(0)
    for i in range(len(x)):
        total += x[i]
    return total


def all_finite(x):
    """Tells whether no number is infinite or NaN."""
    finite = True
    for i in range(len(x)):
        finite = finite and is_finite(x[i])
    return finite


def is_finite(x):
    """Tells whether a number is not infinite and not NaN."""
    return abs(x) < INFINITY
