"""Conversions of arrays between dtypes, including dtypes that numpy lacks.

Sources: OCP 8-bit Floating Point v1.0, OCP Microscaling Formats v1.0, arXiv 2206.02915 (FNUZ);
ggml-impl.h of llama.cpp for rounding, checked against it bit by bit.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from glft_schema.storage.dtypes import BFLOAT16, FLOAT32, Array, Dtype, address, name_of, words

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)  # of each code
LONGEST = (1 << 31) - 1  # the most numbers in a row
SMALL = {  # of each float of eight bits: mantissa bits, exponent bias, and how infinities and NaN are encoded
    "float8_e4m3fn": (3, 7, "nan"),
    "float8_e5m2": (2, 15, "ieee"),
    "float8_e4m3fnuz": (3, 8, "fnuz"),
    "float8_e5m2fnuz": (2, 16, "fnuz"),
}


def float32_of(array: Array) -> Array:
    """Returns numbers as float32; a float32 array is returned unchanged."""
    wide = widen(array)
    if wide.dtype == np.float16 and (converted := _by_library("f16", wide, FLOAT32)) is not None:
        return converted
    return wide if wide.dtype == FLOAT32 else _quietly(wide, FLOAT32)


def widen(array: Array) -> Array:
    """Returns floats that numpy stores as records as float32; other arrays are returned unchanged.

    A byte of float4 has two numbers, the first one in its low bits, so the last dim doubles.
    """
    if not array.dtype.names:
        return array
    name, bits = name_of(array.dtype), words(array)
    if name == "bfloat16":
        if (converted := _by_library("bf16", bits, FLOAT32)) is not None:
            return converted
        return np.asarray(np.left_shift(bits, 16, dtype=np.uint32)).view(np.float32)
    if name == "float4_e2m1fn_x2":
        codes = np.stack((bits & 15, bits >> 4), -1)
        return np.asarray(table_of(name)[codes]).reshape(*array.shape[:-1], -1)
    return np.asarray(table_of(name)[bits])


def convert(array: Array, dtype: Dtype) -> Array:
    """Returns numbers in a dtype; an array of this dtype is unchanged. Rounds like torch."""
    if array.dtype == dtype:
        return array
    if name_of(array.dtype) == name_of(dtype):  # one is a dtype of ml_dtypes
        return words(array).view(dtype)
    if dtype == BFLOAT16:
        return to_bf16(array)
    wide = widen(array)
    if wide.dtype == np.float64 and dtype == np.float16:  # as torch does
        wide = _quietly(wide, FLOAT32)
    return _quietly(wide, dtype)


@lru_cache
def table_of(name: str) -> Array:
    """Returns the value of each float of eight or four bits, float32."""
    if name == "float4_e2m1fn_x2":
        return np.array(E2M1, np.float32)
    codes = np.arange(256)
    if name == "float8_e8m0fnu":
        return np.append(np.exp2(codes[:255] - 127.0), np.nan).astype(np.float32)
    mantissa, bias, rest = SMALL[name]
    exponents, fractions = codes % 128 >> mantissa, codes % (1 << mantissa) / (1 << mantissa)
    values: Array = np.where(exponents, (1 + fractions) * np.exp2(exponents - bias), fractions * np.exp2(1.0 - bias))
    values[codes >= 128] *= -1
    if rest == "fnuz":
        values[128] = np.nan
    elif rest == "nan":
        values[[127, 255]] = np.nan
    else:
        values[exponents == 31] = np.nan
        values[[124, 252]] = np.inf, -np.inf
    return values.astype(np.float32)


def to_f16(array: Array) -> Array:
    """Rounds to float16. NaN becomes the quiet NaN of its sign."""
    numbers = float32_of(array)
    if (found := _by_library("encode_f16", numbers, np.dtype(np.float16))) is not None:
        return found
    rounded = _quietly(numbers, np.dtype(np.float16))
    nan = np.isnan(numbers)
    if nan.any():
        rounded.view(np.uint16)[nan] = np.where(np.signbit(numbers[nan]), 0xFE00, 0x7E00)
    return rounded


def to_bf16(array: Array) -> Array:
    """Rounds to bfloat16. NaN keeps its upper bits and becomes quiet."""
    if array.dtype == BFLOAT16:
        return array
    numbers = float32_of(array)
    if (found := _by_library("encode_bf16", numbers, BFLOAT16)) is not None:
        return found
    numbers = np.asarray(numbers, order="C")
    bits = numbers.view(np.uint32)
    rounded = np.asarray(bits >> 16)
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    nan = np.isnan(numbers)
    if nan.any():
        rounded[nan] = bits[nan] >> 16 | 0x40
    return np.asarray(rounded.astype(np.uint16)).view(BFLOAT16)


def _by_library(name: str, array: Array, dtype: Dtype) -> Array | None:
    """Converts by a function of the library, see `halves`. Returns None if it has none."""
    from glft_schema.tensor_types.library.loading import function_named  # slow to import

    run = function_named(name) if array.size else None
    if run is None:
        return None
    array = np.asarray(array, order="C")
    out = np.empty(array.shape, dtype)
    columns = math.gcd(array.size, LONGEST) if array.size > LONGEST else array.size
    run(address(array), address(out), array.size // columns, columns)
    return out


def _quietly(array: Array, dtype: Dtype) -> Array:
    with np.errstate(all="ignore"):
        return array.astype(dtype)
