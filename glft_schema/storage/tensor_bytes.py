"""Conversion between bytes and arrays. Numbers are little-endian."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from glft_schema.storage.dtypes import Array, Dtype
from glft_schema.storage.source import Source

PIECE = 1 << 22  # bytes per read when bytes are copied or compared

if sys.byteorder != "little":
    raise ImportError("glft_schema requires a little-endian machine: it uses stored numbers in place")


def array_over(view: memoryview, dtype: Dtype, shape: Sequence[int]) -> Array:
    """Returns an array of `shape` over a `view`, in C order."""
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(view, dtype).reshape(shape)


def read_array(source: Source, start: int, dtype: Dtype, shape: Sequence[int]) -> Array:
    """Returns numbers of a source, from byte `start`, as an array. Raises as `Source.private`."""
    return array_over(source.private(start, math.prod(shape) * dtype.itemsize), dtype, shape)


def array_bytes(array: Array) -> memoryview:
    """Returns the elements of `array` in C order; copies only if they are in another order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def pieces(source: Source, start: int, nbytes: int) -> Iterator[memoryview]:
    """Yields bytes of a source, up to `PIECE` at once."""
    for at in range(start, start + nbytes, PIECE):
        yield source.read(at, min(PIECE, start + nbytes - at))


def copy_all(stream: Any, source: Source, start: int, nbytes: int) -> int:
    """Copies bytes of a source to a stream, and returns their number. The system copies what it
    can, see `Source.copy_to`, to a stream of `atomic_write`."""
    copy = getattr(stream, "copy_from", None)
    copied = copy(source, start, nbytes) if copy else 0
    for piece in pieces(source, start + copied, nbytes - copied):
        write_all(stream, piece)
    return nbytes


def write_all(stream: Any, data: bytes | bytearray | memoryview) -> int:
    """Writes all of `data` to a stream that may take a part per call. Returns the byte count."""
    left = memoryview(data).cast("B")
    while left:
        written = stream.write(left)
        if not written:
            raise OSError("the stream accepts no more bytes")
        left = left[written:]
    return memoryview(data).nbytes
