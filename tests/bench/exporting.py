"""Converting a large checkpoint to a packed file: time and memory."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file as load_safetensors
from safetensors.torch import save_file as save_safetensors

from tests.bench.measure import Row, in_turn

TENSORS, ROWS, COLUMNS = 32, 4096, 4096  # 64 MiB each, 2 GiB in all

# Run in its own process: prints the seconds, and the peak of memory without mapped files.
EXPORT = """
import json, sys, threading, time
import torch
from glft_schema import convert

def own():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))

torch.set_num_threads(int(sys.argv[3]))
torch.zeros(1).add_(1)
before, peak, done = own(), [0], threading.Event()

def watch():
    while not done.wait(0.002):
        peak[0] = max(peak[0], own())

threading.Thread(target=watch, daemon=True).start()
start = time.perf_counter()
convert(sys.argv[1], sys.argv[2], schemes={"*": "q4_per_group_64"})
taken = time.perf_counter() - start
done.set()
print(json.dumps([taken, peak[0] - before]))
"""


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        source, out, copy = (Path(name, file) for file in ("large.safetensors", "large.glft", "copy"))
        weights = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
        save_safetensors({f"layer.{number}.weight": weights.clone() for number in range(TENSORS)}, source)
        command = [sys.executable, "-c", EXPORT, str(source), str(out), str(torch.get_num_threads())]
        runs = [json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(3)]
        seconds, memory = min(run[0] for run in runs), max(run[1] for run in runs)
        parts = {
            "copy": lambda: shutil.copyfile(out, copy),
            "read": lambda: [float(tensor.sum()) for tensor in load_safetensors(source).values()],
        }
        theirs = sum(in_turn(parts, 3).values())
        yield Row("export 2 GiB to q4", seconds, "copying the result, torch reading the source", theirs, "s", 3.0)
        allowed = 2 * weights.nbytes + 300e6
        yield Row("its memory", memory / 1e6, "two of the largest tensor and 300 MB", allowed / 1e6, "MB", 1.0)
