"""Work in several threads: all of it, and nothing left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from glft_schema.errors import TensorError
from glft_schema.tensor_types import chunks, workers
from glft_schema.tensor_types.ggml import GGML_TYPES


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() in (1, 3)
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("count", "least", "most"), [(1, 2, 4), (2, 2, 2), (7, 2, 3), (13, 3, 3), (1000, 10, 64), (1001, 1, 10)]
)
@pytest.mark.parametrize("threads", [1, 3])
def test_parts_cover_the_range_once(count: int, least: int, most: int, threads: int) -> None:
    covered, lock = [0] * count, threading.Lock()

    def run(part: slice) -> None:
        with lock:
            for number in range(part.start, part.stop):
                covered[number] += 1

    torch.set_num_threads(threads)
    workers.run_parts(run, workers.parts_of(count, least, most))
    assert covered == [1] * count


def test_each_thread_runs_torch_in_one_thread() -> None:
    """Three threads here, of which the calling one waits."""
    threads = set[tuple[int, int]]()

    def run(part: slice) -> None:
        threads.add((threading.get_ident(), torch.get_num_threads()))
        time.sleep(0.02 if part.start % 3 == 0 else 0.001)

    workers.run_parts(run, workers.parts_of(20, 1, 1), here=False)
    assert 1 < len(threads) <= 3
    assert {number for _, number in threads} == {1}
    assert threading.get_ident() not in dict(threads)
    assert torch.get_num_threads() == 3
    with ThreadPoolExecutor(1) as new:
        assert new.submit(torch.get_num_threads).result() == 3


@pytest.mark.parametrize("threads", [1, 3])
def test_the_error_of_the_first_part(threads: int) -> None:
    """After all threads have stopped."""
    done: list[int] = []
    torch.set_num_threads(threads)

    def run(part: slice) -> None:
        time.sleep(0.02 if part.start >= 4 else 0)
        done.append(part.start)
        if part.start >= 4:
            raise RuntimeError(f"part {part.start}")

    with pytest.raises(RuntimeError, match="part 4"):
        workers.run_parts(run, workers.parts_of(100, 1, 1))
    count = len(done)
    assert count < 10
    time.sleep(0.05)
    assert len(done) == count


def test_work_does_not_wait_for_busy_threads() -> None:
    """The calling thread does all of it, and later calls have helpers again."""
    free, begun = threading.Event(), threading.Semaphore(0)

    def occupy() -> None:
        begun.release()
        free.wait()

    with ThreadPoolExecutor(3) as callers:
        calls = [callers.submit(workers.in_one_thread, occupy) for _ in range(3)]
        for _ in calls:
            begun.acquire()
        seen: list[int] = []
        for _ in range(50):
            workers.run_parts(lambda _: seen.append(threading.get_ident()), workers.parts_of(6, 1, 1))
        assert seen == [threading.get_ident()] * 300
        queued = callers.submit(workers.run_parts, lambda _: None, [slice(0), slice(1)], here=False)
        free.set()
        assert [call.result(10) for call in [*calls, queued]] == [None] * 4
    both = threading.Barrier(3, timeout=10)
    workers.run_parts(lambda _: both.wait(), [slice(number) for number in range(3)])


def test_one_thread() -> None:
    """It is not the calling thread, which runs torch in three. Errors are those of the function."""
    seen: list[tuple[int, int]] = []
    workers.in_one_thread(lambda: seen.append((threading.get_ident(), torch.get_num_threads())))
    assert [number for _, number in seen] == [1]
    assert threading.get_ident() not in dict(seen)
    with pytest.raises(ZeroDivisionError):
        workers.in_one_thread(lambda: 1 // 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("here", [True, False])
def test_an_interrupted_call_ends_when_all_threads_have_stopped(here: bool) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    done: list[int] = []

    def run(part: slice) -> None:
        if part.start == 1:
            time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        done.append(part.start)

    with pytest.raises(KeyboardInterrupt):
        workers.run_parts(run, workers.parts_of(20, 1, 1), here=here)
    count = len(done)
    assert 0 < count < 10
    time.sleep(0.15)
    assert len(done) == count
    signal.signal(signal.SIGINT, before)


AT_EXIT = """
import atexit, torch
from glft_schema.tensor_types import workers

def work(name, workers=workers):
    done = []
    for here in (True, False):
        workers.run_parts(lambda part: done.append(part.start), workers.parts_of(4, 1, 1), here=here)
    workers.in_one_thread(lambda: done.append(4))
    print(name, sorted(done), flush=True)

class AtTheEnd:
    def __del__(self, work=work):
        work("end")

torch.set_num_threads(3)
work("run")
atexit.register(work, "exit")
last = AtTheEnd()
"""


def test_work_while_the_interpreter_ends() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60, check=True)
    expected = [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert done.stdout.splitlines() == [f"{name} {expected}" for name in ("run", "exit", "end")]
    assert not done.stderr


def test_parts_of_a_part_run_in_its_thread() -> None:
    """Otherwise, all threads could wait for others."""
    inner: list[bool] = []

    def run(part: slice) -> None:
        own = threading.get_ident()
        workers.run_parts(lambda _: inner.append(threading.get_ident() == own), workers.parts_of(6, 1, 1))

    workers.run_parts(run, workers.parts_of(6, 1, 1))
    assert inner == [True] * len(inner) != []


@pytest.mark.parametrize("most", [0, 1])
def test_threads_that_cannot_be_started(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a limit of threads, and as the interpreter exits."""
    start = threading.Thread.start

    def start_some(self: threading.Thread) -> None:
        if len({*threading.enumerate()} - own) == most:
            raise RuntimeError("can't start new thread")
        start(self)

    workers.forget_threads()
    own = set(threading.enumerate())
    monkeypatch.setattr(threading.Thread, "start", start_some)
    threads: list[int] = []
    workers.run_parts(lambda part: threads.append(threading.get_ident()), workers.parts_of(5, 1, 1))
    assert len(threads) == 5
    assert most or {*threads} == {threading.get_ident()}
    assert [len(pool.threads) for pool in workers._POOLS.values()] == [most]
    workers.forget_threads()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoders use threads for small chunks."""
    monkeypatch.setattr(chunks, "CHUNK", 1 << 15)
    monkeypatch.setattr(chunks, "LEAST_CHUNK", 1 << 12)


@pytest.mark.filterwarnings("ignore:.*stored as 0")  # 1e-30
@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "IQ4_XS", "MXFP4"])
def test_encoders_write_the_same_bytes(name: str, always: None) -> None:
    type_, weights = GGML_TYPES[name], torch.randn(513, 512, generator=torch.Generator().manual_seed(0))
    weights[3, :64], weights[300] = 0, 1e-30
    seen: list[bytes] = []
    with torch.inference_mode():
        found = type_.encode(weights, "w", watch=lambda chunk, fields: seen.extend(map(bytes, chunk)))["blocks"]
    assert sorted(seen) == sorted(map(bytes, weights.numpy()))
    assert (3, True) in workers._POOLS
    torch.set_num_threads(1)
    assert np.array_equal(found, type_.encode(weights.clone().requires_grad_(), "w")["blocks"])


def test_an_encoder_names_the_first_number_that_it_cannot_store(always: None) -> None:
    weights = torch.zeros(1024, 512)
    weights[700, 3] = weights[900, 0] = torch.nan
    with pytest.raises(TensorError, match=r"\[700, 3\]"):
        GGML_TYPES["Q8_0"].encode(weights, "w")
