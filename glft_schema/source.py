"""Where bytes come from: a mapped file, a file read in pieces, or bytes in memory.

A `Source` hands out views of a known number of bytes; a `Cursor` is the stream over it that construct reads. Both refuse to go
past the end before anything is allocated.
"""

from __future__ import annotations

import mmap
import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import construct

from glft_schema.errors import ClosedError, TruncatedError

StrPath = str | os.PathLike[str]


class Readable(Protocol):
    """Any stream with a `read`: what `Container.parse_stream` takes."""

    def read(self, size: int = -1, /) -> bytes: ...


class Source:
    """A number of bytes that can be viewed anywhere, any number of times, from any thread.

    Subclasses give `_view`, and what else differs.

    Attributes:
        name: the path, or ``<bytes>``.
        size: bytes in all.
        mapped: views cost nothing, however many bytes they span.
        closed: no more views are given.
    """

    mapped = False

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.closed = False
        self._readers = 0
        self._lock = threading.Lock()

    def view(self, start: int, nbytes: int) -> memoryview:
        """Returns `nbytes` bytes from `start` on, not to be written to.

        Raises:
            ClosedError: after `close`.
            TruncatedError: where the bytes are not all there (any more).
        """
        with self._reading(start, nbytes):
            return self._view(start, nbytes)

    def private(self, start: int, nbytes: int) -> memoryview:
        """Like `view`, but may be written to: that changes no file, nothing that `view` shows, and no caller's bytes."""
        with self._reading(start, nbytes):
            return self._private(start, nbytes)

    def check_open(self) -> None:
        """Raises ClosedError after `close`."""
        if self.closed:
            raise ClosedError(f"{self.name} is closed")

    def close(self) -> None:
        """Ends access, and gives the file back once reads under way have ended. Tensors handed out before stay valid."""
        with self._lock:
            ended, self.closed = self.closed, True
            if not ended and not self._readers:
                self._release()

    @contextmanager
    def _reading(self, start: int, nbytes: int) -> Iterator[None]:
        with self._lock:
            self.check_open()
            self._readers += 1
        try:
            left = max(self._size_now() - start, 0)
            if nbytes > left:
                raise TruncatedError(f"expected {nbytes} bytes, found {left}", offset=start, file=self.name)
            yield
        finally:
            with self._lock:
                self._readers -= 1
                if self.closed and not self._readers:
                    self._release()

    def _size_now(self) -> int:
        return self.size

    def _view(self, start: int, nbytes: int) -> memoryview:
        raise NotImplementedError

    def _private(self, start: int, nbytes: int) -> memoryview:
        return memoryview(bytearray(self._view(start, nbytes)))

    def _release(self) -> None:
        """Gives back what the system lent; called once, when nobody reads."""


class BytesSource(Source):
    """Bytes in memory."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "<bytes>") -> None:
        self._bytes = memoryview(data).toreadonly().cast("B")
        super().__init__(name, len(self._bytes))

    def _view(self, start: int, nbytes: int) -> memoryview:
        return self._bytes[start : start + nbytes]


class MappedSource(Source):
    """A mapped file, once to be read and once copied on write for private views.

    The file's size is looked up again at each view: a file cut short since it was opened is an error here. What is cut off
    while a view is in use no map can protect against; `FileSource` can.
    """

    mapped = True

    def __init__(self, path: StrPath) -> None:
        fd = open_regular(path)
        try:
            size = os.fstat(fd).st_size
            self._maps = [mmap.mmap(fd, size, access=mmap.ACCESS_READ), _copy_on_write(fd, size)] if size else []
        finally:
            os.close(fd)
        super().__init__(os.fspath(path), size)

    def _size_now(self) -> int:
        return min(self.size, self._maps[0].size()) if self._maps else 0

    def _view(self, start: int, nbytes: int) -> memoryview:
        return memoryview(self._maps[0])[start : start + nbytes] if self._maps else memoryview(b"")

    def _private(self, start: int, nbytes: int) -> memoryview:
        return memoryview(self._maps[1])[start : start + nbytes] if self._maps else memoryview(b"")

    def _release(self) -> None:
        maps, self._maps = self._maps, []
        for held in maps:
            try:
                held.close()
            except BufferError:  # tensors still look into it: it goes when the last of them goes
                continue


def _copy_on_write(fd: int, size: int) -> mmap.mmap:
    """Maps a file for writing that stays in memory, and promises no memory for it: a file may be larger than the machine's."""
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)  # Python names it from 3.13 on
    return mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE | no_reserve, prot=mmap.PROT_READ | mmap.PROT_WRITE)


class FileSource(Source):
    """A file read in pieces into memory of its own: what is read cannot change afterwards."""

    def __init__(self, path: StrPath) -> None:
        self._fd = open_regular(path)
        super().__init__(os.fspath(path), os.fstat(self._fd).st_size)

    def _size_now(self) -> int:
        return min(self.size, os.fstat(self._fd).st_size)

    def _view(self, start: int, nbytes: int) -> memoryview:
        view = memoryview(bytearray(nbytes))
        got = 0
        while got < nbytes:
            n = os.preadv(self._fd, [view[got:]], start + got)
            if n == 0:
                raise TruncatedError(f"expected {nbytes} bytes, found {got}", offset=start, file=self.name)
            got += n
        return view

    def _private(self, start: int, nbytes: int) -> memoryview:
        return self._view(start, nbytes)

    def _release(self) -> None:
        os.close(self._fd)

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()


def open_regular(path: StrPath) -> int:
    """Opens a regular file for reading and returns its descriptor; refuses pipes and devices without waiting on them."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{os.fspath(path)!r} is not a regular file")
    return fd


def open_source(path: StrPath, mmap: bool = True) -> Source:
    """Opens the file at `path`, mapped or read in pieces.

    Raises:
        OSError: where it cannot be opened or is not a regular file.
    """
    return MappedSource(path) if mmap else FileSource(path)


def read_exactly(stream: Any, nbytes: int, path: str) -> bytes:
    """Returns the next bytes of a stream, of a `Cursor` or any other, for the field at `path`.

    Raises:
        TruncatedError: where fewer are left.
        construct.StreamError: the same, of another stream than a `Cursor`.
    """
    if not isinstance(stream, Cursor):
        return bytes(construct.stream_read(stream, nbytes, path))
    try:
        return stream.read(nbytes)
    except TruncatedError as error:
        error.path = path
        raise


class Cursor:
    """A stream over a `Source`, for construct: `read`, `seek`, `tell`."""

    WINDOW = 1 << 16  # bytes fetched at a time, at least

    def __init__(self, source: Source, position: int = 0) -> None:
        self.source = source
        self._position = position
        self._window = b""  # a copy, so that a cursor in some traceback does not keep a map open
        self._window_start = 0

    @property
    def left(self) -> int:
        """Bytes between here and the end."""
        return max(self.source.size - self._position, 0)

    def read(self, size: int = -1) -> bytes:
        """Returns `size` bytes, or all that are left.

        Raises:
            TruncatedError: where fewer are left; nothing is read then.
        """
        size = self.left if size < 0 else size
        start = self._position - self._window_start
        if start < 0 or start + size > len(self._window):
            fetch = max(size, min(self.WINDOW, self.left))
            self._window, self._window_start, start = bytes(self.source.view(self._position, fetch)), self._position, 0
        self._position += size
        return self._window[start : start + size]

    def private(self, nbytes: int) -> memoryview:
        """Returns the next bytes to be written to, see `Source.private`."""
        view = self.source.private(self._position, nbytes)
        self._position += nbytes
        return view

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.source.size}[whence]
        self._position = base + offset
        return self._position
