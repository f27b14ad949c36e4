"""Files written by many ranks: the planner on a large model, simulated, and beside real runs.

The plan is the one that ranks compute: of all tensors of transformers' default DeepseekV3Config, in
bfloat16, to Q4_K. Rates are measured on one core of this machine. Assumed are `WORKERS_READ` and
`ALL_READ`, the bytes per second that a network file system gives, and that a worker is one core.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
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
from tests.bench.measure import Row, in_turn, seconds_of
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
    """A run on a number of workers, by its slowest worker.

    Attributes:
        seconds: of the run.
        equal: seconds if all had equal work and no row were encoded twice.
        requests: reads.
        read, written: bytes.
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
    """Returns what the slowest worker does by the plan, and what that takes."""
    reading = min(ALL_READ / workers, WORKERS_READ)

    def seconds(weights: int, read: int, written: int) -> float:
        return rates.start + weights * rates.weight + read / reading + written * rates.byte

    weights = sum(span.content.stored.numel for span in spans_of(layout) if isinstance(span.content, PlannedPayload))
    equal = seconds(weights // workers, 2 * weights // workers, layout.nbytes // workers)
    found = [_worker(tasks, seconds) for tasks in tasks_of(layout, workers)]
    return max(found)._replace(equal=equal, memory=max(worker.memory for worker in found))


def _worker(tasks: Iterable[Task], seconds: Callable[[int, int, int], float]) -> Simulated:
    weights, parts, rows_read = 0, dict[int, int](), list[int]()
    for span, first, last, rows in tasks:
        parts[first] = last - first
        if isinstance(span.content, PlannedPayload) and rows is not None:
            rows_read.append((rows.stop - rows.start) * matrix(span.content.stored.shape)[1])
            weights += rows_read[-1] * (not span.content.is_unchanged)
    read, written = 2 * sum(rows_read), sum(parts.values())
    memory = max(rows_read, default=0) * (2 + 4 + 1)
    return Simulated(seconds(weights, read, written), 0.0, len(rows_read), read, written, memory)


def measured_rates(folder: Path) -> Rates:
    """Measures one core of this machine."""
    weights = torch.randn(2048, 2048)
    encoding = in_turn({"": lambda: GGML_TYPES["Q4_K"].encode(weights, "w")}, 3)[""]
    small = folder / "small.safetensors"
    glft.save_file({"w": torch.zeros(4, 256)}, small)
    return Rates(encoding / weights.numel(), 1.0e-9, run(small, folder / "small.gguf", 1))


def run(source: Path, out: Path, processes: int) -> float:
    """Returns the seconds of a real run, imports included."""
    return seconds_of(lambda: launch.run(processes, ("convert", source, out, "--scheme", f"*={TYPE}")))


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
