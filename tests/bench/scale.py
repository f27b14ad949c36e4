"""Files written by many ranks: the planner on a large model, simulated, and beside real runs.

The plan is the one that ranks compute: of all tensors of transformers' default DeepseekV3Config, in
bfloat16, to Q4_K. Rates are measured on one core of this machine. Assumed are `WORKERS_READ` and
`ALL_READ`, the bytes per second that a network file system gives, and that a worker is one core.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import glft_schema as glft
from glft_schema.distributed.shares import Task, spans_of, tasks_of
from glft_schema.files.layout import Layout
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.storage.dtypes import BFLOAT16
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.payload_layout import matrix
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.checkpoints import open_with_metadata
from glft_schema.weights.convert import plan_conversion
from glft_schema.weights.payloads import PlannedPayload
from glft_schema.weights.save import FilePlan, Writing, plan_file
from tests.bench.measure import Row
from tests.tools import launch

WORKERS = (1, 8, 64, 512)
WORKERS_READ, ALL_READ = 1e9, 50e9  # bytes per second, of one worker and of all
TYPE = "q4_k"
REAL = (1, 2, 4)  # processes of the real runs


class Rates(NamedTuple):
    """Measured rates.

    Attributes:
        weight: seconds to encode a weight on one core.
        byte: seconds to write a byte.
        start: seconds until a process begins to write.
    """

    weight: float
    byte: float
    start: float


class Simulated(NamedTuple):
    """A run on a number of workers.

    Attributes:
        seconds: of the slowest worker, and of the whole run.
        equal: seconds if all had equal work and no row were encoded twice.
        requests: reads of the slowest worker.
        read, written: bytes of the slowest worker.
        memory: bytes of the largest rows that a worker holds: stored, as float32, and encoded.
    """

    seconds: float
    equal: float
    requests: int
    read: int
    written: int
    memory: int


def large_model() -> FilePlan:
    """Returns the plan of a file of the large model."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    with torch.device("meta"):
        state = DeepseekV3ForCausalLM(DeepseekV3Config()).state_dict()
    stored = {
        name: StoredTensor(tuple(t.shape), BFLOAT16, lambda: np.empty(0), read=lambda index: np.empty(0))
        for name, t in state.items()
    }
    return plan_file(stored, WITH_TYPES, None, Writing({"*": TYPE}))


def simulated(layout: Layout, workers: int, rates: Rates) -> Simulated:
    """Returns what each worker does by the plan, and what that takes."""
    of_workers = [_work(tasks) for tasks in tasks_of(layout, workers)]
    reading = max(ALL_READ / workers, 1.0) if workers * WORKERS_READ > ALL_READ else WORKERS_READ

    def seconds(weights: int, read: int, written: int) -> float:
        return weights * rates.weight + read / reading + written * rates.byte

    slowest = max(of_workers, key=lambda work: seconds(work.weights, work.read, work.written))
    weights = sum(span.content.stored.numel for span in spans_of(layout) if isinstance(span.content, PlannedPayload))
    return Simulated(
        rates.start + seconds(slowest.weights, slowest.read, slowest.written),
        rates.start + seconds(weights, 2 * weights, layout.nbytes) / workers,
        slowest.requests,
        slowest.read,
        slowest.written,
        max(work.memory for work in of_workers),
    )


class _Work(NamedTuple):
    weights: int
    read: int
    written: int
    requests: int
    memory: int


def _work(tasks: Iterable[Task]) -> _Work:
    """Returns the work of a worker: numbers of weights, bytes and reads."""
    weights = read = requests = memory = 0
    parts = {}
    for span, first, last, rows in tasks:
        parts[first] = last - first
        if isinstance(span.content, PlannedPayload) and rows is not None:
            count = (rows.stop - rows.start) * matrix(span.content.stored.shape)[1]
            weights, read, requests = weights + count * (not span.content.is_unchanged), read + 2 * count, requests + 1
            memory = max(memory, count * (2 + 4 + 1))
    return _Work(weights, read, sum(parts.values()), requests, memory)


def measured_rates(folder: Path) -> Rates:
    """Measures one core of this machine."""
    type_, weights = GGML_TYPES["Q4_K"], torch.randn(2048, 2048)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        type_.encode(weights, "w")
        times.append(time.perf_counter() - start)
    small = folder / "small.safetensors"
    glft.save_file({"w": torch.zeros(4, 256)}, small)
    return Rates(min(times) / weights.numel(), 1.0e-9, run(small, folder / "small.gguf", 1))


def run(source: Path, out: Path, processes: int) -> float:
    """Returns the seconds of a real run, imports included."""
    start = time.perf_counter()
    assert not any(each.code for each in launch.run(processes, ("convert", source, out, "--scheme", f"*={TYPE}")))
    return time.perf_counter() - start


def rows() -> Iterator[Row]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rates, source, cores = measured_rates(folder), folder / "source.safetensors", os.cpu_count() or 1
        yield Row("encoding Q4_K, one core", rates.weight * 1e9, "the table of costs", 74.0, "ns per weight")
        glft.save_file({f"w{i}": torch.randn(2048, 4096, dtype=torch.bfloat16) for i in range(16)}, source)
        layout = plan_conversion(open_with_metadata(source), WITH_TYPES, Writing({"*": TYPE})).layout
        for processes in REAL:
            expected = simulated(layout, processes, rates)
            busy = max(processes / cores, 1.0)  # more processes than cores take turns
            seconds = run(source, folder / "m.gguf", processes)
            yield Row(f"134 M weights to Q4_K, {processes} processes", seconds, "simulated", expected.seconds * busy, "s")
    plan = large_model()
    layout = plan.layout
    for workers in WORKERS:
        found = simulated(layout, workers, rates)
        what = f"1.3 TB to {layout.nbytes / 1e9:.0f} GB, {workers} workers"
        yield Row(what, found.seconds, "equal shares", found.equal, "s")
        yield Row(f"{what}: reads of a worker", found.requests, "bytes of it, in GB", found.read / 1e9, "")
        yield Row(f"{what}: memory of a worker, in MiB", found.memory / 2**20, "of 1 GiB", 1024.0, "")
