"""llama.cpp's C and libgguf by the rows of a type, in as many threads as torch uses."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import torch

from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.library.loading import MODE
from tests.oracles import llama_cpp

Run = Callable[[], object]
OfRows = Callable[[np.ndarray, np.ndarray], object]


def in_threads(function: OfRows, source: np.ndarray, out: np.ndarray) -> Run:
    """Returns a call of a function that releases Python's lock, with equal shares of rows, each in
    a new thread: some use OpenMP, which makes other threads slow as long as theirs exist."""
    shares = list(zip(*(np.array_split(array, torch.get_num_threads()) for array in (source, out)), strict=True))

    def run() -> None:
        with ThreadPoolExecutor(len(shares)) as pool:
            list(pool.map(lambda share: function(*share), shares))

    return run


def peers(functions: dict[str, OfRows], source: np.ndarray, out: np.ndarray) -> dict[str, Run]:
    """Returns the calls of the functions that know the type, by name and number of threads."""
    found = {}
    for name, function in functions.items():
        try:
            function(source[:1], out[:1])
        except Exception:  # AttributeError, or libgguf's own errors for types that it lacks
            continue
        found[f"{name}, {torch.get_num_threads()} threads"] = in_threads(function, source, out)
    return found


def decoders(type_: TensorType, blocks: np.ndarray, out: np.ndarray) -> dict[str, Run]:
    def by_c(blocks: np.ndarray, out: np.ndarray) -> None:
        llama_cpp.row_function(type_.name)(llama_cpp.pointer(blocks), llama_cpp.pointer(out), ctypes.c_int64(out.size))

    functions: dict[str, OfRows] = {"llama.cpp's C": by_c}
    if find_spec("libgguf"):
        import libgguf

        functions["libgguf"] = lambda blocks, out: libgguf.dequantize_rows_into_raw(
            int(type_.code), blocks, out, len(out), out.shape[1]
        )
    return peers(functions, blocks, out)


def encoders(type_: TensorType, weights: np.ndarray, importance: np.ndarray | None) -> dict[str, Run]:
    def by_c(weights: np.ndarray, out: np.ndarray) -> None:
        llama_cpp.quantizing(type_.code, weights, out, importance)()

    functions: dict[str, OfRows] = {"llama.cpp's C": by_c}
    if find_spec("libgguf"):
        import libgguf

        functions["libgguf"] = lambda weights, out: libgguf.quantize_rows_into_raw(
            int(type_.code), weights, out, *weights.shape, importance
        )
    out = np.zeros((len(weights), type_.nbytes([1, weights.shape[1]])), np.uint8)
    return peers(functions, weights, out)


def without_library(run: Run) -> Run:
    """Returns a call without the compiled library."""

    def run_without() -> None:
        before = os.environ.get(MODE, "")
        os.environ[MODE] = "off"
        try:
            run()
        finally:
            os.environ[MODE] = before

    return run_without
