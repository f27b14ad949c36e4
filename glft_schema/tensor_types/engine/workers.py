"""Runs work in several Python threads; `threads` says how many. If torch is imported, each of them
runs torch in one thread.

torch splits each operation into equal parts and waits for all of them. Here, each thread takes the
next part of the work as soon as it is free. If a busy machine suspends a thread, the others go on,
and wait only at the end.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from threading import Event, Lock, Semaphore
from typing import TypeVar

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.threads import threads

Item = TypeVar("Item")

_POOLS: dict[tuple[int, bool], ThreadPoolExecutor] = {}  # by number of threads, and whether torch was imported
_STARTING = Lock()


def forget_threads() -> None:
    """Forgets the pools in a forked process, which has none of its parent's threads."""
    global _STARTING
    _POOLS.clear()
    _STARTING = Lock()


os.register_at_fork(after_in_child=forget_threads)


def in_one_thread(function: Callable[[], None]) -> None:
    """Calls a function with torch limited to one thread.

    On an idle machine, more threads make operations on chunks faster by half. On a busy machine,
    each operation waits for all threads, and takes up to twenty times as long. In a forked child,
    an operation in several threads would hang.
    """
    future = _submit(function) if threads() > 1 else None
    if future is None:
        function()
    else:
        future.result()


def _has_torch() -> bool:
    return hasattr(sys.modules.get("torch"), "set_num_threads")


def in_order(function: Callable[[Item], object], items: Iterable[Item]) -> Iterator[Item]:
    """Calls a function with each item, several at once, and yields the items in order.

    Args:
        function: may run in several threads at once, in which torch's modes are the default ones.
        items: taken in this thread, a few ahead.

    Raises:
        Exception: the function's exception for the first item that fails, after all threads have
            stopped.
    """
    running: deque[tuple[Future[object] | None, Item]] = deque()
    try:
        for item in items:
            future = _submit(partial(function, item))
            if future is None:
                function(item)
            running.append((future, item))
            if len(running) > threads():
                yield _finish(*running.popleft())
        while running:
            yield _finish(*running.popleft())
    finally:
        wait([future for future, _ in running if future and not future.cancel()])


def _finish(future: Future[object] | None, item: Item) -> Item:
    if future:
        future.result()
    return item


def run_parts(function: Callable[[int, int], None], count: int, least: int, most: int) -> None:
    """Calls ``function(first, last)`` for parts that cover 0 to `count`, in any order.

    Args:
        function: may run in several threads at once. It must not hold Python's global lock.
        count: the end of the range.
        least: the smallest part that is worth a call.
        most: the largest part.

    Raises:
        Exception: the function's exception, after all threads have stopped.
    """
    parts = _Parts(count, part_size(count, least, most))
    helpers = [helper for _ in range(_threads(count, least) - 1) if (helper := _submit(lambda: _run(function, parts)))]
    try:
        _run(function, parts)
    finally:
        parts.stop()
        wait([helper for helper in helpers if not helper.cancel()])
    for helper in helpers:
        if not helper.cancelled():
            helper.result()


def part_size(count: int, least: int, most: int) -> int:
    """Returns the size of the largest part that `run_parts` makes."""
    several = _threads(count, least)
    return min(max(-(-count // (4 * several)), least), most) if several > 1 else most


def _threads(count: int, least: int) -> int:
    return min(threads(), -(-count // least)) if count > least else 1


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


def _submit(run: Callable[[], object]) -> Future[object] | None:
    """Starts a function in the pool of `threads`.

    Returns None if the system allows no thread, or the interpreter is exiting.
    """
    key = threads(), _has_torch()
    with suppress(RuntimeError):
        if key not in _POOLS:
            with _STARTING:
                if key not in _POOLS:
                    _POOLS[key] = _pool(*key)
        return _POOLS[key].submit(run)
    return None


def _pool(most: int, with_torch: bool) -> ThreadPoolExecutor:
    """Returns a pool of `most` threads, or of fewer if the system allows no more. Each runs torch
    in one thread. Raises RuntimeError if the system allows none.

    All threads are started here, for two reasons. `torch.set_num_threads` in one thread also
    changes the default of threads started later, until it is restored. And a pool that fails to
    start a thread in `submit` raises, but still runs the work.
    """
    pool, number = ThreadPoolExecutor(most, "glft_schema"), torch.get_num_threads() if with_torch else 0
    started, all_started = Semaphore(0), Event()

    def start() -> None:
        if with_torch:
            torch.get_num_threads()  # torch's first use in a thread sets its number
            torch.set_num_threads(1)
        started.release()
        all_started.wait()

    count = 0
    try:
        while count < most:
            pool.submit(start)
            started.acquire()
            count += 1
        return pool
    except RuntimeError:
        if not count:
            raise
    finally:
        all_started.set()
        if with_torch:
            torch.set_num_threads(number)
    pool.shutdown()
    return _pool(count, with_torch)
