"""What a user gets: fresh processes, timed after their imports, and files in the page cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file as load_safetensors
from safetensors.torch import save_file as save_safetensors

from glft_schema import save_file
from glft_schema.tensor_types.library.loading import MODE
from tests.bench import files
from tests.bench.measure import Row, busy_processes, compared, in_turn

TYPES = ("q8_per_channel", "q4_per_group_64", "q8_0", "q4_0", "q4_k", "q6_k", "iq4_xs", "mxfp4")
TENSORS, ROWS, COLUMNS = 8, 4096, 4096  # 64 MiB each, 512 MiB in all, as float32
REPEATS = 2  # after a warm-up
GB = TENSORS * ROWS * COLUMNS * 4e-9

# Each peer: what is done before, and what is timed. `path` is the file, `threads` their number.
OURS = "import glft_schema"
READY = """
import glft_schema
with glft_schema.open(path) as file:
    out = {name: torch.ones(tensor.shape) for name, tensor in file.tensors.items()}
"""
C = """
import ctypes
import glft_schema
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from tests.oracles import llama_cpp
file = glft_schema.open(path)
tensors = [
    (llama_cpp.row_function(t.type.name), np.frombuffer(t.raw, np.uint8).reshape(t.shape[0], -1), t.shape)
    for t in file.tensors.values()
]
pool = ThreadPoolExecutor(threads)
def load():
    done = []
    for function, blocks, shape in tensors:
        out = np.empty(shape, np.float32)
        def run(rows):
            part = out[rows]
            function(llama_cpp.pointer(blocks[rows]), llama_cpp.pointer(part), ctypes.c_int64(part.size))
        size = -(-shape[0] // threads)
        list(pool.map(run, [slice(first, first + size) for first in range(0, shape[0], size)]))
        done.append(out)
    return done
"""
LIBGGUF = """
import gguf, libgguf
def load():
    return [libgguf.dequantize_rows(t.data, int(t.tensor_type)) for t in gguf.GGUFReader(path).tensors]
"""
GGUF_PY = """
import gguf
def load():
    return [gguf.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors]
"""
PEERS = {"llama.cpp's C": C, **({"libgguf": LIBGGUF} if find_spec("libgguf") else {}), "gguf-py": GGUF_PY}
FILL = f"kept = [torch.empty({ROWS}, {COLUMNS}).fill_(1.0) for _ in range({TENSORS})]"
TOUCHED = """
def touched(tensors):
    return sum(float(tensor.view(-1)[:: 4096 // tensor.itemsize].sum()) for tensor in tensors.values() if tensor.numel())
"""


def seconds(before: str, timed: str, path: Path | None = None, with_library: bool = True) -> float:
    """Returns the seconds that a statement takes in a fresh process."""
    code = f"""
import sys, time
import torch
threads, path = {torch.get_num_threads()}, {str(path)!r}
torch.set_num_threads(threads)
torch.ones(1 << 16).sum()  # starts torch's threads
{before}
start = time.perf_counter()
{timed}
print(time.perf_counter() - start)
"""
    environment = {**os.environ, MODE: "" if with_library else "off"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def call(run: Callable[[], Any]) -> float:
    return float(run())


fresh = partial(compared, repeats=REPEATS, measure=call)


def loading(folder: Path) -> Iterator[Row]:
    """Measures `load_file` and `get_tensor` of quantized files into new memory and into `out`."""
    part = torch.randn(256, COLUMNS, generator=torch.Generator().manual_seed(0))
    for scheme in TYPES:
        is_gguf = "_per_" not in scheme
        path = folder / ("m.gguf" if is_gguf else "m.glft")
        weights = part.repeat(ROWS // len(part), 1)
        save_file({f"blk.{number}.weight": weights.clone() for number in range(TENSORS)}, path, schemes={"*": scheme})
        new = {"torch.fill_ of new memory": partial(seconds, "", FILL)}
        theirs = {name: partial(seconds, before, "kept = load()", path) for name, before in PEERS.items() if is_gguf}
        what = f"load_file, 512 MiB of float32 from {scheme}"
        ours = partial(seconds, OURS, "kept = glft_schema.load_file(path)", path)
        yield from fresh(what, ours, new | theirs, dict.fromkeys(new, 0.85), GB)
        out = partial(seconds, READY, "glft_schema.load_file(path, out=out)", path)
        used = {"torch.fill_ of used memory": partial(seconds, FILL, "for tensor in kept: tensor.fill_(2.0)")}
        yield from fresh(f"{what}, out=", out, used, 0.5, GB)
        path.unlink()


def first_row() -> Iterator[Row]:
    """Measures from opening a real file to its first row, and the whole file."""
    path = files.smollm2()
    row = partial(seconds, OURS, "kept = glft_schema.open(path).tensors['token_embd.weight'][0]", path)
    theirs = "reader = gguf.GGUFReader(path); kept = gguf.dequantize(reader.tensors[1].data[:1], reader.tensors[1].tensor_type)"
    yield from fresh("open SmolLM2, one row", row, {"gguf-py": partial(seconds, "import gguf", theirs, path)})
    whole = partial(seconds, OURS, "kept = glft_schema.load_file(path)", path)
    by_gguf_py = {"gguf-py": partial(seconds, PEERS["gguf-py"], "kept = load()", path)}
    yield from fresh("load SmolLM2 as a state dict", whole, by_gguf_py, 1 / 25)


def on_a_busy_machine() -> Iterator[Row]:
    """Measures a real file beside as many busy processes as there are threads."""
    run = partial(seconds, OURS, "kept = glft_schema.load_file(path)", files.smollm2())
    quiet = in_turn({"": run}, REPEATS, call)[""]
    with busy_processes(count := torch.get_num_threads()):
        times = in_turn({"with the library": run, "without": partial(run, with_library=False)}, REPEATS, call)
    for how, found in times.items():
        yield Row(f"load SmolLM2 beside {count} busy processes, {how}", found, "alone, with the library", quiet, "s")


def as_stored(folder: Path) -> Iterator[Row]:
    """Measures floats that are mapped, beside safetensors."""
    tensors = {name: tensor for name, tensor in load_safetensors(files.minilm()).items() if tensor.is_floating_point()}
    for dtype in ("float32", "float16"):
        converted = {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}
        save_safetensors(converted, folder / "m.safetensors")
        imports = f"{TOUCHED}\nfrom safetensors.torch import load_file"
        theirs = {"safetensors.load_file": partial(seconds, imports, "touched(load_file(path))", folder / "m.safetensors")}
        for name, schemes in (("m.glft", {}), ("m.gguf", {"*": f"f{dtype[-2:]}"})):
            save_file(converted, folder / name, schemes=schemes)
            ours = partial(seconds, f"{TOUCHED}\n{OURS}", "touched(glft_schema.load_file(path))", folder / name)
            what = f"load MiniLM from {name[2:].upper()}, {dtype}, a number of each page read"
            yield from fresh(what, ours, theirs, 1.1)


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        yield from loading(Path(name))
        yield from first_row()
        yield from on_a_busy_machine()
        yield from as_stored(Path(name))
