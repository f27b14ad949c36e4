"""The operations that `as_arrays` prints, for numpy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from glft_schema.scalar.language import MAGIC

Array: TypeAlias = np.ndarray[Any, Any]
Sizes: TypeAlias = tuple[int, ...]
NAMES = {"u8": "u1", "i8": "i1", "i16": "i2", "i32": "i4", "f16": "f2", "f32": "f4", "bool": "?"}


def table(numbers: Array) -> Array:
    """Returns a table as the operations take it."""
    return numbers


def view(x: Array, first: int, steps: Sizes, sizes: Sizes) -> Array:
    """Returns a view [blocks, *sizes] of the numbers of blocks, from `first` on in steps."""
    return as_strided(x[:, first:], (len(x), *sizes), (x.strides[0], *(step * x.strides[1] for step in steps)))


def pick(x: Array, at: Any) -> Array:
    """Returns the numbers of blocks at constant indices of any shape."""
    return x[:, np.array(at)]


def cast(x: Array, kind: str) -> Array:
    return x.astype(NAMES[kind])


def to_unsigned(x: Array) -> Array:
    """Reads int16 as unsigned words."""
    return x.astype(np.int32) & 0xFFFF


def constant(w: Array, numbers: Any, kind: str) -> Array:
    """Returns constants [1, *axes]."""
    return np.array(numbers, NAMES[kind])[None]


def fill(out: Array, x: Any) -> None:
    """Copies numbers into a float32 array."""
    out[...] = x


def where(test: Array, one: Any, other: Any, kind: str) -> Array:
    return np.asarray(np.where(test, one, other), NAMES[kind])


def shift(x: Array, by: Array) -> Array:
    """Shifts to the right by constants [1, *axes], number by number of the last axes."""
    out = np.empty(np.broadcast_shapes(x.shape, by.shape), x.dtype)
    for at, places, given in shifts(x.shape, by.shape):
        np.right_shift(x[given], by[at], out=out[places])
    return out


def shifts(shape: Sizes, by: Sizes) -> Iterator[tuple[Any, Any, Any]]:
    """Yields, for each constant by which numbers [blocks, *axes] are shifted, its index, and the
    indices of the results and of the numbers."""
    for at in product(*map(range, by[1:])):
        places = [
            slice(None),
            *(slice(one, one + 1) if size > 1 else slice(None) for one, size in zip(at, by[1:], strict=True)),
        ]
        given = [slice(None), *(one if size > 1 else slice(None) for one, size in zip(places[1:], shape[1:], strict=True))]
        yield (0, *at), tuple(places), tuple(given)


def look_up(numbers: Array, at: Array) -> Array:
    return np.take(numbers, at)


def neighbours(numbers: Array, count: int, at: Array) -> Array:
    """Returns `count` numbers of a table from each index on, along a new axis."""
    words = _words(numbers.tobytes(), numbers.dtype.str, count)
    return np.asarray(np.take(words, at)[..., None]).view(numbers.dtype)


@lru_cache
def _words(table: bytes, dtype: str, count: int) -> Array:
    numbers = np.frombuffer(table, dtype)
    return np.ascontiguousarray(sliding_window_view(numbers, count)).view(f"V{count * numbers.itemsize}")[:, 0]


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
