"""Encoders of IQ2 and IQ3, whose vectors of weights are entries of a grid. Each encoder runs the
search in `grids` and lays its result out in a block.

Means are taken over a block. A search makes 2 * tries + 1 trials.

Source: quantize_row_iq2_xxs_impl and its counterparts for other types in ggml-quants.c of
llama.cpp; checked against them bit by bit.
"""

from __future__ import annotations

from glft_schema.scalar.language import floats, integers
from glft_schema.tensor_types.encoders.grids import ALL, GROUPS_MOVED, VECTORS_MOVED, search
from glft_schema.tensor_types.encoders.neighbours import (
    IQ2_S_CANDIDATES,
    IQ2_S_INDICES,
    IQ2_S_STARTS,
    IQ2_XS_CANDIDATES,
    IQ2_XS_INDICES,
    IQ2_XS_STARTS,
    IQ2_XXS_CANDIDATES,
    IQ2_XXS_INDICES,
    IQ2_XXS_STARTS,
    IQ3_S_CANDIDATES,
    IQ3_S_INDICES,
    IQ3_S_STARTS,
    IQ3_XXS_CANDIDATES,
    IQ3_XXS_INDICES,
    IQ3_XXS_STARTS,
)
from glft_schema.tensor_types.encoders.searches import count_squares, count_weights, mean_square


def to_iq2_xxs(w, importance, d, qs):
    """Minimizes the sum of importance * sqrt(mean w^2 + w^2) * error^2, in groups of 32. The first
    scale is the best one for integer codes.
    """
    counts, scales, entries, signs = floats(256), integers(8), integers(32), integers(32)
    count_weights(w, importance, counts, mean_square(w))
    d[0] = search(
        w, counts, scales, entries, signs, IQ2_XXS_INDICES, IQ2_XXS_STARTS, IQ2_XXS_CANDIDATES,
        base=3, values=8, group=32, tries=6, delta=0.1, least=1e-15, even=True, fits=True, again=ALL,
    )  # fmt: skip
    for g in range(8):
        word = 0
        for v in range(4):
            word |= entries[4 * g + v] << 8 * v
        qs[2 * g], qs[2 * g + 1] = word, sevens_and_scale(signs[4 * g : 4 * g + 4], scales[g])


def sevens_and_scale(signs, scale):
    """Returns a word of 4 x 7 sign bits and a 4-bit scale."""
    word = scale << 28
    for v in range(4):
        word |= (signs[v] & 127) << 7 * v
    return word


def to_iq2_xs(w, importance, d, qs, scales):
    """Minimizes the sum of importance * sqrt(mean w^2 + w^2) * error^2, in groups of 16."""
    counts, codes, entries, signs = floats(256), integers(16), integers(32), integers(32)
    count_weights(w, importance, counts, mean_square(w))
    d[0] = search(
        w, counts, codes, entries, signs, IQ2_XS_INDICES, IQ2_XS_STARTS, IQ2_XS_CANDIDATES,
        base=3, values=8, group=16, tries=9, delta=0.1, least=1e-15, even=True, fits=False, again=VECTORS_MOVED,
    )  # fmt: skip
    for v in range(32):
        qs[v] = entries[v] | (signs[v] & 127) << 9
    for g in range(8):
        scales[g] = codes[2 * g] | codes[2 * g + 1] << 4


def to_iq2_s(w, d, qs, sign_bits, qh, scales):
    """Minimizes the sum of (mean w^2 / 2 + w^2) * error^2: small weights count, too."""
    counts, mean = floats(256), mean_square(w, factor=2)
    for i in range(256):
        counts[i] = w[i] * w[i] + 0.25 * mean
    search_iq2_s(w, counts, d, qs, sign_bits, qh, scales)


