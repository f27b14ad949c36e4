"""Arithmetic of encoders, and searches for the scale of a group of weights, or its scale and
minimum, as scalar functions.

A scale determines codes, by division and rounding, and codes determine the best scale, by least
squares. There is no closed form for the best pair. So a few scales are tried: the codes of each
give a better scale, and the one with the smallest error is kept. Some searches then change single
codes. Counts weight the errors.

Source: ggml-quants.c of llama.cpp, whose functions (named in each search) the searches follow
operation by operation; the encoders that use them are checked against it bit by bit.
"""

from __future__ import annotations

from glft_schema.scalar.language import as_bits, as_float, float32, floats, nearest, root, truncated

BELOW_HALF = 0.5 - 2.0**-25  # the largest float32 below a half
TINY = 1e-15  # groups whose weights are all smaller are stored as zeros, in searches without a minimum


def largest(x):
    """Returns max |x|. Floats that are not negative have the order of their bits, and compilers
    reorder reductions of integers only."""
    peak = 0
    for i in range(len(x)):
        peak = max(peak, as_bits(x[i]) & 0x7FFFFFFF)
    return as_float(peak)


def farthest(x):
    """Returns the (first) number farthest from zero, 0 rather than -0."""
    peak = float32(0)
    for i in range(len(x)):
        peak = x[i] if abs(x[i]) > abs(peak) else peak
    return peak


def least_and_greatest(x):
    """Returns min x and max x, the first one if several are equal, as 0 and -0 are."""
    low, high = x[0], x[0]
    for i in range(len(x)):
        low, high = min(low, x[i]), max(high, x[i])
    return low, high


def inverse_of(d):
    """Returns 1 / d, or 0 if d is 0."""
    return 1.0 / d if d != 0.0 else float32(0)


def away_from_zero(x):
    """Rounds to int32, halves away from zero, like C's roundf."""
    return truncated(x + BELOW_HALF if x > 0.0 else x - BELOW_HALF)


def count_squares(w, counts):
    """Sets each count to w^2."""
    for i in range(len(w)):
        counts[i] = w[i] * w[i]


def count_weights(w, importance, counts, mean):
    """Sets each count to importance * sqrt(mean + w^2)."""
    for i in range(len(counts)):
        counts[i] = importance[i] * root(mean + w[i] * w[i])


def mean_square(w, *, factor=1):
    """Returns the mean of w^2, added in order, times a factor."""
    total = float32(0)
    for i in range(len(w)):
        total += w[i] * w[i]
    return total * factor / len(w)


def code_between(x, *, low, high):
    """Rounds to an integer from `low` to `high`."""
    return min(max(nearest(x), low), high)


def best_scale_and_minimum(x, counts, *, top, first, delta, tries, absolute):
    """Searches for the scale and the minimum of x, for codes from 0 to `top`.

    Minimizes the sum of count * error^2, or of count * |error| if `absolute`. The first trial spans
    the range from the least number, or 0, to the greatest; the others divide it into top + first,
    top + first + delta, ... parts. The codes of a trial give the best scale and minimum, which
    solve two linear equations. The best minimum so far, which is never above 0, is the origin of
    the next trial.

    Returns the scale and the minimum, and the origin and the inverse scale that codes are computed
    with.

    Source: make_qkx2_quants and make_qkx3_quants.
    """
    low, high = x[0], x[0]
    sum_w, sum_x = float32(0), float32(0)
    for i in range(len(x)):
        low, high = min(low, x[i]), max(high, x[i])
        sum_w += counts[i]
        sum_x += counts[i] * x[i]
    low = min(low, float32(0))
    scale, origin, inverse = float32(0), low, float32(0)
    if high > low:
        codes = floats(len(x))
        inverse = top / (high - low)
        scale = 1.0 / inverse
        least = float32(0)
        for i in range(len(x)):
            wrong = scale * float32(code_between(inverse * (x[i] - low), low=0, high=top)) + low - x[i]
            least += counts[i] * (abs(wrong) if absolute else wrong * wrong)
        for n in range(tries):
            tried = (float32(n) * delta + first + top) / (high - low)
            sum_l, sum_l2, sum_xl = float32(0), float32(0), float32(0)
            for i in range(len(x)):
                code = float32(code_between(tried * (x[i] - low), low=0, high=top))
                counted = counts[i] * code
                sum_l += counted
                sum_l2 += counted * code
                sum_xl += counted * x[i]
                codes[i] = code
            determinant = sum_w * sum_l2 - sum_l * sum_l
            if determinant > 0.0:
                new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
                new_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
                if new_low > 0.0:
                    new_low = float32(0)
                    new_scale = sum_xl / sum_l2
                error = float32(0)
                for i in range(len(x)):
                    wrong = new_scale * codes[i] + new_low - x[i]
                    error += counts[i] * (abs(wrong) if absolute else wrong * wrong)
                if error < least:
                    least, scale, origin, inverse, low = error, new_scale, low, tried, new_low
    return scale, low, origin, inverse


def range_and_codes(x, counts, codes, *, top, first, delta, tries, absolute=False):
    """Searches with `best_scale_and_minimum` and computes the codes. Returns the scale and the
    minimum."""
    scale, low, origin, inverse = best_scale_and_minimum(
        x, counts, top=top, first=first, delta=delta, tries=tries, absolute=absolute
    )
    for i in range(len(x)):
        codes[i] = code_between(inverse * (x[i] - origin), low=0, high=top)
    return scale, low


