"""`RangeSource`: a remote file, read by ranges that are fetched in parallel and kept for a time."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any, Protocol

from glft_schema.errors import ClosedError
from glft_schema.lazy import waiting_for
from glft_schema.storage.source import Source

FIRST = 1 << 19  # bytes of the first range: the metadata of most files without a vocabulary
PAGE = 1 << 16  # bytes; ranges begin and end at multiples
RANGE = 1 << 23  # maximum bytes per request
AHEAD = 4 * RANGE  # maximum bytes fetched ahead of sequential reads
KEPT = 2 * AHEAD  # maximum bytes in memory; the oldest are dropped first
CONNECTIONS, WORKER = 4, "glft range"  # per file; the name of a thread
LARGE = 1 << 18  # minimum bytes of a read of payloads; reads of metadata are smaller
GAP = 1 << 20  # maximum bytes between reads that count as sequential


class RemoteFile(Protocol):
    """A file that is read by ranges.

    Attributes:
        name: its location, without secrets.
    """

    name: str

    def start(self) -> tuple[bytes | bytearray, int]:
        """Returns the first bytes of the file, which may be none, and its size."""

    def fetch(self, start: int, stop: int) -> bytes | bytearray | memoryview:
        """Returns bytes of the file. Called in several threads. Raises OSError, with the name."""

    def close(self) -> None:
        """Ends the calls in progress, which raise OSError."""


class Pages:
    """The bytes of a remote file, fetched once. Shared by the sources of one file.

    Attributes:
        remote: the file.
        size: its bytes.
    """

    def __init__(self, remote: RemoteFile) -> None:
        self.remote = remote
        self._users = 0
        self._lock = threading.RLock()
        self._pages: dict[int, tuple[int, Future[Any]]] = {}  # start of the range that has a page, and its bytes
        self._start_workers()
        with waiting_for(f"fetching {remote.name}"):
            start, self.size = remote.start()
        if start:
            fetched = Future[Any]()
            fetched.set_result(start)
            count = -(-len(start) // PAGE) if len(start) == self.size else len(start) // PAGE
            self._pages |= dict.fromkeys(range(count), (0, fetched))

    def _start_workers(self) -> None:
        self._process, self._jobs = os.getpid(), SimpleQueue[_Job | None]()
        self._close = weakref.finalize(self, _close, self.remote, self._jobs)
        for _ in range(CONNECTIONS):  # daemons, unlike those of an executor: Python does not wait for a server at exit
            threading.Thread(target=_work, name=WORKER, args=(self._jobs, self.remote.fetch), daemon=True).start()

    def add_users(self, number: int) -> None:
        """Counts sources and sessions. After the last is closed, closes the file."""
        with self._lock:
            self._users += number
            if not self._users:
                self._close()

    def _fetch(self, start: int, stop: int) -> tuple[int, Future[Any]]:
        """Begins to fetch missing bytes. Returns the start of the range with the first, and its
        bytes."""
        with self._lock:
            if self._process != os.getpid():  # a forked child has no threads
                self._pages = {page: entry for page, entry in self._pages.items() if entry[1].done()}
                self._start_workers()
            page, last = start // PAGE, max(-(-min(stop, self.size) // PAGE), start // PAGE + 1)
            while page < last:
                end = page
                while end < last and end not in self._pages and (end - page) * PAGE < RANGE:
                    end += 1
                if end > page:
                    first, fetched = page * PAGE, Future[Any]()
                    self._jobs.put((fetched, first, min(end * PAGE, self.size)))
                    self._pages |= dict.fromkeys(range(page, end), (first, fetched))
                page = max(end, page + 1)
            found = self._pages[start // PAGE]
            while len(self._pages) > KEPT // PAGE:
                del self._pages[next(iter(self._pages))]
            return found

    def has(self, start: int, stop: int) -> bool:
        """Returns whether bytes have been fetched, or are being fetched."""
        with self._lock:
            return all(page in self._pages for page in range(start // PAGE, -(-stop // PAGE)))

    def read_into(self, memory: Any, start: int, until: int) -> None:
        """Fills `memory` with the bytes from `start`. Begins to fetch the bytes up to `until`."""
        at, stop = start, start + len(memory)
        while at < stop:
            first, fetched = self._fetch(at, min(until, (at + AHEAD) // RANGE * RANGE))
            try:
                with nullcontext() if fetched.done() else waiting_for(f"fetching {self.remote.name}"):
                    while not fetched.done():
                        wait([fetched], 1)  # Windows interrupts no longer wait
                    part = memoryview(fetched.result())[at - first : stop - first]
            except BaseException:
                with self._lock:  # the next read tries again
                    self._pages = {page: entry for page, entry in self._pages.items() if entry[1] is not fetched}
                raise
            memory[at - start : at - start + len(part)] = part
            at += len(part)


_Job = tuple[Future[Any], int, int]  # to be set, and a range


def _work(jobs: SimpleQueue[_Job | None], fetch: Callable[[int, int], Any]) -> None:
    while job := jobs.get():
        fetched, *span = job
        try:
            fetched.set_result(fetch(*span))
        except BaseException as error:
            fetched.set_exception(error)
        finally:
            del fetched, job  # otherwise kept until the next job, and in a cycle by the traceback of an error


def _close(remote: RemoteFile, jobs: SimpleQueue[_Job | None]) -> None:
    remote.close()  # jobs that are left fail
    for _ in range(CONNECTIONS):
        jobs.put(None)


class RangeSource(Source):
    """A file elsewhere. Sequential reads of payloads are fetched ahead, several ranges at once.

    Up to `KEPT` bytes stay in memory.
    """

    def __init__(self, pages: Pages) -> None:
        pages.add_users(1)
        self._pages: Pages | None = pages
        self._expected = range(0)
        self._ends = deque[int](maxlen=2 * CONNECTIONS)  # of the last large reads, which may go on
        super().__init__(pages.remote.name, pages.size)

    def expect(self, start: int, nbytes: int) -> None:
        self._expected = range(start, start + nbytes)

    def _opened(self) -> Pages:
        if (pages := self._pages) is None:
            raise ClosedError(f"{self.name} is closed")
        return pages

    def _view(self, start: int, nbytes: int) -> memoryview:
        return self._private(start, nbytes).toreadonly()

    def _private(self, start: int, nbytes: int) -> memoryview:
        view = memoryview(bytearray(nbytes))
        self._read_into(view, 0, start, nbytes)
        return view

    def _read_into(self, memory: Any, first: int, start: int, nbytes: int) -> None:
        start += first
        end = start + len(memory)
        pages = self._opened()
        try:
            pages.read_into(memory, start, min(max(self._until(pages, start, end), end), self.size))
        except OSError:
            self.check_open()  # closed by another thread
            raise

    def _until(self, pages: Pages, start: int, end: int) -> int:
        """Returns the end of the bytes to fetch for a read."""
        is_here, is_large = pages.has(start, end), end - start >= LARGE
        if is_large and any(abs(start - last) < GAP for last in [*self._ends]):
            self._ends.append(end)
            return end + AHEAD - end % RANGE  # whole ranges, from a multiple of their size on
        if is_here:
            return end
        if is_large:
            self._ends.append(end)
            return end
        if end <= FIRST or start in self._expected:
            return max(self._expected.stop, FIRST)
        is_near = any(pages.has(at, at + 1) for at in range(max(start - GAP, 0), start, PAGE))
        return end + GAP if is_near else end  # one request costs more time than the bytes between the reads

    def _release(self) -> None:
        pages, self._pages = self._pages, None
        if pages:
            pages.add_users(-1)


def exactly(stored: bytes | bytearray, nbytes: int, name: str) -> bytes | bytearray:
    """Returns the bytes of a range. Raises OSError if their number is another."""
    if len(stored) != nbytes:
        raise OSError(errno.EIO, f"expected a range of {nbytes} bytes, found {len(stored)}", name)
    return stored


def up_to(read: Callable[[int], Any], nbytes: int, stored: bytearray | None = None) -> bytearray:
    """Returns `nbytes` bytes of a stream, fewer at its end. They follow those in `stored`."""
    stored = bytearray() if stored is None else stored
    while len(stored) < nbytes and (piece := read(nbytes - len(stored))):
        stored += piece
    return stored
