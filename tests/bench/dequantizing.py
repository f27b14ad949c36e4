"""Payloads into float32, type by type, into memory that is ready."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec

import gguf
import numpy as np
import torch

from glft_schema.formats.glft import GLFT
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.library.loading import MODE
from tests.bench.measure import Row, busy_processes, in_turn, once
from tests.oracles import llama_cpp

ROWS, COLUMNS = 8192, 4096  # 128 MiB as float32: more than any cache holds


def payload(type_: TensorType) -> dict[str, np.ndarray]:
    """Returns fields of random weights, or random bytes if the type needs an importance."""
    if not type_.needs_importance:
        weights = np.random.default_rng(0).standard_normal((256, COLUMNS), np.float32)
        return {name: np.tile(field, (ROWS // 256, 1)) for name, field in type_.encode(weights, "w").items()}
    size = type_.nbytes([ROWS, COLUMNS]) // ROWS
    return {"blocks": np.random.default_rng(0).integers(0, 256, (ROWS, size), dtype=np.uint8)}


def in_threads(function: Callable[[np.ndarray, np.ndarray], object], blocks: np.ndarray, out: np.ndarray) -> Callable[[], None]:
    """Returns a call of a function that releases Python's lock, with equal shares of rows for as
    many threads as torch uses."""
    threads = torch.get_num_threads()
    pool, shares = (
        ThreadPoolExecutor(threads),
        list(zip(np.array_split(blocks, threads), np.array_split(out, threads), strict=True)),
    )

    def run() -> None:
        list(pool.map(lambda share: function(*share), shares))

    return run


def by_c(type_: TensorType) -> Callable[[np.ndarray, np.ndarray], object] | None:
    """Returns llama.cpp's function of rows, or None if it has none for the type."""
    try:
        function = llama_cpp.row_function(type_.name)
    except AttributeError:
        return None
    return lambda blocks, out: function(llama_cpp.pointer(blocks), llama_cpp.pointer(out), ctypes.c_int64(out.size))


def by_libgguf(type_: TensorType) -> Callable[[np.ndarray, np.ndarray], object] | None:
    """Returns libgguf's function of rows, or None if it is not installed or lacks the type."""
    if not find_spec("libgguf"):
        return None
    import libgguf

    def run(blocks: np.ndarray, out: np.ndarray) -> None:
        libgguf.dequantize_rows_into_raw(int(type_.code), blocks, out, len(out), out.shape[1])

    try:
        row = np.zeros((1, type_.nbytes([1, COLUMNS])), np.uint8)
        run(row, np.zeros((1, COLUMNS), np.float32))
    except Exception:  # its own errors for types that it lacks
        return None
    return run


def by_gguf_py(type_: TensorType, blocks: np.ndarray) -> float | None:
    """Returns gguf-py's time in seconds; None if it lacks the type."""
    try:
        with np.errstate(all="ignore"):
            return once(lambda: gguf.dequantize(blocks, getattr(gguf.GGMLQuantizationType, type_.name)))
    except (AttributeError, NotImplementedError):
        return None


def without(variable: str, run: Callable[[], object]) -> Callable[[], None]:
    """Returns a call for which the variable of the library is "off"."""

    def run_without() -> None:
        before = os.environ.get(variable, "")
        os.environ[variable] = "off"
        try:
            run()
        finally:
            os.environ[variable] = before

    return run_without


def rows() -> Iterator[Row]:
    weights = ROWS * COLUMNS * 4e-9  # GB of output
    threads = torch.get_num_threads()
    memory = np.zeros((ROWS, COLUMNS), np.float32)  # numpy asks for large pages, torch does not
    filled = torch.from_numpy(memory)
    for type_ in [*GGML_TYPES, *GLFT.types]:
        if type_.exact:
            continue
        fields = payload(type_)
        decode = partial(type_.decode, fields, COLUMNS, out=memory)
        runs: dict[str, Callable[[], object]] = {
            "ours": decode,
            "operations": without(MODE, decode),
            "fill": lambda: filled.fill_(1.0),
        }
        blocks = fields.get("blocks", np.empty(0, np.uint8))
        for peer, function in (("C", by_c(type_)), ("libgguf", by_libgguf(type_))):
            if len(blocks) and function:
                runs[peer] = in_threads(function, blocks, memory)
        times, seconds = in_turn(runs), by_gguf_py(type_, blocks) if len(blocks) else None
        if "C" in runs:
            with busy_processes(threads):
                beside = in_turn({name: runs[name] for name in ("ours", "C")})
            busy = f"dequantize {type_}, {threads} threads, beside {threads} busy processes"
            yield Row(
                busy, weights / beside["ours"], f"llama.cpp's C, {threads} threads", weights / beside["C"], "GB/s", at_least=1.0
            )
        rate = {name: weights / time for name, time in times.items()}
        what = f"dequantize {type_}, {threads} threads"
        fill, c = ("torch.fill_", rate["fill"], 0.6), (f"llama.cpp's C, {threads} threads", rate.get("C", 0), 1.0)
        peer, theirs, least = c if "C" in rate and c[1] * c[2] < fill[1] * fill[2] else fill  # the lower goal
        yield Row(what, rate["ours"], peer, theirs, "GB/s", at_least=least)
        if "libgguf" in rate:
            yield Row(what, rate["ours"], f"libgguf, {threads} threads", rate["libgguf"], "GB/s", at_least=1.0)
        if seconds:
            yield Row(what, rate["ours"], "gguf-py", weights / seconds, "GB/s", at_least=20.0)
        yield Row(f"{what}, without the library", rate["operations"], peer, theirs, "GB/s")
