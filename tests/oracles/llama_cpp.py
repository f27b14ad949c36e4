"""llama.cpp as an oracle: C functions of the `xllamacpp` wheel, called through ctypes."""

from __future__ import annotations

import ctypes
import platform
import struct
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.oracles.gguf_reference import ARRAY, NUMBERS, STRING

FOR_PRODUCTS = {9: "quantize_row_q8_1_ref", 15: "quantize_row_q8_K_ref"}  # types with a C function of their own
VOCAB_ONLY = 9 * 64  # bit of `vocab_only` in ``llama_model_params``
LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class GgufInitParams(ctypes.Structure):
    """``gguf_init_params`` of gguf.h."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.POINTER(ctypes.c_void_p)))


@LOG
def silent(level: int, text: bytes, user: object) -> None:
    """Drops a log message."""


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Returns the wheel's shared object."""
    paths = [*Path(pytest.importorskip("xllamacpp").__file__).parent.glob("*.so")]
    if not paths:
        pytest.skip("the module of xllamacpp exports no C functions on Windows")
    found = ctypes.CDLL(str(paths[0]))
    found.ggml_log_set(silent, None)
    return found


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


def row_function(type_name: str) -> Any:
    """Returns a type's C function (blocks, out, weights). Raises AttributeError without one."""
    function = library()["dequantize_row_" + type_name.lower().replace("_k", "_K")]
    function.restype = None
    return function


