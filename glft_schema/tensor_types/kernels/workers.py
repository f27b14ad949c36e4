"""Runs a function on parts of a range in as many threads as torch uses.

Each thread takes the next part as soon as it is free, so that no thread waits for one that a busy
machine has stopped, except for the last part. The function must not hold Python's global lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Lock

from glft_schema.lazy import torch

_POOLS: list[ThreadPoolExecutor] = []  # the last one has the most threads


def forget_threads() -> None:
    """Called in a forked process, which has none of its parent's threads."""
    _POOLS.clear()


os.register_at_fork(after_in_child=forget_threads)


def run_parts(function: Callable[[int, int], None], count: int, least: int, most: int) -> None:
    """Calls ``function(first, last)`` for parts that cover 0 to `count`, in any order.

    Args:
        function: may run in several threads at once.
        count: the end of the range.
        least: the smallest part that is worth a call.
        most: the largest part; the actual ones may be somewhat larger.

    Raises:
        Exception: of the function, after all threads have stopped.
    """
    threads = min(torch.get_num_threads(), -(-count // least))
    size = min(max(-(-count // (4 * threads)), least), most) if threads > 1 else most
    while 1 < size < count and count % size == 1:  # the last part would be one element, which kernels do not take
        size += 1
    parts = _Parts(count, size)
    helpers = _started(lambda: _run(function, parts), threads - 1)
    try:
        _run(function, parts)
    finally:
        parts.stop()
        wait([helper for helper in helpers if not helper.cancel()])
    for helper in helpers:
        if not helper.cancelled():
            helper.result()


class _Parts:
    """An iterator of parts that several threads share."""

    def __init__(self, count: int, size: int) -> None:
        self._starts = iter(range(0, count, size))
        self._count, self._size = count, size
        self._lock = Lock()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return self

    def __next__(self) -> tuple[int, int]:
        with self._lock:
            first = next(self._starts)
        return first, min(first + self._size, self._count)

    def stop(self) -> None:
        """Ends the iteration in all threads."""
        with self._lock:
            self._starts = iter(range(0))


def _run(function: Callable[[int, int], None], parts: _Parts) -> None:
    for first, last in parts:
        function(first, last)


def _started(run: Callable[[], None], threads: int) -> list[Future[None]]:
    """Starts a function in threads of a pool; in fewer if the system or Python allows no more."""
    if threads > 0 and (not _POOLS or _POOLS[-1]._max_workers < threads):
        _POOLS.append(ThreadPoolExecutor(threads, "glft_schema"))
    helpers: list[Future[None]] = []
    with suppress(RuntimeError):
        for _ in range(threads):
            helpers.append(_POOLS[-1].submit(run))
    return helpers
