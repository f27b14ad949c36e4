"""`Cursor`: the stream over a `Source` that construct reads."""

from __future__ import annotations

import os
from typing import Any

import construct

from glft_schema.errors import TruncatedError
from glft_schema.storage.source import Source


class Cursor:
    """A stream over a `Source`, for construct: `read`, `seek`, `tell`."""

    WINDOW = 1 << 16  # minimum bytes per fetch
    AHEAD = 1 << 20  # maximum bytes that are expected to be read after them

    def __init__(self, source: Source, position: int = 0) -> None:
        self.source = source
        self._position = position
        self._window = b""  # a copy, so that a cursor in a traceback does not keep a map open
        self._window_start = 0

    @property
    def left(self) -> int:
        """Bytes up to the end."""
        return max(self.source.size - self._position, 0)

    def read(self, size: int = -1) -> bytes:
        """Returns the next `size` bytes, or everything up to the end.

        Raises:
            TruncatedError: if fewer bytes are left. Nothing is read then.
        """
        size = self.left if size < 0 else size
        start = self._position - self._window_start
        if start < 0 or start + size > len(self._window):
            fetch = max(size, min(self.WINDOW, self.left))
            self.source.expect(self._position, fetch + min(self._position // 4, self.AHEAD))  # more metadata
            self._window, self._window_start, start = bytes(self.source.read(self._position, fetch)), self._position, 0
        self._position += size
        return self._window[start : start + size]

    def ahead(self) -> tuple[bytes, int]:
        """Returns the bytes already in memory and the index of the next byte in them."""
        at = self._position - self._window_start
        return (self._window, at) if at >= 0 else (b"", 0)

    def private(self, nbytes: int) -> memoryview:
        """Returns the next bytes as a writable view. See `Source.private`."""
        view = self.source.private(self._position, nbytes)
        self._position += nbytes
        return view

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.source.size}[whence]
        self._position = base + offset
        return self._position


def bytes_left(stream: Any) -> int:
    """Returns the bytes up to the end of any seekable stream."""
    return stream.left if isinstance(stream, Cursor) else int(construct.stream_size(stream)) - int(stream.tell())


def read_exactly(stream: Any, nbytes: int, path: str) -> bytes:
    """Returns the next `nbytes` bytes of any stream, for the field at `path`.

    Raises:
        TruncatedError: if fewer are left; construct.StreamError for a stream other than a `Cursor`.
    """
    if not isinstance(stream, Cursor):
        return bytes(construct.stream_read(stream, nbytes, path))
    try:
        return stream.read(nbytes)
    except TruncatedError as error:
        error.path = path
        raise
