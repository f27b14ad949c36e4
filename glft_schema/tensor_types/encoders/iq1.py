"""Encoders of IQ1_S and IQ1_M, whose values are -1, 0 and 1, shifted by 1/8 up or down.

The search minimizes the same sum as `grids`. With three values, weights in ascending order are best
split into three parts: the first becomes -1, the middle 0, the last 1. So all splits are tried (561
for 32 weights, 153 for 16), each with every shift. Each has a best scale, by least squares; a
negative scale mirrors the values. Only then do vectors off the grid move to it.

Source: the quantize functions of ggml-quants.c of llama.cpp; checked against them bit by bit. C
sorts equal weights in the order of the library's qsort. Here the sort is stable, like glibc's merge
sort.
"""

from __future__ import annotations

from glft_schema.scalar.language import as_bits, float16, float32, floats, int32, integers, nearest
from glft_schema.tensor_types.encoders.grids import INF, index_of, nearest_entry, odd_digit
from glft_schema.tensor_types.encoders.neighbours import IQ1_CANDIDATES, IQ1_INDICES, IQ1_STARTS
from glft_schema.tensor_types.encoders.searches import count_squares, count_weights, mean_square
from glft_schema.tensor_types.grids import IQ1_GRID

LOWEST = -3.4028234663852886e38  # of float32
LEAST_NORMAL = 1 / 16384  # of float16


def to_iq1_s(w, importance, d, qs, qh):
    """Tries 561 splits of 32 weights, each with two shifts.

    Source: quantize_row_iq1_s_impl.
    """
    counts, scales, entries, downs = floats(256), floats(8), integers(32), integers(32)
    count_weights(w, importance, counts, mean_square(w, factor=2))
    largest = search(w, counts, scales, entries, downs, group=32, least=1e-12)
    scale = largest / 15.0
    inverse = 1.0 / scale if scale > 0.0 else float32(0)
    d[0] = scale * 1.125
    for g in range(8):
        word = odd_digit(scales[g] * inverse, top=7) << 12 | (downs[4 * g] << 15 if largest > 0.0 else 0)
        for v in range(4):
            qs[4 * g + v] = entries[4 * g + v]
            word |= entries[4 * g + v] >> 8 << 3 * v
        qh[g] = word


def to_iq1_m(w, qs, qh, scales):
    """Tries 153 splits of 16 weights. Errors count w^2."""
    counts = floats(256)
    count_squares(w, counts)
    search_iq1_m(w, counts, qs, qh, scales)


def to_iq1_m_by_importance(w, importance, qs, qh, scales):
    """153 splits of 16 weights."""
    counts = floats(256)
    count_weights(w, importance, counts, mean_square(w, factor=2))
    search_iq1_m(w, counts, qs, qh, scales)


def search_iq1_m(w, counts, qs, qh, scales):
    """Tries each split with all pairs of shifts, one per half. Then fits d to all values.

    Source: quantize_row_iq1_m_impl.
    """
    found, codes, entries, downs = floats(16), integers(16), integers(32), integers(32)
    largest = search(w, counts, found, entries, downs, group=16, least=1e-7)
    scale = largest / 15.0
    inverse = 1.0 / scale if scale > 0.0 else float32(0)
    fit, size = float32(0), float32(0)
    for g in range(16):
        codes[g] = odd_digit(found[g] * inverse, top=7)
        for i in range(16 * g, 16 * g + 16):
            value = shifted_value(entries, downs, i) * float32(2 * codes[g] + 1)
            fit += counts[i] * value * w[i]
            size += counts[i] * value * value
    if size > 0.0 and largest > 0.0 and scale < INF:  # an infinite scale stays
        scale = fit / size
    bits = bits_of_float16(scale * 1.1125)
    for g in range(16):
        high = entries[2 * g] >> 8 | entries[2 * g + 1] >> 8 << 4
        qh[g] = high | (downs[2 * g] << 3 | downs[2 * g + 1] << 7 if largest > 0.0 else 0)
        qs[2 * g], qs[2 * g + 1] = entries[2 * g], entries[2 * g + 1]
    for n in range(4):
        word = (bits >> 4 * n & 15) << 12
        for g in range(4):
            word |= codes[4 * n + g] << 3 * g
        scales[n] = word


def bits_of_float16(x):
    """Returns the bits of the nearest float16. Subnormal numbers are integers times 2^-24."""
    size, sign = abs(float16(x)), as_bits(x) >> 16 & 0x8000
    normal = min((as_bits(size) >> 13) - 0x1C000, 0x7C00)  # the exponent of 1 is 15 instead of 127
    return sign | (normal if size >= LEAST_NORMAL else nearest(size * 16777216.0))


