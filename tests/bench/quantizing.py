"""float32 into payloads, for the types that have an encoder."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import numpy as np
import torch

from glft_schema.formats.glft import GLFT
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.ggml import GGML
from tests import llama_cpp
from tests.bench.measure import Row, in_turn

ROWS, COLUMNS = 1024, 4096


def by_c(type_: TensorType, weights: torch.Tensor) -> Callable[[], object]:
    """Returns what llama.cpp does, on one thread."""
    out, function = np.zeros(type_.nbytes(weights.shape), np.uint8), llama_cpp.quantize_function()
    counts = [ctypes.c_int64(number) for number in (0, *weights.shape)]
    given, taken = llama_cpp.pointer(weights.numpy()), llama_cpp.pointer(out)
    return lambda: (function(ctypes.c_int(type_.code), given, taken, *counts, None), out)


def rows() -> Iterator[Row]:
    """Yields what is measured."""
    weights = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    memory, threads, size = torch.empty_like(weights), torch.get_num_threads(), weights.nbytes * 1e-9
    for type_ in [*GGML, *GLFT.types]:
        if type_.exact or not type_.quantize:
            continue
        what = f"quantize {type_}, {threads} threads"
        runs: dict[str, Callable[[], object]] = {"ours": lambda type_=type_: type_.encode(weights, "w")}
        if type_.block:
            runs["C"] = by_c(type_, weights)
        else:
            runs["fill"] = lambda: memory.fill_(1.0)
        times = in_turn(runs)
        if "C" in times:
            yield Row(what, size / times["ours"], "llama.cpp's C, 1 thread", size / times["C"], "GB/s", at_least=1.0)
        else:
            moved = size + type_.nbytes(weights.shape) * 1e-9
            yield Row(what, moved / times["ours"], "torch.fill_", size / times["fill"], "GB/s")
