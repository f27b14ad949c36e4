"""The real llama.cpp as an oracle: the C functions that the `xllamacpp` wheel exports, called through ctypes."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import numpy as np
import xllamacpp


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Returns the wheel's shared object."""
    (path,) = Path(xllamacpp.__file__).parent.glob("*.so")
    return ctypes.CDLL(str(path))


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


def dequantize(type_name: str, blocks: np.ndarray, weights: int) -> np.ndarray:
    """Returns float32 [blocks, weights] of u8 [blocks, size]; `type_name` as in ``Q4_K``.

    Raises:
        AttributeError: where C has no such function.
    """
    function = library()["dequantize_row_" + type_name.lower().replace("_k", "_K")]
    function.restype = None
    out = np.empty((len(blocks), weights), np.float32)
    function(pointer(np.ascontiguousarray(blocks)), pointer(out), ctypes.c_int64(out.size))
    return out


def quantize(code: int, weights: np.ndarray, size: int) -> np.ndarray:
    """Quantizes float32 [rows, weights of a block] to u8 [rows, `size`], without an importance matrix."""
    function = library().ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    rows, length = (ctypes.c_int64(number) for number in weights.shape)
    out = np.zeros((len(weights), size), np.uint8)
    written = function(ctypes.c_int(code), pointer(weights), pointer(out), ctypes.c_int64(0), rows, length, None)
    assert written == out.nbytes
    return out
