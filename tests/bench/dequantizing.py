"""Payloads into float32, type by type, into memory that is ready."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import gguf
import numpy as np
import torch

from glft_schema.formats.glft import GLFT
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.bench.measure import Row, busy_processes, compared, seconds_of
from tests.bench.peers import decoders, without_library

ROWS, COLUMNS = 8192, 4096  # 128 MiB as float32: more than any cache holds


def payload(type_: TensorType) -> dict[str, np.ndarray]:
    """Returns fields of random weights, or random bytes if the type needs an importance."""
    if not type_.needs_importance:
        weights = np.random.default_rng(0).standard_normal((256, COLUMNS), np.float32)
        return {name: np.tile(field, (ROWS // 256, 1)) for name, field in type_.encode(weights, "w").items()}
    size = type_.nbytes([ROWS, COLUMNS]) // ROWS
    return {"blocks": np.random.default_rng(0).integers(0, 256, (ROWS, size), dtype=np.uint8)}


def rows() -> Iterator[Row]:
    size, threads = ROWS * COLUMNS * 4e-9, torch.get_num_threads()  # GB of output
    memory = np.zeros((ROWS, COLUMNS), np.float32)  # numpy asks for large pages, torch does not
    fill = {"torch.fill_": partial(torch.from_numpy(memory).fill_, 1.0)}
    for type_ in [type_ for type_ in [*GGML_TYPES, *GLFT.types] if not type_.exact]:
        fields, what = payload(type_), f"dequantize {type_}, {threads} threads"
        decode = partial(type_.decode, fields, COLUMNS, out=memory)
        theirs = decoders(type_, fields["blocks"], memory) if type_.block else {}
        with busy_processes(threads if theirs else 0):
            yield from compared(f"{what}, beside {threads} busy processes", decode, theirs, 1.0, size)
        found = list(compared(what, decode, theirs | fill, dict.fromkeys(theirs, 1.0) | dict.fromkeys(fill, 0.6), size))
        yield from found
        yield from compared(f"{what}, without the library", without_library(decode), theirs or fill, amount=size)
        with suppress(AttributeError, KeyError, NotImplementedError), np.errstate(all="ignore"):
            dequantize = partial(gguf.dequantize, fields["blocks"], getattr(gguf.GGMLQuantizationType, type_.name))
            yield Row(what, found[0].ours, "gguf-py", size / seconds_of(dequantize), "GB/s", 20.0)
