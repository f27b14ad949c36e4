"""Work in several threads: all of it, in order where asked for, and nothing left running."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from glft_schema.errors import TensorError
from glft_schema.tensor_types.engine import chunks, workers
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
    covered, lock, before = [0] * count, threading.Lock(), torch.get_num_threads()

    def run(first: int, last: int) -> None:
        with lock:
            for number in range(first, last):
                covered[number] += 1

    torch.set_num_threads(threads)
    try:
        workers.run_parts(run, count, least, most)
    finally:
        torch.set_num_threads(before)
    assert covered == [1] * count


def test_an_error_in_a_thread_is_raised() -> None:
    """After all threads have stopped."""
    running, before = [0], torch.get_num_threads()

    def run(first: int, last: int) -> None:
        running[0] += 1
        try:
            time.sleep(0.01)
            raise RuntimeError("no")
        finally:
            running[0] -= 1

    torch.set_num_threads(3)
    try:
        with pytest.raises(RuntimeError, match="no"):
            workers.run_parts(run, 100, 1, 10)
    finally:
        torch.set_num_threads(before)
    assert running == [0]


def test_items_in_order() -> None:
    """Late items finish first; threads of torch's are one in each thread, and three here."""
    lock, running, most, threads = threading.Lock(), 0, 0, set[tuple[int, int]]()

    def run(item: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            threads.add((threading.get_ident(), torch.get_num_threads()))
        time.sleep(0.02 if item % 3 == 0 else 0.001)
        with lock:
            running -= 1

    assert list(workers.in_order(run, iter(range(20)))) == list(range(20))
    assert 1 < most <= 3
    assert {number for _, number in threads} == {1}
    assert threading.get_ident() not in dict(threads)
    assert torch.get_num_threads() == 3
    with_new: list[int] = []
    thread = threading.Thread(target=lambda: with_new.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert with_new == [3]


def test_no_more_than_a_few_items_are_taken_ahead() -> None:
    taken = [0]

    def items() -> Iterator[int]:
        for item in range(100):
            taken[0] += 1
            yield item

    for item in workers.in_order(lambda item: None, items()):
        assert taken[0] <= item + 4


@pytest.mark.parametrize("threads", [1, 3])
def test_the_error_of_the_first_item(threads: int) -> None:
    done: list[int] = []
    torch.set_num_threads(threads)

    def run(item: int) -> None:
        time.sleep(0.02 if item == 4 else 0)
        done.append(item)
        if item >= 4:
            raise RuntimeError(f"item {item}")

    with pytest.raises(RuntimeError, match="item 4"):
        list(workers.in_order(run, range(100)))
    count = len(done)
    assert count < 10
    time.sleep(0.05)
    assert len(done) == count


def test_an_iteration_that_is_abandoned() -> None:
    done: list[int] = []
    iteration = workers.in_order(lambda item: (time.sleep(0.01), done.append(item)), range(100))
    next(iteration)
    iteration.close()
    count = len(done)
    time.sleep(0.05)
    assert len(done) == count < 10


def test_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a limit of threads, and as the interpreter exits."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers.forget_threads()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    threads: list[int] = []
    assert list(workers.in_order(lambda item: threads.append(threading.get_ident()), range(5))) == [0, 1, 2, 3, 4]
    assert set(threads) == {threading.get_ident()}
    assert not workers._POOLS


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
    seen: dict[float, np.ndarray] = {}
    with torch.inference_mode():
        found = type_.encode(weights, "w", watch=lambda chunk, fields: seen.update({float(chunk[0, 100]): chunk}))["blocks"]
    assert len(seen) == 9
    assert np.array_equal(np.concatenate([seen[float(row[100])] for row in weights if float(row[100]) in seen]), weights)
    assert (3, True) in workers._POOLS
    torch.set_num_threads(1)
    assert np.array_equal(found, type_.encode(weights.clone().requires_grad_(), "w")["blocks"])


def test_an_encoder_names_the_first_number_that_it_cannot_store(always: None) -> None:
    weights = torch.zeros(1024, 512)
    weights[700, 3] = weights[900, 0] = torch.nan
    with pytest.raises(TensorError, match=r"\[700, 3\]"):
        GGML_TYPES["Q8_0"].encode(weights, "w")
