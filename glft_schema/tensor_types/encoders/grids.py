"""Searches for scales and grid entries of groups of 16 or 32 weights, as scalar functions.

The search minimizes the sum of ``count * (weight - scale * value)^2`` over a group, for weights
without signs. Given entries, the best scale follows by least squares. Given a scale, weights are
divided by it and rounded to values, the odd numbers 2 * digit + 1, and vectors off the grid move to
a neighbour on it. So the search tries scales that map the largest weight close to the largest
value. The entries for each tried scale give a better scale, and the best scale is kept. Finally,
depending on the type, some entries are chosen again for the best scale.

Source: the quantize functions of ggml-quants.c of llama.cpp; checked against them bit by bit.
"""

from __future__ import annotations

from glft_schema.scalar.language import alone, float32, floats, int32, integers, nearest, root

INF = float("inf")
MOVED = 1 << 16  # the bit of a word whose entry was chosen for a point off the grid
# The vectors whose entries are chosen again for the best scale:
VECTORS_MOVED, GROUPS_MOVED, ALL = range(3)


def search(
    w, counts, scales, entries, signs, indices, starts, candidates,
    *, base, values, group, tries, delta, least, even, fits, again,
):  # fmt: skip
    """Searches for the scales and the entries of a block of weights; counts weight the errors.

    Args:
        scales: gets the scale of each group of weights as a code from 0 to 15.
        entries: gets the index of the entry of each vector of weights.
        signs: gets a bit per weight, eight in each number.
        indices: of the grid, as `starts` and `candidates`, see `neighbours`.
        base: the number of digits, 3 or 8.
        values: per vector, 8 or 4.
        group: the number of weights with one scale.
        tries: the number of scales tried on either side of the first one.
        delta: the difference between tries in the value of the largest weight.
        least: groups whose weights are all smaller become zeros.
        even: whether the number of negative weights in each group of eight is made even, so that
            seven signs imply the eighth.
        fits: whether the first scale is the best one for integer codes; otherwise, it maps the
            largest weight to the largest value.
        again: the vectors whose entries are chosen again.

    Returns d; the scale of a group is d * (2 * code + 1). d is infinite if errors overflow, because
    every trial fails then.
    """
    x, roots, found, words = floats(256), floats(256), floats(256 // group), integers(group // values)
    lost = separate_signs(w, counts, x, signs, even=even)
    for i in range(256):
        roots[i] = root(counts[i])
    largest = float32(0)
    for g in range(256 // group):
        part, counted = x[group * g : group * g + group], counts[group * g : group * g + group]
        peak = part[0]
        for i in range(group):
            peak = max(peak, part[i])
        scale, reach = peak / (2 * base - 1), peak
        if fits and peak >= least:
            scale = scale_of_bytes(part, counted, top=base + 1)
            reach = scale * base
        zeros = peak < least or reach <= 0.0
        if not zeros:
            scale = best_scale(
                part, counted, roots[group * g : group * g + group], scale, reach, words, indices, starts, candidates,
                base=base, values=values, tries=tries, delta=delta, again=again,
            )  # fmt: skip
            found[g] = abs(scale)
            largest = max(largest, abs(scale))
        for v in range(group // values):
            entries[group // values * g + v] = 0 if zeros else index_of(words[v], indices, base=base, values=values)
        for v in range(group // 8):
            at = group // 8 * g + v
            signs[at] = 0 if zeros else signs[at] ^ 255 if scale < 0.0 else signs[at]
    if even and largest == 0.0:  # scales underflowed
        for v in range(len(entries)):
            entries[v] = 0
        for v in range(32):
            signs[v] = 0
    d = (float32(INF) if lost else largest) / 31.0
    inverse = 1.0 / d if d > 0.0 else float32(0)
    for g in range(256 // group):
        scales[g] = odd_digit(found[g] * inverse, top=15)
    return d


def separate_signs(w, counts, x, signs, *, even):
    """Splits weights into absolute values, x, and sign bits. Returns whether the sum of all errors
    overflows.

    If `even`, and the number of negative weights in a group of eight is odd, the sign that matters
    least is flipped. Its weight becomes negative in x.
    """
    total = float32(0)
    for v in range(32):
        bits, negative, least, flipped = 0, 0, float32(INF), 0
        for j in range(8):
            i = 8 * v + j
            x[i] = abs(w[i])
            bits |= int32(w[i] < 0.0) << j
            negative += int32(w[i] < 0.0)
            error = counts[i] * x[i] * x[i]
            total += error
            if error < least:
                least, flipped = error, j
        if even and negative % 2 == 1:
            for j in range(8):
                if j == flipped:
                    bits ^= 1 << j
                    x[8 * v + j] = -x[8 * v + j]
        signs[v] = bits
    return total - total != 0.0


def best_scale(x, counts, roots, scale, reach, words, indices, starts, candidates, *, base, values, tries, delta, again):
    """Searches for the best scale of a group, which it returns, and the entries, as words.

    The trials are centred on the scale that maps `reach` to the largest value. If every trial
    fails, the given scale is kept, with all digits 0.
    """
    tried, best = integers(len(words)), float32(0)
    for v in range(len(words)):
        words[v] = MOVED if again == GROUPS_MOVED else 0
    for n in range(-tries, tries + 1):
        inverse = (float32(n) * delta + (2 * base - 1)) / reach
        for v in range(len(words)):
            vector, vector_roots = x[values * v : values * v + values], roots[values * v : values * v + values]
            tried[v] = best_entry(vector, vector_roots, 1.0 / inverse, inverse, indices, starts, candidates, base=base)
        fit, size = sums(x, counts, tried, values=values)
        if size > 0.0 and fit * fit > best * size:
            scale = fit / size
            best = scale * fit
            for v in range(len(words)):
                words[v] = tried[v]
    chosen = again == ALL
    for v in range(len(words)):
        chosen = chosen or words[v] >= MOVED
    if chosen and scale > 0.0:
        for v in range(len(words)):
            if again != VECTORS_MOVED or words[v] >= MOVED:
                vector, vector_roots = x[values * v : values * v + values], roots[values * v : values * v + values]
                words[v] = best_entry(vector, vector_roots, scale, 1.0 / scale, indices, starts, candidates, base=base)
        fit, size = sums(x, counts, words, values=values)
        if size > 0.0:
            scale = fit / size
    return scale


def best_entry(x, roots, scale, inverse, indices, starts, candidates, *, base):
    """Returns the entry for a vector divided by a scale, as a word, plus MOVED if the point was off
    the grid."""
    point, word = 0, 0
    for n in range(len(x)):
        digit = odd_digit(x[len(x) - 1 - n] * inverse, top=base - 1)
        point, word = base * point + digit, word << 16 // len(x) | digit
    point = min(max(point, 0), len(indices) - 1)
    if indices[point] < 0:
        word = nearest_entry(x, roots, scale, float32(1), point, starts, candidates, step=2) | MOVED
    return word


@alone
def nearest_entry(x, counts, scale, low, point, starts, candidates, *, step):
    """Returns the entry for a point off the grid as a word. Values are step * digit + low.

    The entry is the first candidate with the least sum of count * (scale * value - x)^2.
    """
    least, word, width = float32(INF), 0, 16 // len(x)
    for eight in range(starts[point], starts[point + 1]):
        near, distances = integers(8), floats(8)
        for k in range(8):
            near[k] = candidates[8 * eight + k]
        for k in range(8):  # in this form, C compilers compute all distances at once
            distance = float32(0)
            for j in range(len(x)):
                digit = near[k] >> width * j & (1 << width) - 1
                wrong = scale * (float32(step * digit) + low) - x[j]
                distance += counts[j] * wrong * wrong
            distances[k] = distance
        for k in range(8):
            if distances[k] < least:
                least, word = distances[k], near[k]
    return word


def odd_digit(x, *, top):
    """Returns the digit from 0 to `top` for which 2 * digit + 1 is nearest to x."""
    return min(max(nearest((x - 1.0) * 0.5), 0), top)


def index_of(word, indices, *, base, values):
    """Returns the index in the grid of an entry, given as a word."""
    width, point = 16 // values, 0
    for n in range(values):
        point = base * point + (word >> width * (values - 1 - n) & (1 << width) - 1)
    return max(indices[min(max(point, 0), len(indices) - 1)], 0)


def sums(x, counts, words, *, values):
    """Returns the sums of count * x * value and of count * value^2."""
    width, fit, size = 16 // values, float32(0), float32(0)
    for i in range(len(x)):
        value = float32(2 * (words[i // values] >> width * (i % values) & (1 << width) - 1) + 1)
        fit += counts[i] * x[i] * value
        size += counts[i] * value * value
    return fit, size


def scale_of_bytes(x, counts, *, top):
    """Searches like `searches.scale_of_positives`, but stores negative codes in bytes, as llama.cpp
    does: -1 is read as 255.

    The numbers x are absolute weights, negative if a sign was flipped. A code is added to the sums
    as it is computed, and subtracted as it is read. At least one x is above 0.

    Source: make_qp_quants.
    """
    peak = x[0]
    for i in range(len(x)):
        peak = max(peak, x[i])
    best, least = float32(0), float32(0)
    for n in range(-5, 5):  # -5 stands for the first trial, with 0 tenths
        if n != 0:
            inverse = (float32(0 if n == -5 else n) * 0.1 + top) / peak
            error = float32(0)
            for i in range(len(x)):
                code = nearest(x[i] * inverse)
                wrong = x[i] - float32(code & 255 if n == -5 else min(code, top)) * (1.0 / inverse)
                error += counts[i] * wrong * wrong
            if n == -5 or error < least:
                least, best = error, inverse
    codes, fit, size = integers(len(x)), float32(0), float32(0)
    for i in range(len(x)):
        code = min(nearest(x[i] * best), top)
        fit += counts[i] * x[i] * float32(code)
        size += counts[i] * float32(code) * float32(code)
        codes[i] = code & 255
    for _turn in range(5):
        changed = False
        for i in range(len(x)):
            old = float32(codes[i])
            other_fit, other_size = fit - counts[i] * x[i] * old, size - counts[i] * old * old
            if other_fit > 0.0 and other_size > 0.0:
                new = min(nearest(x[i] * other_size / other_fit), top)
                new_fit = counts[i] * x[i] * float32(new) + other_fit
                new_size = counts[i] * float32(new) * float32(new) + other_size
                if new != codes[i] and new_fit * new_fit * size > fit * fit * new_size:
                    fit, size = new_fit, new_size
                    codes[i] = new & 255
                    changed = True
        if not changed:
            break
    return fit / size if size > 0.0 else float32(0)
