"""Quantizing float32, for the types with an encoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import numpy as np
import torch

from glft_schema.errors import TensorError
from glft_schema.formats.glft import GLFT
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.bench.measure import Row, busy_processes, compared
from tests.bench.peers import encoders, without_library

ROWS, COLUMNS = 1024, 4096
SEARCHED_ROWS = 512  # a search takes a hundred times longer
LEGACY = ("Q4_0", "Q4_1", "Q5_0", "Q5_1")  # which search only by importance


def rows() -> Iterator[Row]:
    random = np.random.default_rng(0)
    all_weights, columns = random.standard_normal((ROWS, COLUMNS), np.float32), random.random(COLUMNS, np.float32)
    memory, threads = torch.empty(ROWS, COLUMNS), torch.get_num_threads()
    for type_ in [type_ for type_ in [*GGML_TYPES, *GLFT.types] if not type_.exact]:
        for importance in [None] * (not type_.needs_importance) + [columns] * type_.takes_importance:
            searches = importance is not None or (type_.takes_importance and type_.name not in LEGACY)
            weights = all_weights[:SEARCHED_ROWS] if searches else all_weights
            size, goal = weights.nbytes * 1e-9, 1.5 if type_.name.endswith("_K") else 1.0
            encode = partial(type_.encode, weights, "w", importance=importance)
            what = f"quantize {type_}, {threads} threads" + ", by importance" * (importance is not None)
            if not type_.block:
                moved = size + type_.nbytes(weights.shape) * 1e-9
                yield from compared(what, encode, {"torch.fill_": partial(memory.fill_, 1.0)}, amount=moved)
                continue
            theirs = encoders(type_, weights, importance)
            with busy_processes(2):
                yield from compared(f"{what}, beside 2 busy processes", encode, theirs, goal, size, 3)
            yield from compared(what, encode, theirs, goal, size, 2 if searches else 5)
            with suppress(TensorError):  # of encoders that need the library
                yield from compared(f"{what}, without the library", without_library(encode), theirs, {}, size, 2)
