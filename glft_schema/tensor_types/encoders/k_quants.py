"""Encoders of ggml's k-quants, as scalar functions of one block.

They search for the scale of each group, and its minimum if the type has minima. Then the scales of
the block are stored as multiples of a step, d. With an importance, d is also fitted, except for
Q6_K. Finally, codes are computed from the scales as stored; if a scale is stored as 0, the codes of
the search are kept.

If a scale is not finite, or an error overflows, d is infinite, so that the block is refused.
llama.cpp stores other numbers then.

Source: ggml-quants.c of llama.cpp, quantize_row_q4_K_ref, quantize_row_q4_K_impl and their
counterparts for other types; checked against it bit by bit.
"""

from __future__ import annotations

from glft_schema.scalar.language import float16, float32, floats, integers, root
from glft_schema.tensor_types.encoders.searches import (
    TINY,
    code_between,
    count_squares,
    count_weights,
    farthest,
    mean_square,
    range_and_codes,
    scale_and_codes,
    scale_by_single_codes,
    scale_of_positives,
)

INFINITY = float("inf")


# Types with scales and minima


def to_q2_k(w, scales, qs, d, dmin):
    """Groups of 16, scales and minima of 4 bits. Minimizes the sum of |w| * |error|."""
    counts = floats(256)
    for i in range(256):
        counts[i] = abs(w[i])
    d[0], dmin[0] = encode_q2(w, counts, scales, qs, first=-0.5, delta=0.1, tries=16, absolute=True, fitted=False)


def to_q2_k_by_importance(w, importance, scales, qs, d, dmin):
    """Minimizes the sum of importance * sqrt(mean w^2 + w^2) * error^2, with the block's mean."""
    counts = floats(256)
    count_weights(w, importance, counts, mean_square(w))
    d[0], dmin[0] = encode_q2(w, counts, scales, qs, first=-0.9, delta=0.05, tries=37, absolute=False, fitted=True)


def encode_q2(w, counts, scales, qs, *, first, delta, tries, absolute, fitted):
    """Stores codes, scales and minima. Returns d and dmin."""
    codes, steps, low_steps = integers(256), integers(16), integers(16)
    d, dmin = encode_ranges(
        w, counts, codes, steps, low_steps,
        size=16, top=3, last=15, first=first, delta=delta, tries=tries, absolute=absolute, fitted=fitted,
    )  # fmt: skip
    for g in range(16):
        scales[g] = steps[g] | low_steps[g] << 4
    pack(codes, qs, width=2)
    return d, dmin


def to_q4_k(w, d, dmin, scales, qs):
    """Groups of 32, scales and minima of 6 bits. Minimizes the sum of
    (sqrt(mean w^2) + |w|) * error^2, with the group's mean."""
    counts, codes = floats(256), integers(256)
    count_by_groups(w, counts)
    d[0], dmin[0] = encode_in_32s(w, counts, codes, scales, top=15, first=-1.0, delta=0.1, tries=21, fitted=False)
    pack(codes, qs, width=4)


def to_q4_k_by_importance(w, importance, d, dmin, scales, qs):
    """Minimizes the sum of importance * sqrt(2 mean w^2 + w^2) * error^2, with the block's mean."""
    counts, codes = floats(256), integers(256)
    count_weights(w, importance, counts, mean_square(w, factor=2))
    d[0], dmin[0] = encode_in_32s(w, counts, codes, scales, top=15, first=-0.9, delta=0.05, tries=37, fitted=True)
    pack(codes, qs, width=4)


def to_q5_k(w, d, dmin, scales, qh, qs):
    """Like Q4_K."""
    counts, codes = floats(256), integers(256)
    count_by_groups(w, counts)
    d[0], dmin[0] = encode_in_32s(w, counts, codes, scales, top=31, first=-0.5, delta=0.1, tries=16, fitted=False)
    pack(codes, qh, width=1, shift=4)
    pack(codes, qs, width=4)


def to_q5_k_by_importance(w, importance, d, dmin, scales, qh, qs):
    """Like Q4_K."""
    counts, codes = floats(256), integers(256)
    count_weights(w, importance, counts, mean_square(w, factor=2))
    d[0], dmin[0] = encode_in_32s(w, counts, codes, scales, top=31, first=-0.9, delta=0.05, tries=37, fitted=True)
    pack(codes, qh, width=1, shift=4)
    pack(codes, qs, width=4)


def count_by_groups(w, counts):
    """Sets each count to sqrt(mean w^2) + |w|, with the mean of 32 weights."""
    for g in range(8):
        size = root(mean_square(w[32 * g : 32 * g + 32]))
        for i in range(32):
            counts[32 * g + i] = size + abs(w[32 * g + i])


