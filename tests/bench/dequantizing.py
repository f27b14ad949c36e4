"""Payloads into float32, type by type."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial

import gguf
import numpy as np
import torch

from glft_schema.formats.glft import GLFT
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.engine.compiled import compile_formulas
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.bench.measure import Row, in_turn, once
from tests.oracles import llama_cpp

ROWS, COLUMNS = 8192, 4096  # 128 MiB as float32: more than any cache holds
AGAINST_MEMORY = ("Q8_0", "Q8_per_channel", "Q4_per_group_64")


def payload(type_: TensorType) -> dict[str, torch.Tensor]:
    """Returns fields of random weights, or random bytes if the type needs an importance."""
    if not type_.needs_importance:
        weights = torch.randn(256, COLUMNS, generator=torch.Generator().manual_seed(0))
        fields = type_.encode(weights, "w")
        return {name: field.repeat(ROWS // 256, 1) for name, field in fields.items()}
    size = type_.nbytes([ROWS, COLUMNS]) // ROWS
    blocks = np.random.default_rng(0).integers(0, 256, (ROWS, size), dtype=np.uint8)
    return {"blocks": torch.from_numpy(blocks)}


def by_c(type_: TensorType, blocks: np.ndarray, out: np.ndarray) -> Callable[[], None] | None:
    """Returns llama.cpp's call, on one thread; None if it has no function for the type."""
    try:
        function = llama_cpp.row_function(type_.name)
    except AttributeError:
        return None
    return lambda: function(llama_cpp.pointer(blocks), llama_cpp.pointer(out), ctypes.c_int64(out.size))


def by_gguf_py(type_: TensorType, blocks: np.ndarray) -> float | None:
    """Returns gguf-py's time in seconds; None if it lacks the type."""
    try:
        with np.errstate(all="ignore"):
            return once(lambda: gguf.dequantize(blocks, getattr(gguf.GGMLQuantizationType, type_.name)))
    except (AttributeError, NotImplementedError):
        return None


def compiled(run: Callable[[], object]) -> Callable[[], None]:
    """Returns a call with formulas compiled for the processor."""

    def run_compiled() -> None:
        compile_formulas()
        try:
            run()
        finally:
            compile_formulas(False)

    return run_compiled


def rows() -> Iterator[Row]:
    weights = ROWS * COLUMNS * 4e-9  # GB of output
    threads = torch.get_num_threads()
    memory = torch.empty(ROWS, COLUMNS)
    for type_ in [*GGML_TYPES, *GLFT.types]:
        if type_.exact:
            continue
        fields, out = payload(type_), np.zeros((ROWS, COLUMNS), np.float32)
        decode = partial(type_.decode, fields, COLUMNS, out=memory)
        runs: dict[str, Callable[[], object]] = {"": decode, ", compiled": compiled(decode), "fill": lambda: memory.fill_(1.0)}
        blocks = fields["blocks"].numpy() if "blocks" in fields else np.empty(0, np.uint8)
        if len(blocks) and (c := by_c(type_, blocks, out)):
            runs["C"] = c
        times, seconds = in_turn(runs), by_gguf_py(type_, blocks) if len(blocks) else None
        for how in ("", ", compiled"):
            what, rate = f"dequantize {type_}, {threads} threads{how}", weights / times[how]
            if "C" in times:
                yield Row(what, rate, "llama.cpp's C, 1 thread", weights / times["C"], "GB/s", at_least=1.0)
            if seconds:
                yield Row(what, rate, "gguf-py", weights / seconds, "GB/s", at_least=20.0)
            if type_.name in AGAINST_MEMORY:
                yield Row(what, rate, "torch.fill_", weights / times["fill"], "GB/s", at_least=0.6)
