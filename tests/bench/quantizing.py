"""Quantizing float32, for the types with an encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.util import find_spec

import numpy as np
import torch

from glft_schema.errors import TensorError
from glft_schema.formats.glft import GLFT
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.library.loading import MODE
from tests.bench.dequantizing import without
from tests.bench.measure import Row, busy_processes, in_turn
from tests.oracles import llama_cpp

ROWS, COLUMNS = 1024, 4096
SEARCHED_ROWS = 512  # a search takes a hundred times longer
C = "llama.cpp's C"


def in_threads(calls: list[Callable[[], object]]) -> Callable[[], None]:
    """Returns a call that runs calls which release Python's lock, each in a new thread: some use
    OpenMP, which makes other threads slow as long as theirs exist."""

    def run() -> None:
        with ThreadPoolExecutor(len(calls)) as pool:
            list(pool.map(lambda call: call(), calls))

    return run


def peers(type_: TensorType, weights: np.ndarray, importance: np.ndarray | None) -> dict[str, Callable[[], object]]:
    """Returns the calls of llama.cpp's C and of libgguf, if it is installed, in as many threads as
    torch uses."""
    parts = np.array_split(weights, torch.get_num_threads())
    outs = [np.zeros((len(part), type_.nbytes([1, COLUMNS])), np.uint8) for part in parts]
    pairs = list(zip(parts, outs, strict=True))
    by_c = [llama_cpp.quantizing(type_.code, part, out, importance) for part, out in pairs]
    found: dict[str, Callable[[], object]] = {C: in_threads(by_c)}
    if find_spec("libgguf"):
        import libgguf

        def call(part: np.ndarray, out: np.ndarray) -> object:
            return libgguf.quantize_rows_into_raw(int(type_.code), part, out, len(part), COLUMNS, importance)

        try:
            call(np.zeros((1, COLUMNS), np.float32), np.zeros((1, type_.nbytes([1, COLUMNS])), np.uint8))
        except Exception:  # its own errors for types that it lacks
            return found
        found["libgguf"] = in_threads([partial(call, *pair) for pair in pairs])
    return found


def by(peer: str) -> str:
    """Returns a peer and its threads."""
    return f"{peer}, {torch.get_num_threads()} threads"


def rows() -> Iterator[Row]:
    random = np.random.default_rng(0)
    all_weights = random.standard_normal((ROWS, COLUMNS), np.float32)
    legacy = [GGML_TYPES[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1")]  # which search only by importance
    columns, memory, threads = random.random(COLUMNS, np.float32), torch.empty(ROWS, COLUMNS), torch.get_num_threads()
    for type_ in [*GGML_TYPES, *GLFT.types]:
        if type_.exact:
            continue
        for importance in [None] * (not type_.needs_importance) + [columns] * type_.takes_importance:
            searches = importance is not None or (type_.takes_importance and type_ not in legacy)
            weights = all_weights[:SEARCHED_ROWS] if searches else all_weights
            size = weights.nbytes * 1e-9
            encode = partial(type_.encode, weights, "w", importance=importance)
            ours: dict[str, Callable[[], object]] = {"ours": encode}
            with suppress(TensorError):  # of encoders that need the library
                without(MODE, partial(type_.encode, weights[:1], "w", importance=importance))()
                ours["numpy"] = without(MODE, encode)
            what = f"quantize {type_}, {threads} threads" + ", by importance" * (importance is not None)
            if type_.block:
                theirs = peers(type_, weights, importance)
                with busy_processes(2):
                    busy = in_turn({"ours": encode, C: theirs[C]}, 3)
                times = in_turn(ours | theirs, 2 if searches else 5)
                rates, besides = ({name: size / taken for name, taken in some.items()} for some in (times, busy))
                goal = 1.5 if type_.name.endswith("_K") else 1.0
                yield Row(f"{what}, beside 2 busy processes", besides["ours"], by(C), besides[C], "GB/s", at_least=goal)
                for peer in theirs:
                    yield Row(what, rates["ours"], by(peer), rates[peer], "GB/s", at_least=goal if peer == C else 1.0)
                if "numpy" in rates:
                    yield Row(f"{what}, without the library", rates["numpy"], by(C), rates[C], "GB/s")
            else:
                times = in_turn({**ours, "fill": lambda: memory.fill_(1.0)}, 5)
                moved = size + type_.nbytes(weights.shape) * 1e-9
                yield Row(what, moved / times["ours"], "torch.fill_", size / times["fill"], "GB/s")