def encode_in_32s(w, counts, codes, scales, *, top, first, delta, tries, fitted):
    """Computes codes, and stores scales and minima, in the order that `scale_and_minimum` of the
    decoders reads. Returns d and dmin."""
    steps, low_steps = integers(8), integers(8)
    d, dmin = encode_ranges(
        w, counts, codes, steps, low_steps,
        size=32, top=top, last=63, first=first, delta=delta, tries=tries, absolute=False, fitted=fitted,
    )  # fmt: skip
    for g in range(4):
        scales[g] = steps[g] | steps[g + 4] >> 4 << 6
        scales[g + 4] = low_steps[g] | low_steps[g + 4] >> 4 << 6
        scales[g + 8] = steps[g + 4] & 15 | (low_steps[g + 4] & 15) << 4
    return d, dmin


def encode_ranges(w, counts, codes, steps, low_steps, *, size, top, last, first, delta, tries, absolute, fitted):
    """Searches for the scales and minima of groups of `size` weights, and stores them as `steps` of
    d and `low_steps` of dmin, from 0 to `last`. Computes codes from 0 to `top`.

    If `fitted`, d and dmin minimize the errors of scales and minima, each weighted by the sum of
    its group's counts; otherwise, the greatest scale and the greatest minimum are `last` steps.
    Returns d and dmin.
    """
    scales, minima, sums, lost = floats(256 // size), floats(256 // size), floats(256 // size), False
    for g in range(256 // size):
        x, count, code = w[size * g : size * g + size], counts[size * g : size * g + size], codes[size * g : size * g + size]
        scale, low = range_and_codes(x, count, code, top=top, first=first, delta=delta, tries=tries, absolute=absolute)
        scales[g], minima[g] = scale, -low
        error = float32(0)  # of zeros
        for i in range(size):
            sums[g] += count[i]
            error += count[i] * x[i] * x[i]
        lost = lost or not abs(error) < INFINITY
    if fitted:
        step, low_step = (
            scale_of_positives(scales, sums, steps, top=last),
            scale_of_positives(minima, sums, low_steps, top=last),
        )
        step = float32(INFINITY) if lost else step  # no trial has succeeded
    else:
        step, low_step = positive_steps(scales, steps, last=last), positive_steps(minima, low_steps, last=last)
    d, dmin = float16(step), float16(low_step)
    for g in range(256 // size):
        x, code = w[size * g : size * g + size], codes[size * g : size * g + size]
        round_codes(x, code, d * float32(steps[g]), dmin * float32(low_steps[g]), low=0, high=top)
    return d, dmin


def positive_steps(x, steps, *, last):
    """Stores numbers as `steps` from 0 to `last`: the greatest number as `last`, negative numbers
    as 0. Returns the step."""
    greatest = float32(0)
    for g in range(len(x)):
        greatest = max(greatest, x[g])
    inverse = last / greatest if greatest != 0.0 else float32(0)
    for g in range(len(x)):
        steps[g] = code_between(inverse * x[g], low=0, high=last)
    return greatest / last


# Types with scales only


def to_q3_k(w, hmask, qs, scales, d):
    """Groups of 16, scales of 6 bits; the scale farthest from zero is stored as -32. Minimizes the
    sum of w^2 * error^2."""
    found, codes, steps = floats(16), integers(256), integers(16)
    for g in range(16):
        found[g] = scale_by_single_codes(w[16 * g : 16 * g + 16], codes[16 * g : 16 * g + 16], top=4)
    step = signed_steps(found, steps, last=32, tiny=0.0)
    if step == 0.0:
        for g in range(16):
            steps[g] = -32
    d[0] = finish_q3(w, found, codes, step, steps, hmask, qs, scales)


def to_q3_k_by_importance(w, importance, hmask, qs, scales, d):
    """Minimizes the sum of importance * sqrt(2 mean w^2 + w^2) * error^2, with the block's mean.
    The error of a scale is weighted by the sum of its group's counts."""
    found, codes, steps, counts, sums = floats(16), integers(256), integers(16), floats(256), floats(16)
    count_weights(w, importance, counts, mean_square(w, factor=2))
    for g in range(16):
        x, count, code = w[16 * g : 16 * g + 16], counts[16 * g : 16 * g + 16], codes[16 * g : 16 * g + 16]
        found[g] = scale_and_codes(x, count, code, top=4)
        for i in range(16):
            sums[g] += count[i]
    step = scale_and_codes(found, sums, steps, top=32)
    d[0] = finish_q3(w, found, codes, step, steps, hmask, qs, scales)


def finish_q3(w, found, codes, step, steps, hmask, qs, scales):
    """Stores codes and scales, whose high two bits are in the last four bytes. Returns d."""
    d = round_signed(w, found, codes, step, steps, top=4)
    for g in range(16):
        steps[g] += 32
    for g in range(8):
        scales[g] = steps[g] & 15 | (steps[g + 8] & 15) << 4
    for g in range(4):
        scales[g + 8] = steps[g] >> 4 | steps[g + 4] >> 4 << 2 | steps[g + 8] >> 4 << 4 | steps[g + 12] >> 4 << 6
    pack(codes, hmask, width=1, shift=2)
    pack(codes, qs, width=2)
    return d


def to_q6_k(w, ql, qh, scales, d):
    """Groups of 16, scales of 8 bits; the scale farthest from zero is stored as -128. Minimizes the
    sum of w^2 * error^2."""
    counts = floats(256)
    count_squares(w, counts)
    d[0] = encode_q6(w, counts, ql, qh, scales)


def to_q6_k_by_importance(w, importance, ql, qh, scales, d):
    """Minimizes the sum of importance * error^2."""
    d[0] = encode_q6(w, importance, ql, qh, scales)


def encode_q6(w, counts, ql, qh, scales):
    """Stores codes and scales, and returns d. If all scales are tiny, all bytes are 0."""
    found, codes, steps = floats(16), integers(256), integers(16)
    for g in range(16):
        x, count, code = w[16 * g : 16 * g + 16], counts[16 * g : 16 * g + 16], codes[16 * g : 16 * g + 16]
        found[g] = scale_and_codes(x, count, code, top=32)
    step = signed_steps(found, steps, last=128, tiny=TINY)
    d = round_signed(w, found, codes, step, steps, top=32)
    for g in range(16):
        scales[g] = steps[g]
    for i in range(256):
        codes[i] = codes[i] if step != 0.0 else 0
    pack(codes, ql, width=4, apart=64)
    pack(codes, qh, width=2, shift=4)
    return d


def signed_steps(x, steps, *, last, tiny):
    """Stores numbers as `steps` from -last to last - 1; the number farthest from zero becomes
    -last. Returns the step. If all numbers are 0 or below `tiny`, the step and the steps are 0."""
    peak = farthest(x)
    inverse = -last / peak if abs(peak) >= tiny and peak != 0.0 else float32(0)
    for g in range(len(x)):
        steps[g] = code_between(inverse * x[g], low=-last, high=last - 1)
    return 1.0 / inverse if inverse != 0.0 else float32(0)


def round_signed(w, found, codes, step, steps, *, top):
    """Computes the codes plus `top` for scales as stored. Returns d, which is infinite if a scale
    in `found` is not finite."""
    finite = True
    for g in range(16):
        finite = finite and abs(found[g]) < INFINITY
    d = float16(step if finite else float32(INFINITY))
    for g in range(16):
        x, code = w[16 * g : 16 * g + 16], codes[16 * g : 16 * g + 16]
        round_codes(x, code, d * float32(steps[g]), float32(0), low=-top, high=top - 1)
    for i in range(256):
        codes[i] += top
    return d


def to_q8_k(w, d, qs, bsums):
    """d maps the weight farthest from zero to the code -127. If 1 / d overflows, all codes are 0;
    llama.cpp multiplies by infinity."""
    peak = farthest(w)
    inverse = -127 / peak if peak != 0.0 else float32(0)
    d[0] = 1.0 / inverse if peak != 0.0 else float32(0)
    inverse = inverse if abs(inverse) < INFINITY else float32(0)
    for g in range(16):
        total = 0
        for i in range(16):
            code = code_between(inverse * w[16 * g + i], low=-127, high=127)
            qs[16 * g + i] = code
            total += code
        bsums[g] = total


# Codes of all types


def round_codes(x, codes, scale, minimum, *, low, high):
    """Computes the codes of a group, unless rounding has made its scale 0."""
    if scale != 0.0:
        for i in range(len(x)):
            codes[i] = code_between((x[i] + minimum) / scale, low=low, high=high)


def pack(codes, packed, *, width, shift=0, apart=32):
    """Packs `width` bits of each code, from bit `shift` on. A byte holds the bits of codes that are
    `apart` positions apart, the first in its lowest bits."""
    for h in range(32 * width // apart):
        for i in range(apart):
            byte = 0
            for k in range(8 // width):
                byte |= (codes[(8 // width * h + k) * apart + i] >> shift & (1 << width) - 1) << width * k
            packed[apart * h + i] = byte