def search(w, counts, scales, entries, downs, *, group, least):
    """Searches for the scales and the entries of a block of weights; counts weight the errors.

    Args:
        scales: gets the scale of each group of weights, which is not negative.
        entries: gets the index of the entry of each vector of eight weights.
        downs: gets 1 for each vector whose values are shifted down, else 0.
        group: the number of weights with one scale: 32 with one shift, or 16 with one per half.
        least: groups whose weights are all smaller become zeros.

    Returns the largest scale. It is infinite if errors or a scale overflow.
    """
    largest, total = float32(0), float32(0)
    for g in range(256 // group):
        x, counted = w[group * g : group * g + group], counts[group * g : group * g + group]
        products, ranks = floats(group), integers(group)
        peak, first, second, shift, scale = float32(0), -1, 0, 0, float32(0)
        for i in range(group):
            peak = max(peak, abs(x[i]))
            products[i] = counted[i] * x[i]
            total += products[i] * x[i]
        if peak >= least:
            rank(x, ranks)
            if group == 32:
                first, second, shift, scale = best_split(products, counted, ranks)
            else:
                first, second, shift, scale = best_split_of_halves(products, counted, ranks)
        if first >= 0:
            if scale < 0.0:
                shift ^= 1 if group == 32 else 3
            moved = False
            for v in range(group // 8):
                point, down = 0, shift if group == 32 else shift >> 1 - v & 1
                for j in range(8):
                    digit = int32(ranks[8 * v + 7 - j] >= first) + int32(ranks[8 * v + 7 - j] >= second)
                    point = 3 * point + (2 - digit if scale < 0.0 else digit)
                point = min(max(point, 0), len(IQ1_INDICES) - 1)
                entry = IQ1_INDICES[point]
                if entry < 0:
                    low, vector, vector_counts = middle_of(down) - 1.0, x[8 * v : 8 * v + 8], counted[8 * v : 8 * v + 8]
                    word = nearest_entry(vector, vector_counts, abs(scale), low, point, IQ1_STARTS, IQ1_CANDIDATES, step=1)
                    entry = index_of(word, IQ1_INDICES, base=3, values=8)
                    moved = True
                entries[group // 8 * g + v], downs[group // 8 * g + v] = entry, down
            scales[g] = abs(scale)
            if moved:
                fit, size = float32(0), float32(0)
                for i in range(group):
                    value = shifted_value(entries, downs, group * g + i)
                    fit += counted[i] * value * x[i]
                    size += counted[i] * value * value
                if fit > 0.0 and size > 0.0:
                    scales[g] = fit / size
            largest = max(largest, scales[g])
            total += 0.0 * scales[g]  # NaN if the scale is not finite
    return float32(INF) if total - total != 0.0 else largest


def rank(x, ranks):
    """Sets the rank of each weight in ascending order. Equal weights keep their order."""
    for i in range(len(x)):
        before = 0
        for j in range(len(x)):
            before += int32(x[j] <= x[i] if j < i else x[j] < x[i])
        ranks[i] = before


def add_up(numbers, ranks, sums):
    """Sets sums[n] to the sum of the numbers with ranks below n, added in the order of ranks."""
    ordered = floats(len(sums))
    for i in range(len(numbers)):
        ordered[min(max(ranks[i], 0), len(sums) - 1)] = numbers[i]
    for n in range(len(sums) - 1):
        sums[n + 1] = sums[n] + ordered[n]


def middle_of(down):
    """Returns the middle one of the three values."""
    return 0.125 - 0.25 * float32(down)


def best_split(products, counts, ranks):
    """Searches for the best split of 32 weights with one shift, up (0) or down (1). Products are
    counts times weights.

    Returns the number of weights in the first part (-1 if every split fails), the number in the
    first two parts, the shift, and the scale.
    """
    sum_x, sum_1 = floats(33), floats(33)
    add_up(products, ranks, sum_x)
    add_up(counts, ranks, sum_1)
    first_part, two_parts, shift, scale, gain = -1, 0, 0, float32(0), float32(LOWEST)
    for first in range(33):
        for second in range(first, 33):
            for down in range(2):
                middle = middle_of(down)
                low, high = middle - 1.0, middle + 1.0
                fit = sum_x[first] * low + (sum_x[second] - sum_x[first]) * middle + (sum_x[32] - sum_x[second]) * high
                size = sum_1[first] * low * low + (sum_1[second] - sum_1[first]) * middle * middle
                size += (sum_1[32] - sum_1[second]) * high * high
                if size > 0.0 and fit * fit > gain * size:
                    first_part, two_parts, shift, scale = first, second, down, fit / size
                    gain = scale * fit
    return first_part, two_parts, shift, scale


def best_split_of_halves(products, counts, ranks):
    """Searches for the best split of 16 weights with a shift for each half.

    Returns the same as `best_split`. The shift combines both halves: 2 * first + second.
    """
    sum_x, sum_1, other_x, other_1 = floats(17), floats(17), floats(17), floats(17)
    add_up(products[0:8], ranks[0:8], sum_x)
    add_up(counts[0:8], ranks[0:8], sum_1)
    add_up(products[8:16], ranks[8:16], other_x)
    add_up(counts[8:16], ranks[8:16], other_1)
    fits, sizes = floats(4), floats(4)  # for each half, shifted up and down
    first_part, two_parts, shift, scale, gain = -1, 0, 0, float32(0), float32(LOWEST)
    for first in range(17):
        for second in range(first, 17):
            for down in range(2):
                middle = middle_of(down)
                low, high = middle - 1.0, middle + 1.0
                fits[down] = sum_x[16] * high - (sum_x[first] + sum_x[second])  # as values are 1 apart
                fits[2 + down] = other_x[16] * high - (other_x[first] + other_x[second])
                from_low, from_middle = low * low - middle * middle, middle * middle - high * high
                sizes[down] = sum_1[16] * high * high + sum_1[first] * from_low + sum_1[second] * from_middle
                sizes[2 + down] = other_1[16] * high * high + other_1[first] * from_low + other_1[second] * from_middle
            for downs in range(4):
                fit, size = fits[downs // 2] + fits[2 + downs % 2], sizes[downs // 2] + sizes[2 + downs % 2]
                if size > 0.0 and fit * fit > gain * size:
                    first_part, two_parts, shift, scale = first, second, downs, fit / size
                    gain = scale * fit
    return first_part, two_parts, shift, scale


def shifted_value(entries, downs, i):
    """Returns the value of weight i."""
    return float32(IQ1_GRID[8 * (entries[i // 8] & 2047) + i % 8]) + middle_of(downs[i // 8])
