"""Encoders of ggml's ternary types, as scalar functions.

Source: quantize_row_tq1_0_ref and quantize_row_tq2_0_ref in ggml-quants.c of llama.cpp; checked
against it bit by bit.
"""

from __future__ import annotations

from glft_schema.tensor_types.encoders.searches import away_from_zero, inverse_of, largest


def to_tq1_0(w, qs, qh, d):
    """d is max |w|. A byte holds the digits of weights that are 32, 16 or 4 apart."""
    d[0] = largest(w)
    inverse = inverse_of(largest(w))
    pack_digits(w[0:160], inverse, qs[0:32], digits=5)
    pack_digits(w[160:240], inverse, qs[32:48], digits=5)
    pack_digits(w[240:256], inverse, qh, digits=4)


def pack_digits(w, inverse, packed, *, digits):
    """Packs digits into bytes, the most significant first.

    A byte is the number of five digits times 256 / 243, rounded up; missing digits are 0.
    """
    for i in range(len(packed)):
        number = 0
        for n in range(digits):
            number = 3 * number + digit(w[len(packed) * n + i] * inverse)
        for _n in range(digits, 5):
            number *= 3
        packed[i] = (256 * (number & 255) + 242) // 243  # all are below 243


def to_tq2_0(w, qs, d):
    """d is max |w|."""
    d[0] = largest(w)
    inverse = inverse_of(largest(w))
    for h in range(2):
        for i in range(32):
            byte = 0
            for k in range(4):
                byte |= digit(w[128 * h + 32 * k + i] * inverse) << 2 * k
            qs[32 * h + i] = byte


def digit(x):
    """Rounds to -1, 0 or 1, and adds 1. Returns 1 if x is not finite (all weights are tiny)."""
    return away_from_zero(x) + 1 & 3
