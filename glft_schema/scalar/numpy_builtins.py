"""The functions of the language for arrays of numpy."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from glft_schema.scalar.language import MAGIC

Array: TypeAlias = np.ndarray[Any, Any]


def root(x: Array) -> Array:
    return np.sqrt(x)


def abs(x: Array) -> Array:
    return np.asarray(np.abs(x))


def nearest(x: Array) -> Array:
    return np.asarray(((x + np.float32(MAGIC)).view(np.int32) & 0x7FFFFF) - 0x400000)


def truncated(x: Array) -> Array:
    fits = (x >= -(2.0**31)) & (x < 2.0**31)
    return np.where(fits, np.where(fits, x, 0).astype(np.int32), np.int32(-(2**31)))


def float16(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float32)


def as_bits(x: Array) -> Array:
    return np.asarray(x.view(np.int32))


def as_float(x: Array) -> Array:
    return x.view(np.float32)


def as_float16(x: Array) -> Array:
    return x.astype(np.uint16).view(np.float16).astype(np.float32)
