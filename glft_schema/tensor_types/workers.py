"""Runs work in several Python threads. If torch is imported, each of them
runs torch in one thread.

torch splits each operation into equal parts and waits for all of them. Here, each thread takes the
next part of the work as soon as it is free. If a busy machine suspends a thread, the others go on,
and wait only at the end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Event, Lock, Semaphore, current_thread

from glft_schema.lazy import torch

NAME = "glft_schema"  # of the threads, before their numbers

_POOLS: dict[tuple[int, bool], ThreadPoolExecutor] = {}  # by number of threads, and whether torch was imported
_STARTING = Lock()


def threads() -> int:
    """Returns torch's number of threads if torch is imported (see `torch.set_num_threads`),
    otherwise OMP_NUM_THREADS or the number of processors that this process may use; 1 in the
    threads of this module."""
    if current_thread().name.startswith(NAME):
        return 1
    of_torch = getattr(sys.modules.get("torch"), "get_num_threads", None)
    if of_torch is not None:
        return int(of_torch())
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if asked.isdecimal() and int(asked):
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def forget_threads() -> None:
    """Forgets the pools in a forked process, which has none of its parent's threads."""
    global _STARTING
    _POOLS.clear()
    _STARTING = Lock()


os.register_at_fork(after_in_child=forget_threads)


def start(function: Callable[[], object]) -> Callable[[], object]:
    """Starts a function in another thread, or none if `threads` is 1. Returns a function that
    returns its result, or raises its exception."""
    future = _submit(function) if threads() > 1 else None
    return function if future is None else future.result


def in_one_thread(function: Callable[[], None]) -> None:
    """Calls a function with torch limited to one thread.

    On an idle machine, more threads make operations on chunks faster by half. On a busy machine,
    each operation waits for all threads, and takes up to twenty times as long. In a forked child,
    an operation in several threads would hang.
    """
    start(function)()


def run_parts(function: Callable[[slice], object], parts: Iterable[slice], *, here: bool = True) -> None:
    """Calls a function with each part, several at once. The next part is taken when a thread is
    free.

    Args:
        function: may run in several threads at once, in which torch's modes are the default ones.
        parts: all parts of the work.
        here: whether the calling thread also takes parts. In it, an operation of torch may use
            several threads.

    Raises:
        Exception: the function's exception for the first part that fails, after all threads have
            stopped.
    """
    waiting = list(enumerate(parts))
    taken, lock, failed = iter(waiting), Lock(), dict[int, BaseException]()

    def work() -> None:
        while not failed:
            with lock:
                number, part = next(taken, (0, None))
            if part is None:
                return
            try:
                function(part)
            except BaseException as error:
                failed[number] = error

    several = min(threads(), len(waiting))
    helpers = [helper for _ in range(several - here) if several > 1 and (helper := _submit(work))]
    try:
        if here or not helpers:
            work()
        wait([helper for helper in helpers if not (here and helper.cancel())])
    except BaseException as error:  # KeyboardInterrupt
        failed[-1] = error
        wait(helpers)
    if failed:
        raise failed[min(failed)]


def parts_of(count: int, least: int, most: int) -> Iterator[slice]:
    """Yields slices that cover 0 to `count`, about four for each thread.

    Args:
        count: the end of the range.
        least: the smallest part that is worth a call.
        most: the largest part.
    """
    several = min(threads(), -(-count // least))
    size = min(max(-(-count // (4 * several)), least), most) if several > 1 else most
    return (slice(first, min(first + size, count)) for first in range(0, count, size))


def _submit(run: Callable[[], object]) -> Future[object] | None:
    """Starts a function in the pool of `threads`.

    Returns None if the system allows no thread, or the interpreter is exiting.
    """
    key = threads(), hasattr(sys.modules.get("torch"), "set_num_threads")
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
    pool, number = ThreadPoolExecutor(most, NAME), torch.get_num_threads() if with_torch else 0
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