def scale_alone(x, counts, *, top):
    """Searches for the scale of x by least squares, for codes from -top to top - 1.

    The first trial maps the x farthest from zero to the code -top, which has no positive
    counterpart. The others map it to -top plus or minus 0.1, 0.2, ... 0.9.

    Returns the scale and the inverse that gives codes, both 0 for a group of zeros.

    Source: make_qx_quants.
    """
    peak = farthest(x)
    scale, inverse = float32(0), float32(0)
    if abs(peak) >= TINY:
        inverse = -top / peak
        fit, size = fit_and_size(x, counts, inverse, top=top)
        if size != 0.0:
            scale = fit / size
        best = scale * fit
        for n in range(-9, 10):
            if n != 0:
                tried = -(float32(n) * 0.1 + top) / peak
                fit, size = fit_and_size(x, counts, tried, top=top)
                if size > 0.0 and fit * fit > best * size:
                    scale, inverse = fit / size, tried
                    best = scale * fit
    return scale, inverse


def scale_and_codes(x, counts, codes, *, top):
    """Searches with `scale_alone` and computes the codes, which are -top in a group of zeros.
    Returns the scale."""
    scale, inverse = scale_alone(x, counts, top=top)
    for i in range(len(x)):
        codes[i] = code_between(inverse * x[i], low=-top, high=top - 1) if inverse != 0.0 else -top
    return scale


def fit_and_size(x, counts, inverse, *, top):
    """Returns the sums of count * x * code and of count * code^2. Their quotient is the scale that
    fits these codes best."""
    fit, size = float32(0), float32(0)
    for i in range(len(x)):
        code = float32(code_between(inverse * x[i], low=-top, high=top - 1))
        fit += counts[i] * x[i] * code
        size += counts[i] * code * code
    return fit, size


def scale_by_single_codes(x, codes, *, top):
    """Searches like `scale_alone` with the counts x^2, but by changing single codes, see `improve`.
    Returns the scale; `codes` gets codes from -top to top - 1.

    Source: make_q3_quants.
    """
    peak, scale = farthest(x), float32(0)
    for i in range(len(x)):
        codes[i] = -top
    if abs(peak) >= TINY:
        counts = floats(len(x))
        inverse = -top / peak
        for i in range(len(x)):
            counts[i] = x[i] * x[i]
            codes[i] = code_between(inverse * x[i], low=-top, high=top - 1)
        scale = improve(x, counts, codes, least=-top, top=top - 1)
    return scale


def scale_of_positives(x, counts, codes, *, top):
    """Searches for the scale of numbers that should not be negative, for codes from 0 to `top`.
    Takes the best of nine scales and then changes single codes, see `improve`. Returns the scale,
    or 0 for zeros.

    The numbers are scales themselves, and noise may make one negative if a single weight of its
    group counts. Its code is 0 here. llama.cpp stores 255 instead, which corrupts all scales of the
    block.

    Source: make_qp_quants.
    """
    peak, scale = float32(0), float32(0)
    for i in range(len(x)):
        peak = max(peak, x[i])
        codes[i] = 0
    if peak >= TINY:
        best = top / peak
        least = error_of_positives(x, counts, best, top=top)
        for n in range(-4, 5):
            if n != 0:
                tried = (float32(n) * 0.1 + top) / peak
                error = error_of_positives(x, counts, tried, top=top)
                if error < least:
                    least, best = error, tried
        for i in range(len(x)):
            codes[i] = code_between(x[i] * best, low=0, high=top)
        scale = improve(x, counts, codes, least=0, top=top)
    return scale


def error_of_positives(x, counts, inverse, *, top):
    """Returns the sum of count * error^2 for the codes and the scale of a trial."""
    error = float32(0)
    for i in range(len(x)):
        wrong = x[i] - float32(code_between(x[i] * inverse, low=0, high=top)) * (1.0 / inverse)
        error += counts[i] * wrong * wrong
    return error


def improve(x, counts, codes, *, least, top):
    """Improves codes one by one, in at most five passes. Each code is computed again from the scale
    that fits all others, and changed if this reduces the error. Returns the scale that fits the
    codes: the sum of count * x * code, divided by the sum of count * code^2.
    """
    fit, size = float32(0), float32(0)
    for i in range(len(x)):
        fit += counts[i] * x[i] * float32(codes[i])
        size += counts[i] * float32(codes[i]) * float32(codes[i])
    for _turn in range(5):
        changed = False
        for i in range(len(x)):
            code = float32(codes[i])
            other_fit, other_size = fit - counts[i] * x[i] * code, size - counts[i] * code * code
            if other_fit > 0.0:
                new = code_between(x[i] * other_size / other_fit, low=least, high=top)
                if new != codes[i]:
                    new_fit = counts[i] * x[i] * float32(new) + other_fit
                    new_size = counts[i] * float32(new) * float32(new) + other_size
                    if new_size > 0.0 and new_fit * new_fit * size > fit * fit * new_size:
                        fit, size = new_fit, new_size
                        codes[i] = new
                        changed = True
        if not changed:
            break
    return fit / size if size > 0.0 else float32(0)
