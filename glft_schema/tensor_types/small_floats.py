"""Floats of four and eight bits: E2M1, E8M0 and E4M3, and the values of ggml's IQ4.

Source: OCP Microscaling Formats v1.0 (E2M1, E8M0), OCP 8-bit Floating Point v1.0 (E4M3),
ggml-common.h of llama.cpp.
"""

from __future__ import annotations

import numpy as np

from glft_schema.scalar.language import as_float, float32
from glft_schema.storage.dtypes import Array
from glft_schema.tensor_types.conversions import table_of

DOUBLED = 0xC8643210 - 2**32  # as an int32
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def e2m1_doubled(code):
    """Twice an E2M1 number: 0, 1, 2, 3, 4, 6, 8, 12; bit 3 is the sign. The digits of a word,
    because vector units shift faster than they look up."""
    doubled = DOUBLED >> 4 * (code & 7) & 15
    return -doubled if (code & 8) > 0 else doubled


def half_power(e):
    """E8M0 -> float32 2^(e - 128): exponent e - 1, or a subnormal number."""
    return as_float(0x00200000 << e if e < 2 else e - 1 << 23)


def e8m0(e: Array) -> Array:
    """E8M0 u8 -> float64 2^(e - 127). 255 is NaN, as the OCP specifies; the formula reads 2^128."""
    return np.asarray(table_of("float8_e8m0fnu")[e], np.float64)  # 2^-127 is subnormal as float32


def e4m3_scale(d: Array) -> Array:
    """Unsigned E4M3 u8 -> float32. Bit 7 is ignored. 127 is NaN, as the OCP specifies; the formula
    reads it as 0, and 255 as 480."""
    return np.asarray(np.where(d == 255, np.float32(480), table_of("float8_e4m3fn")[d & 127]))


def half_e4m3(d):
    """Unsigned E4M3 -> float32, halved. Bit 7 is ignored. 0x7F, a NaN, is 0; 0xFF is 240."""
    exponent, mantissa = d >> 3 & 15, float32(d & 7)
    normal = (1 + mantissa / 8) * as_float(exponent + 120 << 23)
    value = mantissa / 512 if exponent == 0 else normal
    return float32(0) if d == 127 else value * 0.5
