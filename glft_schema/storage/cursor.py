"""The stream over a `Source` that construct reads."""

from __future__ import annotations

import os
from typing import Any

import construct

from glft_schema.errors import TruncatedError
from glft_schema.storage.source import Source


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
            self._window, self._window_start, start = bytes(self.source.read(self._position, fetch)), self._position, 0
        self._position += size
        return self._window[start : start + size]

    def ahead(self) -> tuple[bytes, int]:
        """Returns bytes that are in memory already, and where in them the next one is; that may be none of them."""
        at = self._position - self._window_start
        return (self._window, at) if at >= 0 else (b"", 0)

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


def bytes_left(stream: Any) -> int:
    """Returns the bytes between here and the end of any seekable stream."""
    return stream.left if isinstance(stream, Cursor) else int(construct.stream_size(stream)) - int(stream.tell())


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
