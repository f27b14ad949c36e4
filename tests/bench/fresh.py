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

import torch
from safetensors.torch import load_file as load_safetensors
from safetensors.torch import save_file as save_safetensors

from glft_schema import save_file
from glft_schema.tensor_types.library.loading import MODE
from tests.bench import files
from tests.bench.measure import Row, busy_processes

TYPES = ("q8_per_channel", "q4_per_group_64", "q8_0", "q4_0", "q4_k", "q6_k", "iq4_xs", "mxfp4")
TENSORS, ROWS, COLUMNS = 8, 4096, 4096  # 64 MiB each, 512 MiB in all, as float32
REPEATS = 3
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


def best(runs: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Returns the best seconds of each run, in alternating rounds."""
    rounds = [{name: run() for name, run in runs.items()} for _ in range(REPEATS)]
    return {name: min(times[name] for times in rounds) for name in runs}


def loading(folder: Path) -> Iterator[Row]:
    """Measures `load_file` and `get_tensor` of quantized files into new memory and into `out`."""
    part = torch.randn(256, COLUMNS, generator=torch.Generator().manual_seed(0))
    for scheme in TYPES:
        is_gguf = "_per_" not in scheme
        path = folder / ("m.gguf" if is_gguf else "m.glft")
        weights = part.repeat(ROWS // len(part), 1)
        save_file({f"blk.{number}.weight": weights.clone() for number in range(TENSORS)}, path, schemes={"*": scheme})
        runs = {
            "ours": partial(seconds, OURS, "kept = glft_schema.load_file(path)", path),
            "out": partial(seconds, READY, "glft_schema.load_file(path, out=out)", path),
            "one": partial(seconds, OURS, "kept = glft_schema.open(path).get_tensor('blk.0.weight')", path),
            "fill": partial(seconds, "", FILL),
            "ready": partial(seconds, FILL, "for tensor in kept: tensor.fill_(2.0)"),
        }
        if is_gguf:
            runs["C"] = partial(seconds, C, "kept = load()", path)
            runs["gguf-py"] = partial(seconds, GGUF_PY, "kept = load()", path)
            if find_spec("libgguf"):
                runs["libgguf"] = partial(seconds, LIBGGUF, "kept = load()", path)
        times = best(runs)
        what = f"load_file, 512 MiB of float32 from {scheme}"
        yield Row(what, GB / times["ours"], "torch.fill_ of new memory", GB / times["fill"], "GB/s", at_least=0.85)
        for peer in ("C", "libgguf", "gguf-py"):
            if peer in times:
                yield Row(what, GB / times["ours"], "llama.cpp's C" if peer == "C" else peer, GB / times[peer], "GB/s")
        yield Row(f"{what}, out=", GB / times["out"], "torch.fill_ of used memory", GB / times["ready"], "GB/s", at_least=0.5)
        one = GB / TENSORS / times["one"]
        yield Row(f"open and get_tensor, 64 MiB from {scheme}", one, "torch.fill_ of new memory", GB / times["fill"], "GB/s")
        path.unlink()


def first_row() -> Iterator[Row]:
    """Measures from opening a real file to its first row, and the whole file."""
    path = files.smollm2()
    row = "kept = glft_schema.open(path).tensors['token_embd.weight'][0]"
    theirs = "reader = gguf.GGUFReader(path); kept = gguf.dequantize(reader.tensors[1].data[:1], reader.tensors[1].tensor_type)"
    times = best({"row": partial(seconds, OURS, row, path), "theirs": partial(seconds, "import gguf", theirs, path)})
    yield Row("open SmolLM2, one row", times["row"], "gguf-py", times["theirs"], "s")
    whole = partial(seconds, OURS, "kept = glft_schema.load_file(path)", path)
    times = best({"ours": whole, "theirs": partial(seconds, GGUF_PY, "kept = load()", path)})
    yield Row("load SmolLM2 as a state dict", times["ours"], "gguf-py", times["theirs"], "s", at_most=1 / 25)


def on_a_busy_machine() -> Iterator[Row]:
    """Measures a real file beside as many busy processes as there are threads."""
    run = partial(seconds, OURS, "kept = glft_schema.load_file(path)", files.smollm2())
    quiet = min(run() for _ in range(REPEATS))
    with busy_processes(count := torch.get_num_threads()):
        times = best({"with the library": run, "without": partial(run, with_library=False)})
    for how, found in times.items():
        yield Row(f"load SmolLM2 beside {count} busy processes, {how}", found, "alone, with the library", quiet, "s")


def as_stored(folder: Path) -> Iterator[Row]:
    """Measures floats that are mapped, beside safetensors."""
    tensors = {name: tensor for name, tensor in load_safetensors(files.minilm()).items() if tensor.is_floating_point()}
    for dtype in ("float32", "float16"):
        converted = {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}
        save_safetensors(converted, folder / "m.safetensors")
        runs = {
            "theirs": partial(
                seconds,
                f"{TOUCHED}\nfrom safetensors.torch import load_file",
                "touched(load_file(path))",
                folder / "m.safetensors",
            )
        }
        for name in ("m.glft", "m.gguf"):
            save_file(converted, folder / name, schemes={"*": f"f{dtype[-2:]}"} if name == "m.gguf" else {})
            runs[name] = partial(seconds, f"{TOUCHED}\n{OURS}", "touched(glft_schema.load_file(path))", folder / name)
        times = best(runs)
        for name in ("m.glft", "m.gguf"):
            what = f"load MiniLM from {name[2:].upper()}, {dtype}, a number of each page read"
            yield Row(what, times[name], "safetensors.load_file", times["theirs"], "s", at_most=1.1)


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        yield from loading(Path(name))
        yield from first_row()
        yield from on_a_busy_machine()
        yield from as_stored(Path(name))
