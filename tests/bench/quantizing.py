"""Quantizing float32, for the types with an encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from glft_schema.formats.glft import GLFT
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.bench.measure import Row, in_turn
from tests.oracles import llama_cpp

ROWS, COLUMNS = 1024, 4096
SEARCHED_ROWS = 512  # a search takes a hundred times longer


def rows() -> Iterator[Row]:
    all_weights = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    columns, memory, threads = torch.rand(COLUMNS), torch.empty_like(all_weights), torch.get_num_threads()
    for type_ in [*GGML_TYPES, *GLFT.types]:
        if type_.exact:
            continue
        what = f"quantize {type_}, {threads} threads"
        for importance in [None] * bool(type_.quantize) + [columns] * bool(type_.weighted):
            searches = type_.searches or importance is not None
            weights = all_weights[:SEARCHED_ROWS] if searches else all_weights
            size = weights.nbytes * 1e-9
            runs: dict[str, Callable[[], object]] = {"ours": partial(type_.encode, weights, "w", importance=importance)}
            if type_.block:
                out = np.zeros(type_.nbytes(weights.shape), np.uint8)
                matters = None if importance is None else importance.numpy()
                runs["C"] = llama_cpp.quantizing(type_.code, weights.numpy(), out, matters)
            else:
                runs["fill"] = lambda: memory.fill_(1.0)
            times, more = in_turn(runs, 2 if searches else 5), ", by importance" * (importance is not None)
            if "C" in times:
                c = size / times["C"]
                yield Row(what + more, size / times["ours"], "llama.cpp's C, 1 thread", c, "GB/s", at_least=1.0)
            else:
                moved = size + type_.nbytes(weights.shape) * 1e-9
                yield Row(what, moved / times["ours"], "torch.fill_", size / times["fill"], "GB/s")
