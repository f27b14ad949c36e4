"""Where bytes come from: a mapped file, a file read in pieces, or bytes in memory.

A `Source` hands out views of a known number of bytes; a `Cursor` is the stream over it that construct reads. Both refuse to go
past the end before anything is allocated.
"""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from typing import Protocol

from glft_schema.errors import ClosedError, TruncatedError

StrPath = str | os.PathLike[str]


class Readable(Protocol):
    """Any stream with a `read`: what `Container.parse_stream` takes."""

    def read(self, size: int = -1, /) -> bytes: ...


class Source:
    """A number of bytes that can be viewed anywhere, any number of times, from any thread.

    Attributes:
        name: the path, or ``<bytes>``.
        size: bytes in all.
        window: bytes that a `Cursor` fetches at least; the whole where a view costs nothing.
    """

    def __init__(self, name: str, size: int, window: int) -> None:
        self.name = name
        self.size = size
        self.window = window
        self.closed = False

    def view(self, start: int, nbytes: int) -> memoryview:
        """Returns `nbytes` bytes from `start` on. A writable view is private: writing to it changes no file.

        Raises:
            ClosedError: after `close`.
            TruncatedError: where the bytes are not all there (any more).
        """
        if self.closed:
            raise ClosedError(f"{self.name} is closed")
        left = max(self._size_now() - start, 0)
        if nbytes > left:
            raise TruncatedError(f"expected {nbytes} bytes, found {left}", offset=start)
        return self._view(start, nbytes)

    def close(self) -> None:
        """Ends access. Tensors that were handed out before stay valid."""
        self.closed = True

    def _size_now(self) -> int:
        return self.size

    def _view(self, start: int, nbytes: int) -> memoryview:
        raise NotImplementedError


class BytesSource(Source):
    """Bytes in memory, as they are: views are read-only, whatever was passed in."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "<bytes>") -> None:
        self._bytes = memoryview(data).toreadonly().cast("B")
        super().__init__(name, len(self._bytes), window=len(self._bytes))

    def _view(self, start: int, nbytes: int) -> memoryview:
        return self._bytes[start : start + nbytes]


class MappedSource(Source):
    """A mapped file. Pages are private and copied on write, so tensors over them may be written to without touching the file.

    The file's size is looked up again at each view: a file cut short since it was opened is an error here. What is cut off
    while a view is in use no map can protect against; `FileSource` can.
    """

    def __init__(self, path: StrPath) -> None:
        fd = open_regular(path)
        try:
            size = os.fstat(fd).st_size
            self._map = mmap.mmap(fd, size, access=mmap.ACCESS_COPY) if size else None
        finally:
            os.close(fd)
        super().__init__(os.fspath(path), size, window=size)

    def _size_now(self) -> int:
        return min(self.size, self._map.size()) if self._map is not None else 0

    def _view(self, start: int, nbytes: int) -> memoryview:
        if self._map is None:
            return memoryview(b"")
        return memoryview(self._map)[start : start + nbytes]

    def close(self) -> None:
        super().close()
        if self._map is not None:
            try:
                self._map.close()
            except BufferError:  # tensors still look into the map; it goes when the last of them goes
                self._map = None


class FileSource(Source):
    """A file read in pieces into memory of its own: what is read cannot change afterwards."""

    def __init__(self, path: StrPath) -> None:
        self._fd = open_regular(path)
        self._release = weakref.finalize(self, os.close, self._fd)
        super().__init__(os.fspath(path), os.fstat(self._fd).st_size, window=1 << 16)

    def _size_now(self) -> int:
        return min(self.size, os.fstat(self._fd).st_size)

    def _view(self, start: int, nbytes: int) -> memoryview:
        view = memoryview(bytearray(nbytes))
        got = 0
        while got < nbytes:
            n = os.preadv(self._fd, [view[got:]], start + got)
            if n == 0:
                raise TruncatedError(f"expected {nbytes} bytes, found {got}", offset=start)
            got += n
        return view

    def close(self) -> None:
        super().close()
        self._release()


def open_regular(path: StrPath) -> int:
    """Opens a regular file for reading and returns its descriptor; refuses pipes and devices without waiting on them."""
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
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


class Cursor:
    """A stream over a `Source`, for construct: `read`, `seek`, `tell`; and `view`, which does not copy."""

    def __init__(self, source: Source, position: int = 0) -> None:
        self.source = source
        self._position = position
        self._window = memoryview(b"")
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
            fetch = max(size, min(self.source.window, self.left))
            self._window, self._window_start, start = self.source.view(self._position, fetch), self._position, 0
        self._position += size
        return bytes(self._window[start : start + size])

    def view(self, nbytes: int) -> memoryview:
        """Like `read`, without a copy where the source allows it."""
        view = self.source.view(self._position, nbytes)
        self._position += nbytes
        return view

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.source.size}[whence]
        self._position = base + offset
        return self._position
