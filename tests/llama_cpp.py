"""The real llama.cpp as an oracle: the C functions that the `xllamacpp` wheel exports, called through ctypes."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import numpy as np
import xllamacpp

LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class GgufInitParams(ctypes.Structure):
    """``gguf_init_params`` of gguf.h."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.POINTER(ctypes.c_void_p)))


@LOG
def silent(level: int, text: bytes, user: object) -> None:
    """Swallows what the library would print."""


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Returns the wheel's shared object."""
    (path,) = Path(xllamacpp.__file__).parent.glob("*.so")
    found = ctypes.CDLL(str(path))
    found.ggml_log_set(silent, None)
    return found


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


def reads_gguf(stored: bytes) -> bool:
    """Tells whether gguf.cpp accepts a file, payloads included.

    It makes room for all payloads before it looks whether they are there, and aborts the process where it cannot: so files
    that are shorter than they say are told apart by their header.
    """
    c = library()
    c.gguf_init_from_buffer.restype = ctypes.c_void_p
    for name in ("gguf_get_data_offset", "gguf_get_tensor_offset", "gguf_get_tensor_size", "gguf_get_alignment"):
        getattr(c, name).restype = ctypes.c_size_t
    c.gguf_get_n_tensors.restype = ctypes.c_int64
    size, tensors = ctypes.c_size_t(len(stored)), ctypes.c_void_p()
    header = ctypes.c_void_p(c.gguf_init_from_buffer(stored, size, GgufInitParams(True, None)))
    if not header:
        return False
    end = c.gguf_get_data_offset(header)
    if count := c.gguf_get_n_tensors(header):
        last = ctypes.c_int64(count - 1)
        end += c.gguf_get_tensor_offset(header, last) + c.gguf_get_tensor_size(header, last)
        end += -end % c.gguf_get_alignment(header)
    c.gguf_free(header)
    if end > len(stored):
        return False
    whole = ctypes.c_void_p(c.gguf_init_from_buffer(stored, size, GgufInitParams(False, ctypes.pointer(tensors))))
    if whole:
        c.gguf_free(whole)
        c.ggml_free(tensors)
    return bool(whole)