def to_iq2_s_by_importance(w, importance, d, qs, sign_bits, qh, scales):
    """Minimizes the sum of importance * sqrt(2 mean w^2 + w^2) * error^2."""
    counts = floats(256)
    count_weights(w, importance, counts, mean_square(w, factor=2))
    search_iq2_s(w, counts, d, qs, sign_bits, qh, scales)


def search_iq2_s(w, counts, d, qs, sign_bits, qh, scales):
    """Encodes groups of 16 weights."""
    codes, entries, signs = integers(16), integers(32), integers(32)
    d[0] = 0.9875 * search(
        w, counts, codes, entries, signs, IQ2_S_INDICES, IQ2_S_STARTS, IQ2_S_CANDIDATES,
        base=3, values=8, group=16, tries=9, delta=0.1, least=1e-8, even=False, fits=False, again=VECTORS_MOVED,
    )  # fmt: skip
    for v in range(32):
        qs[v], sign_bits[v] = entries[v], signs[v]
    for g in range(8):
        high = 0
        for v in range(4):
            high |= entries[4 * g + v] >> 8 << 2 * v
        qh[g], scales[g] = high, codes[2 * g] | codes[2 * g + 1] << 4


def to_iq3_xxs(w, d, qs, scales_and_signs):
    """Minimizes the sum of w^2 * error^2."""
    counts = floats(256)
    count_squares(w, counts)
    search_iq3_xxs(w, counts, d, qs, scales_and_signs)


def to_iq3_xxs_by_importance(w, importance, d, qs, scales_and_signs):
    """Minimizes the sum of importance * sqrt(2 mean w^2 + w^2) * error^2."""
    counts = floats(256)
    count_weights(w, importance, counts, mean_square(w, factor=2))
    search_iq3_xxs(w, counts, d, qs, scales_and_signs)


def search_iq3_xxs(w, counts, d, qs, scales_and_signs):
    """Encodes groups of 32 weights."""
    scales, entries, signs = integers(8), integers(64), integers(32)
    d[0] = 1.0125 * search(
        w, counts, scales, entries, signs, IQ3_XXS_INDICES, IQ3_XXS_STARTS, IQ3_XXS_CANDIDATES,
        base=8, values=4, group=32, tries=15, delta=0.2, least=1e-8, even=True, fits=False, again=VECTORS_MOVED,
    )  # fmt: skip
    for v in range(64):
        qs[v] = entries[v]
    for g in range(8):
        scales_and_signs[g] = sevens_and_scale(signs[4 * g : 4 * g + 4], scales[g])


def to_iq3_s(w, d, qs, qh, sign_bits, scales):
    """Minimizes the sum of w^2 * error^2."""
    counts = floats(256)
    count_squares(w, counts)
    search_iq3_s(w, counts, d, qs, qh, sign_bits, scales)


def to_iq3_s_by_importance(w, importance, d, qs, qh, sign_bits, scales):
    """Minimizes the sum of importance * sqrt(2 mean w^2 + w^2) * error^2."""
    counts = floats(256)
    count_weights(w, importance, counts, mean_square(w, factor=2))
    search_iq3_s(w, counts, d, qs, qh, sign_bits, scales)


def search_iq3_s(w, counts, d, qs, qh, sign_bits, scales):
    """Encodes groups of 32 weights."""
    codes, entries, signs = integers(8), integers(64), integers(32)
    d[0] = 1.033 * search(
        w, counts, codes, entries, signs, IQ3_S_INDICES, IQ3_S_STARTS, IQ3_S_CANDIDATES,
        base=8, values=4, group=32, tries=9, delta=0.2, least=1e-45, even=False, fits=False, again=GROUPS_MOVED,
    )  # fmt: skip
    for v in range(64):
        qs[v] = entries[v]
    for v in range(32):
        sign_bits[v] = signs[v]
    for g in range(8):
        high = 0
        for v in range(8):
            high |= entries[8 * g + v] >> 8 << v
        qh[g] = high
    for g in range(4):
        scales[g] = codes[2 * g] | codes[2 * g + 1] << 4