def quantizing(code: int, weights: np.ndarray, out: np.ndarray, importance: np.ndarray | None = None) -> Callable[[], Any]:
    """Returns a call that quantizes f32[rows, columns] into `out`; importance is f32[columns].

    Skips the test on other processors than x86-64: builds of llama.cpp for them fuse
    multiplications and additions, and round differently.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("llama.cpp's build for this processor fuses multiplications and additions")
    weights = np.ascontiguousarray(weights)
    source, target = pointer(weights), pointer(out)
    if code in FOR_PRODUCTS:
        function, size = library()[FOR_PRODUCTS[code]], ctypes.c_int64(weights.size)
        function.restype = None
        return lambda: function(source, target, size)
    function = library().ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    counts = [ctypes.c_int64(number) for number in (0, *weights.shape)]
    columns = None if importance is None else pointer(importance)
    return lambda: function(ctypes.c_int(code), source, target, *counts, columns)


def dequantize(type_name: str, blocks: np.ndarray, weights: int) -> np.ndarray:
    """Returns f32[blocks, weights] of u8[blocks, size]. Raises as `row_function`."""
    function = row_function(type_name)
    out = np.empty((len(blocks), weights), np.float32)
    function(pointer(np.ascontiguousarray(blocks)), pointer(out), ctypes.c_int64(out.size))
    return out


def quantize(code: int, weights: np.ndarray, size: int, importance: np.ndarray | None = None) -> np.ndarray:
    """Quantizes f32[rows, columns] to u8[rows, `size`]; bytes that C does not write are 0."""
    out = np.zeros((len(weights), size), np.uint8)
    written = quantizing(code, weights, out, importance)()
    assert written in (None, out.nbytes)
    return out


# Key, type code, and bytes of the value; for an array its element code and a list of bytes.
Entries = list[tuple[bytes, int, Any]]
# Name, four dims, type code, offset, and payload.
Tensors = list[tuple[bytes, list[int], int, int, bytes]]

# Result types of the functions; others return 32-bit integers.
# fmt: off
RESULTS: dict[type, tuple[str, ...]] = {
    ctypes.c_void_p: ("gguf_init_from_buffer", "gguf_get_val_data", "gguf_get_arr_data", "gguf_get_tensor_ne", "ggml_get_data",
                      "ggml_get_first_tensor", "ggml_get_next_tensor"),
    ctypes.c_char_p: ("gguf_get_key", "gguf_get_val_str", "gguf_get_arr_str", "gguf_get_tensor_name"),
    ctypes.c_size_t: ("gguf_get_data_offset", "gguf_get_tensor_offset", "gguf_get_tensor_size", "gguf_get_alignment",
                      "gguf_get_arr_n"),
    ctypes.c_int64:  ("gguf_get_n_tensors", "gguf_get_n_kv"),
}
# fmt: on


def reads_gguf(stored: bytes) -> bool:
    """Tells whether gguf.cpp accepts a file, payloads included."""
    return contents(stored) is not None


def contents(stored: bytes) -> tuple[Entries, Tensors] | None:
    """Returns the contents of a file by gguf.cpp, or None if it refuses the file.

    gguf.cpp allocates all payloads before it checks that the file has them, and aborts if it
    cannot. Files that are too short are therefore refused here, by their headers.
    """
    c = library()
    for result, names in RESULTS.items():
        for name in names:
            getattr(c, name).restype = result
    size, tensors = ctypes.c_size_t(len(stored)), ctypes.c_void_p()
    header = ctypes.c_void_p(c.gguf_init_from_buffer(stored, size, GgufInitParams(True, None)))
    if not header:
        return None
    end = c.gguf_get_data_offset(header)
    if count := c.gguf_get_n_tensors(header):
        last = ctypes.c_int64(count - 1)
        end += c.gguf_get_tensor_offset(header, last) + c.gguf_get_tensor_size(header, last)
        end += -end % c.gguf_get_alignment(header)
    c.gguf_free(header)
    if end > len(stored):
        return None
    whole = ctypes.c_void_p(c.gguf_init_from_buffer(stored, size, GgufInitParams(False, ctypes.pointer(tensors))))
    if not whole:
        return None
    found = _entries(c, whole), _tensors(c, whole, tensors)
    c.gguf_free(whole)
    c.ggml_free(tensors)
    return found


def _entries(c: ctypes.CDLL, file: ctypes.c_void_p) -> Entries:
    found: Entries = []
    for number in range(c.gguf_get_n_kv(file)):
        at = ctypes.c_int64(number)
        code = c.gguf_get_kv_type(file, at)
        if code == STRING:
            value: Any = c.gguf_get_val_str(file, at)
        elif code == ARRAY:
            inner, count = c.gguf_get_arr_type(file, at), c.gguf_get_arr_n(file, at)
            if inner == STRING:
                value = inner, [c.gguf_get_arr_str(file, at, ctypes.c_size_t(element)) for element in range(count)]
            else:
                width = struct.calcsize(NUMBERS[inner])
                stored = ctypes.string_at(c.gguf_get_arr_data(file, at), count * width) if count else b""
                value = inner, [stored[start : start + width] for start in range(0, len(stored), width)]
        else:
            value = ctypes.string_at(c.gguf_get_val_data(file, at), struct.calcsize(NUMBERS[code]))
        found.append((c.gguf_get_key(file, at), code, value))
    return found


def _tensors(c: ctypes.CDLL, file: ctypes.c_void_p, tensors: ctypes.c_void_p) -> Tensors:
    found = []
    tensor = ctypes.c_void_p(c.ggml_get_first_tensor(tensors))  # holds all payloads; the file's follow
    for number in range(c.gguf_get_n_tensors(file)):
        at, tensor = ctypes.c_int64(number), ctypes.c_void_p(c.ggml_get_next_tensor(tensors, tensor))
        dims = ctypes.cast(c.gguf_get_tensor_ne(file, at), ctypes.POINTER(ctypes.c_int64))[:4]
        nbytes = c.gguf_get_tensor_size(file, at)
        payload = ctypes.string_at(c.ggml_get_data(tensor), nbytes) if nbytes else b""
        name, code = c.gguf_get_tensor_name(file, at), c.gguf_get_tensor_type(file, at)
        found.append((name, dims, code, c.gguf_get_tensor_offset(file, at), payload))
    return found


class Opaque(ctypes.Structure):
    """Room for any struct of parameters that C passes by value."""

    _fields_ = (("words", ctypes.c_uint64 * 64),)


class Loaded:
    """A model loaded by llama.cpp. A context manager.

    Args:
        path: of the GGUF file.
        vocab_only: load no tensors.
        log: called with messages.
    """

    def __init__(self, path: Path, vocab_only: bool = False, log: Any = silent) -> None:
        self._c = c = library()
        c.llama_log_set(log, None)
        c.llama_model_default_params.restype = Opaque
        for name in ("llama_model_load_from_file", "llama_model_get_vocab", "llama_adapter_lora_init"):
            getattr(c, name).restype = ctypes.c_void_p
        c.llama_model_load_from_file.argtypes = ctypes.c_char_p, Opaque
        c.llama_adapter_lora_init.argtypes = ctypes.c_void_p, ctypes.c_char_p
        c.llama_model_free.argtypes = c.llama_model_get_vocab.argtypes = (ctypes.c_void_p,)
        options = c.llama_model_default_params()
        options.words[VOCAB_ONLY // 64] |= vocab_only
        self._model = c.llama_model_load_from_file(bytes(path), options)
        assert self._model, f"llama.cpp cannot load {path}"
        self._vocab = ctypes.c_void_p(c.llama_model_get_vocab(self._model))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self._c.llama_model_free(self._model)

    def tokens(self, text: str, *, ends: bool = False, special: bool = True) -> list[int]:
        """Returns the tokens of a text.

        Args:
            text: the text.
            ends: add the tokens that begin and end it.
            special: read the texts of special tokens as these tokens.
        """
        stored = text.encode()
        room = (ctypes.c_int32 * (len(stored) + 9))()
        flags = ctypes.c_bool(ends), ctypes.c_bool(special)
        count = self._c.llama_tokenize(self._vocab, stored, len(stored), room, len(room), *flags)
        assert count >= 0
        return list(room[:count])


class AdapterTarget(Loaded):
    """A model to load adapters for."""

    def loads(self, adapter: Path) -> bool:
        """Tells whether llama.cpp loads a LoRA adapter for the model."""
        return bool(self._c.llama_adapter_lora_init(self._model, bytes(adapter)))  # freed with the model


class ControlVectorInfo(ctypes.Structure):
    """``common_control_vector_load_info`` of common.h; texts are pointers in the wheel's ABI."""

    _fields_ = (("strength", ctypes.c_float), ("path", ctypes.c_char_p))


def control_vector_size(path: Path) -> int:
    """Returns the length of a control vector's directions by common.cpp; -1 if it refuses them."""
    load = library()["_Z26common_control_vector_loadRKSt6vectorI31common_control_vector_load_infoSaIS0_EE"]
    library()["_Z30common_log_set_verbosity_tholdi"](-1)
    load.restype = Opaque  # an int, and a vector that is not freed
    info = ControlVectorInfo(1.0, bytes(path))
    start = ctypes.addressof(info)
    end = start + ctypes.sizeof(info)
    return ctypes.c_int32(load((ctypes.c_void_p * 3)(start, end, end)).words[0]).value
