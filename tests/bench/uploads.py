"""Files loaded to a GPU, and how the time of a load divides."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file as load_safetensors
from safetensors.torch import save_file as save_safetensors
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from glft_schema import load_file, save_file
from glft_schema.storage.source import Source
from glft_schema.tensors import uploads
from tests.bench.measure import Row, compared, in_turn

Spans = list[tuple[float, float]]  # first and last second


def waited(run: Callable[[], object]) -> Callable[[], None]:
    """Returns a call that waits for the device."""

    def run_and_wait() -> None:
        run()
        torch.cuda.synchronize()

    return run_and_wait


def covered(spans: Spans) -> float:
    """Returns the seconds that are in at least one of the spans."""
    seconds, last = 0.0, float("-inf")
    for first, end in sorted(spans):
        seconds += max(end - max(first, last), 0)
        last = max(last, end)
    return seconds


def timed(run: Callable[..., Any], spans: Spans) -> Callable[..., Any]:
    """Returns a call that notes when it begins and ends."""

    def run_and_note(*given: Any) -> Any:
        first = perf_counter()
        try:
            return run(*given)
        finally:
            spans.append((first, perf_counter()))

    return run_and_note


class FreeBuffers:
    """The buffers of `uploads`, with the times at which threads wait for one."""

    def __init__(self, free: SimpleQueue[Any], spans: Spans) -> None:
        self.put, self.take = free.put, free.get
        self.get = timed(self.wait, spans)

    def wait(self) -> Any:
        buffer, fetched = self.take()
        fetched.synchronize()
        return buffer, fetched


def divided(what: str, load: Callable[[], object], size: float, host: float) -> Iterator[Row]:
    """Divides the time of one load. Its parts overlap, those in several threads with each other.

    Args:
        what: the load.
        load: runs it, and waits for the device.
        size: gigabytes of the file.
        host: GB/s of pinned memory to the device.
    """
    reads, waits, copies, kernels = Spans(), Spans(), Spans(), Spans()
    stream, free = uploads._stream_and_buffers(torch.device("cuda", torch.cuda.current_device()))
    buffers = stream, FreeBuffers(free, waits)
    with (
        patch.object(Source, "read_into", timed(Source.read_into, reads)),
        patch.object(uploads, "_stream_and_buffers", lambda device: buffers),
        profile(activities=[ProfilerActivity.CUDA]) as profiler,
    ):
        start = perf_counter()
        load()
        end = perf_counter()
    for event in profiler.events() or []:
        if event.device_type == DeviceType.CUDA:
            spans = copies if "HtoD" in event.name else kernels
            spans.append((event.time_range.start * 1e-6, event.time_range.end * 1e-6))
    parts = {
        "before the first read": min(reads)[0] - start,
        "reading, in some thread": covered(reads),
        "waiting for a free buffer, in some thread": covered(waits),
        "copying to the device": covered(copies),
        "kernels": covered(kernels),
        "neither copying nor kernels": end - start - covered(copies + kernels),
        "after the last read": end - max(last for _, last in reads),
    }
    for part, seconds in parts.items():
        if seconds > 0:  # the profiler may see no activities of the device
            yield Row(f"{what}: {part}", seconds, "all of it, profiled", end - start, "s")
    rate = size / sum(last - first for first, last in reads)
    yield Row(f"{what}: read by each thread", rate, "pinned memory to the device", host, "GB/s")


def files_to_the_device(folder: Path) -> Iterator[Row]:
    """Measures loading whole files from the page cache to the device as bfloat16, with a thread for
    each processor."""
    threads = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
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
        list(divided(what, ours, size, host))  # the profiler's first use takes long
        yield from divided(what, ours, size, host)
    torch.set_num_threads(threads)
