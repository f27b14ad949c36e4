"""`RangeSource`: a remote file, read by ranges that are fetched in parallel and kept for a time."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, Protocol

from glft_schema.storage import locations
from glft_schema.storage.source import Source

FIRST = 1 << 19  # bytes of the first range: the metadata of most files without a vocabulary
PAGE = 1 << 16  # bytes; ranges begin and end at multiples
RANGE = 1 << 23  # most bytes per request,
AHEAD = 4 * RANGE  # that are fetched ahead of sequential reads,
KEPT = 2 * AHEAD  # and that are kept in memory, the oldest range being dropped first
CONNECTIONS = 4
LARGE = 1 << 18  # bytes of a read of payloads; reads of metadata are smaller
GAP = 1 << 20  # bytes between reads that still count as sequential


class Remote(Protocol):
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
        users: the number of sources and sessions that have not been closed.
    """

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self.users = 0
        self._close = weakref.finalize(self, remote.close)
        self._lock = threading.RLock()
        self._pages: dict[int, tuple[int, Future[Any]]] = {}  # the range that has a page; the oldest first
        self._renew()
        with locations.while_fetching(remote.name):
            start, self.size = remote.start()
        if start:
            fetched = Future[Any]()
            fetched.set_result(start)
            count = -(-len(start) // PAGE) if len(start) == self.size else len(start) // PAGE
            self._pages |= dict.fromkeys(range(count), (0, fetched))

    def _renew(self) -> None:
        self._process, self._workers = os.getpid(), ThreadPoolExecutor(CONNECTIONS, "glft range")

    def use(self, number: int) -> None:
        """Counts users. Closes the file after the last."""
        with self._lock:
            self.users += number
        if not self.users:
            self._workers.shutdown(wait=False, cancel_futures=True)
            self._close()

    def _fetch(self, start: int, stop: int) -> tuple[int, Future[Any]]:
        """Begins to fetch bytes that are missing. Returns the range of the first, and its start."""
        with self._lock:
            if self._process != os.getpid():  # a fork has no threads, and shares the connections
                self._pages.clear()
                self._renew()
            page, last = start // PAGE, max(-(-min(stop, self.size) // PAGE), start // PAGE + 1)
            while page < last:
                end = page
                while end < last and end not in self._pages and (end - page) * PAGE < RANGE:
                    end += 1
                if end > page:
                    span = (page * PAGE, min(end * PAGE, self.size))
                    fetched = self._workers.submit(self.remote.fetch, *span)
                    self._pages |= dict.fromkeys(range(page, end), (span[0], fetched))
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
                with nullcontext() if fetched.done() else locations.while_fetching(self.remote.name):
                    part = memoryview(fetched.result())[at - first : stop - first]
            except BaseException:
                with self._lock:  # the next read tries again
                    self._pages = {page: entry for page, entry in self._pages.items() if entry[1] is not fetched}
                raise
            memory[at - start : at - start + len(part)] = part
            at += len(part)


class RangeSource(Source):
    """A file elsewhere. Sequential reads of payloads are fetched ahead, several ranges at once.

    Up to `KEPT` bytes stay in memory.
    """

    def __init__(self, pages: Pages) -> None:
        pages.use(1)
        self._pages: Pages | None = pages
        self._expected = range(0)
        self._ends = deque[int](maxlen=2 * CONNECTIONS)  # of the last large reads, which may go on
        super().__init__(pages.remote.name, pages.size)

    def expect(self, start: int, nbytes: int) -> None:
        self._expected = range(start, start + nbytes)

    def _opened(self) -> Pages:
        pages = self._pages
        if pages is None:
            self.check_open()
        assert pages
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
        pages.read_into(memory, start, min(max(self._until(pages, start, end), end), self.size))

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
        return end + min(start // 4, GAP) if is_near else end  # more metadata

    def _release(self) -> None:
        pages, self._pages = self._pages, None
        if pages:
            pages.use(-1)


class FileObject:
    """The rest of a seekable file object. It is read by one thread at a time.

    Args:
        stream: the file object.
        name: its name.
        owner: an object that must live as long as the stream, which is then closed at the end.
    """

    def __init__(self, stream: Any, name: str, owner: object = None) -> None:
        self.name = name
        self._stream, self._first = stream, stream.tell()
        self._lock = threading.Lock()
        self._owner = owner

    def start(self) -> tuple[bytes, int]:
        return b"", int(self._stream.seek(0, os.SEEK_END)) - self._first

    def fetch(self, start: int, stop: int) -> bytes | bytearray:
        with self._lock:
            self._stream.seek(self._first + start)
            stored = bytearray()
            while len(stored) < stop - start and (piece := self._stream.read(stop - start - len(stored))):
                stored += piece
        return exactly(stored, stop - start, self.name)

    def close(self) -> None:
        if self._owner:
            self._stream.close()


def exactly(stored: bytes | bytearray, nbytes: int, name: str) -> bytes | bytearray:
    """Returns the bytes of a range. Raises OSError if their number is another."""
    if len(stored) != nbytes:
        raise OSError(errno.EIO, f"expected a range of {nbytes} bytes, found {len(stored)}", name)
    return stored
