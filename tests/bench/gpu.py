"""Formulas and packed layers on a GPU, and whole files loaded to it; nothing without a GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn

from glft_schema.formats.glft import GLFT
from glft_schema.nn import Linear
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.on_torch import decode_packed
from glft_schema.tensor_types.on_triton import _KERNELS, MAX_ROWS
from glft_schema.tensor_types.tensor_type import TensorType
from tests.bench.measure import Row, in_turn
from tests.bench.uploads import files_to_the_device, waited

ROWS, COLUMNS = 32768, 8192  # 1 GiB as float32
SIZE = 8192  # of layers
TYPES = [type_ for type_ in [*GLFT.types, *GGML_TYPES] if not type_.exact]
LAYERS = ("Q8_0", "Q4_0", "Q4_K", "Q6_K", "IQ4_XS", "IQ2_XXS", "IQ3_S", "MXFP4", "Q8_per_channel", "Q4_per_group_64")
GOALS = {1: 1.0, 16: 1.5, 512: 1.6, 4096: 1.15}  # of a dense layer's time, by rows of x
FOUR_BITS = ("Q4_0", "Q4_K", "IQ4_XS", "MXFP4", "Q4_per_group_64")  # half of it for one row


def packed_of(type_: TensorType, rows: int, columns: int) -> torch.Tensor:
    """Returns random bytes as packed rows, whose float16 numbers are small."""
    packed = torch.randint(0, 256, (rows, type_.nbytes([1, columns])), dtype=torch.uint8, device="cuda")
    layout = type_.scalar_layout
    cells, spans = packed, [span for _, span, _ in type_.spans_of_row(columns)]
    if layout.weights:
        cells, spans = packed.view(-1, layout.offsets[-1]), list(map(slice, layout.offsets, layout.offsets[1:]))
    for field, span in zip(layout.fields, spans, strict=True):
        if field.number in ("f16", "f32"):
            cells[:, span] = 0x11
    return packed


def formulas() -> Iterator[Row]:
    """Measures dequantizing on the device against copying."""
    weights = torch.randn(ROWS, COLUMNS, device="cuda")
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.empty(ROWS, COLUMNS, dtype=dtype, device="cuda")
        source = weights.to(dtype)
        copy, copied = waited(partial(out.copy_, source)), 2 * out.nbytes * 1e-9
        for type_ in TYPES:
            packed = packed_of(type_, ROWS, COLUMNS)
            run = waited(partial(decode_packed, type_, packed, COLUMNS, out))
            times, moved = in_turn({"ours": run, "copy": copy}, 10), (packed.nbytes + out.nbytes) * 1e-9
            what = f"dequantize {type_} to {str(dtype).removeprefix('torch.')} on the device, bytes moved"
            yield Row(what, moved / times["ours"], "device copy", copied / times["copy"], "GB/s", 0.85)


def packed_layers() -> Iterator[Row]:
    """Measures forward passes of packed layers against a dense one, and says how they multiply."""
    dense = nn.Linear(SIZE, SIZE, bias=False, dtype=torch.bfloat16, device="cuda")
    for name in LAYERS:
        layer = Linear(SIZE, SIZE, name, device="cuda")
        if layer.weight_type.needs_importance:
            layer.weight.data.copy_(packed_of(layer.weight_type, SIZE, SIZE))
        else:
            layer.set_weights(torch.randn(SIZE, SIZE) / 64)
        for batch, goal in GOALS.items():
            x = torch.randn(batch, SIZE, dtype=torch.bfloat16, device="cuda")
            runs = {"ours": waited(partial(layer, x)), "dense": waited(partial(dense, x))}
            with torch.no_grad():
                times = in_turn(runs, 20)
            kernels = [kernel for key, kernel in _KERNELS.items() if key[::6] == (layer.weight_type, SIZE) and key[4] == batch]
            method = "decoding" if batch > MAX_ROWS or not kernels[0] else kernels[0].method.form
            what = f"forward of packed {name}, {SIZE} x {SIZE}, batch {batch}, bfloat16, by {method}"
            goal /= 2 if batch == 1 and name in FOUR_BITS else 1
            yield Row(what, times["ours"], "dense bfloat16", times["dense"], "s", goal)


def rows() -> Iterator[Row]:
    if not torch.cuda.is_available():
        return
    yield from formulas()
    yield from packed_layers()
    with tempfile.TemporaryDirectory() as name:
        yield from files_to_the_device(Path(name))
