"""Formulas and packed layers on a GPU, and whole files loaded to it; nothing without a GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file as load_safetensors
from safetensors.torch import save_file as save_safetensors
from torch import nn

from glft_schema import load_file, save_file
from glft_schema.formats.glft import GLFT
from glft_schema.nn import Linear
from glft_schema.storage.torch_tensors import as_tensor
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.on_torch import decode
from tests.bench.measure import Row, compared, in_turn

ROWS, COLUMNS = 32768, 8192  # 1 GiB as float32
TYPES = [*GLFT.types, *(GGML_TYPES[name] for name in ("Q8_0", "Q4_0", "Q4_K", "Q6_K", "IQ4_XS", "IQ3_S"))]


def waited(run: Callable[[], object]) -> Callable[[], None]:
    """Returns a call that waits for the device."""

    def run_and_wait() -> None:
        run()
        torch.cuda.synchronize()

    return run_and_wait


def formulas() -> Iterator[Row]:
    """Measures dequantizing on the device against copying."""
    weights = torch.randn(ROWS, COLUMNS, device="cuda")
    other = torch.empty_like(weights)
    copy, copied = waited(lambda: other.copy_(weights)), 2 * weights.nbytes * 1e-9
    for type_ in TYPES:
        if type_.exact:
            continue
        packed = type_.nbytes([ROWS, COLUMNS])
        if type_ in list(GLFT.types):
            fields = {name: as_tensor(field).cuda() for name, field in type_.encode(weights, "w").items()}
        else:
            fields = {"blocks": torch.randint(0, 256, (ROWS, packed // ROWS), dtype=torch.uint8, device="cuda")}
        for dtype in (torch.bfloat16, torch.float32):
            out = torch.empty(ROWS, COLUMNS, dtype=dtype, device="cuda")
            run = partial(decode, type_, fields, COLUMNS, dtype=dtype, out=out)
            times, moved = in_turn({"ours": waited(run), "copy": copy}, 10), (packed + out.nbytes) * 1e-9
            what = f"dequantize {type_} to {str(dtype).removeprefix('torch.')} on the device, bytes moved"
            yield Row(what, moved / times["ours"], "device copy", copied / times["copy"], "GB/s", 0.85)


def packed_layers() -> Iterator[Row]:
    """Measures forward passes of packed layers against a dense one."""
    dense = nn.Linear(COLUMNS, COLUMNS, bias=False, dtype=torch.bfloat16, device="cuda")
    for name in ("Q8_0", "Q4_K"):
        layer = Linear(COLUMNS, COLUMNS, name).cuda()
        for batch in (1, 512, 4096):
            x = torch.randn(batch, COLUMNS, dtype=torch.bfloat16, device="cuda")
            what = f"forward of packed {name}, {COLUMNS} x {COLUMNS}, batch {batch}, bfloat16, on the device"
            with torch.no_grad():
                yield from compared(what, waited(partial(layer, x)), {"dense bfloat16": waited(partial(dense, x))}, repeats=10)


def files_to_the_device(folder: Path) -> Iterator[Row]:
    """Measures loading whole files from the page cache to the device as bfloat16."""
    pinned = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    host = pinned.nbytes / in_turn({"copy": waited(lambda: there.copy_(pinned, non_blocking=True))}, 10)["copy"] * 1e-9
    weights = torch.randn(8192, 8192)
    tensors = {f"blk.{number}.weight": weights.clone() for number in range(24)}
    plain = folder / "plain.safetensors"
    save_safetensors({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}, plain)
    for scheme, name in (("q4_per_group_64", "m.glft"), ("q8_per_channel", "m.glft"), ("q4_0", "m.gguf")):
        path = folder / name
        save_file(tensors, path, schemes={"*": scheme})
        ours, size = waited(partial(load_file, path, "cuda", dtype=torch.bfloat16)), path.stat().st_size * 1e-9
        theirs = {"safetensors of the bfloat16 model": waited(partial(load_safetensors, plain, device="cuda"))}
        what = f"load {size:.1f} GB of {scheme} to the device as bfloat16"
        (row,) = compared(what, ours, theirs, 1 / 5, repeats=3)
        yield Row(what, size / row.ours, "pinned memory to the device", host, "GB/s", 0.85)
        yield row


def rows() -> Iterator[Row]:
    if not torch.cuda.is_available():
        return
    yield from formulas()
    yield from packed_layers()
    with tempfile.TemporaryDirectory() as name:
        yield from files_to_the_device(Path(name))
