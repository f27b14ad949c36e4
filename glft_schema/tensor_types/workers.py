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
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Lock, Semaphore, Thread, current_thread
from typing import Any

from glft_schema.lazy import torch
from glft_schema.storage.system import call_in_forks

NAME = "glft_schema"  # of the threads, before their numbers

_POOLS: dict[tuple[int, bool], Pool] = {}  # by number of threads, and whether torch was imported
_STARTING = Lock()


def threads() -> int:
    """Returns torch's number of threads if torch is imported (see `torch.set_num_threads`),
    otherwise OMP_NUM_THREADS or the number of processors that this process may use; 1 in the
    threads of this module, and while the interpreter ends."""
    if current_thread().name.startswith(NAME) or sys.is_finalizing():
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


call_in_forks(forget_threads)


def start(function: Callable[[], object]) -> Callable[[], object]:
    """Starts a function in another thread, or none if `threads` is 1. Returns a function that
    returns its result, or raises its exception."""
    pool, future = _pool(), Future[object]()
    if not pool.threads:
        return function

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    pool.call(run)
    return future.result


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
            several threads. It does not wait for threads that do other work.

    Raises:
        Exception: the function's exception for the first part that fails, after all threads have
            stopped.
    """
    waiting = list(parts)
    if here and len(waiting) == 1:
        function(waiting[0])
        return
    taken, lock, failed, ended = enumerate(waiting), Lock(), dict[int, BaseException](), SimpleQueue[None]()

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

    def help(working: Any) -> None:
        with working:
            work()
        ended.put(None)

    def wait() -> None:
        for working in helpers:
            with working:  # a thread that starts later finds no part
                pass

    pool, several = _pool(), min(threads(), len(waiting)) - here
    helpers = [Lock() for _ in range(min(several, len(pool.threads) - here * len(pool.unfinished)))]
    try:
        for working in helpers:
            pool.call(partial(help, working))
        if here or not helpers:
            work()
        else:
            ended.get()  # now, all parts are taken
        wait()
    except BaseException as error:  # KeyboardInterrupt
        failed[-1] = error
        wait()
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


def _pool() -> Pool:
    """Returns the pool of `threads`."""
    key = threads(), hasattr(sys.modules.get("torch"), "set_num_threads")
    if key not in _POOLS:
        with _STARTING:
            if key not in _POOLS:
                _POOLS[key] = Pool(*key)
    return _POOLS[key]


class Pool:
    """Threads that wait for functions to call, and run torch in one thread. There are `most`, fewer
    if the system allows no more, and none in place of one.

    All threads are started at once, because `torch.set_num_threads` in one thread also changes the
    default of threads started later, until it is restored.

    Attributes:
        threads: all of them.
        unfinished: an element for each call that has not ended, because lists change atomically.
    """

    def __init__(self, most: int, with_torch: bool) -> None:
        self.threads: list[Thread] = []
        self._calls = SimpleQueue[Callable[[], object]]()
        self.unfinished: list[None] = []
        number, started = torch.get_num_threads() if with_torch else 0, Semaphore(0)

        def run() -> None:
            if with_torch:
                torch.get_num_threads()  # torch's first use in a thread sets its number
                torch.set_num_threads(1)
            started.release()
            while True:
                self._calls.get()()
                self.unfinished.pop()

        with suppress(RuntimeError):
            for number_of_thread in range(most if most > 1 else 0):
                thread = Thread(target=run, name=f"{NAME}_{number_of_thread}", daemon=True)
                thread.start()
                started.acquire()
                self.threads.append(thread)
        if with_torch:
            torch.set_num_threads(number)

    def call(self, function: Callable[[], object]) -> None:
        """Calls a function, which does not raise, as soon as a thread is free."""
        self.unfinished.append(None)
        self._calls.put(function)
