"""Conversions of rows of float16 and bfloat16 from and to float32, as scalar functions.

Source of the rounding: ggml-impl.h of llama.cpp; checked against it bit by bit.
"""

from __future__ import annotations

from glft_schema.scalar.language import as_bits, as_float
from glft_schema.tensor_types.scalar_layout import Functions, ScalarField, ScalarLayout

INFINITY, QUIET, NEGATIVE = 0x7F800000, 0x7FC00000, -0x400000  # bits of float32: infinity and quiet NaN


def from_f16(w, weights):
    """The number itself."""
    for i in range(len(w)):
        w[i] = weights[i]


def to_f16(w, weights):
    """Rounds. NaN becomes the quiet NaN of its sign."""
    for i in range(len(w)):
        bits = as_bits(w[i])
        is_nan = (bits & 0x7FFFFFFF) > INFINITY
        weights[i] = as_float(NEGATIVE if bits < 0 else QUIET) if is_nan else w[i]


def from_bf16(w, weights):
    """The upper half of the bits."""
    for i in range(len(w)):
        w[i] = as_float(weights[i] << 16)


def to_bf16(w, weights):
    """Rounds to the upper half of the bits. NaN keeps its upper half and becomes quiet."""
    for i in range(len(w)):
        bits = as_bits(w[i])
        is_nan = (bits & 0x7FFFFFFF) > INFINITY
        weights[i] = bits >> 16 | 0x40 if is_nan else bits + 0x7FFF + (bits >> 16 & 1) >> 16


def _row_of(name, number):
    return ScalarLayout(name, (ScalarField("weights", number, None),), None)


HALVES = (
    Functions(_row_of("f16", "f16"), from_f16, (to_f16,)),
    Functions(_row_of("bf16", "u16"), from_bf16, (to_bf16,)),
)
