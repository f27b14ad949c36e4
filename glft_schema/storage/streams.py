"""Streams as sources, and sources as streams."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable
from typing import IO, Any, Protocol

from glft_schema.errors import quote
from glft_schema.limits import current
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.file_source import FileSource, MappedSource
from glft_schema.storage.source import BytesSource, Source
from glft_schema.storage.system import MAPS

START = 16  # bytes of a file that tell its format; checked before the rest is read
STEP, MAX_STEP = 1 << 16, 1 << 24  # bytes per read: each doubles the total, within these bounds


class Readable(Protocol):
    """A stream with a `read` method, as `Container.parse_stream` takes."""

    def read(self, size: int = -1, /) -> bytes: ...


def stream_source(stream: Readable, check: Callable[[Source], object], mmap: bool = MAPS) -> Source:
    """Returns the rest of `stream` as a source, and moves the stream to its end.

    A regular file opened by Python is not read: the source duplicates its descriptor and stays
    valid after `stream` is closed. Other streams are read into memory after a first check.

    Args:
        stream: a stream of bytes; need not be seekable.
        check: called with the first bytes, at most `START`; raises to stop reading.
        mmap: map a regular file; otherwise read it on demand.

    Raises:
        LimitError: if a stream other than a regular file exceeds the limit ``stream``.
        TypeError: if `stream` is not a stream, or yields text.
        OSError: from the system; BlockingIOError if a non-blocking stream has no bytes yet.
    """
    if not hasattr(stream, "read"):
        raise TypeError(f"expected a stream of bytes, found {quote(stream)}")
    if isinstance(stream, Cursor):  # inside another construct
        return BytesSource(stream.read())
    if is_regular(stream):
        file: Any = stream
        start = file.tell()  # the position of the stream; the descriptor may be further, due to read-ahead
        name = os.fsdecode(file.name) if isinstance(file.name, (str, bytes, os.PathLike)) else "<bytes>"
        source = (MappedSource if mmap else FileSource)(os.dup(file.fileno()), name, start)
        file.seek(0, os.SEEK_END)
        return source
    limits, stored = current(), bytearray()
    while len(stored) < START and (piece := read_piece(stream, START - len(stored))):
        stored += piece
    check(BytesSource(bytes(stored)))
    while piece:
        limits.check("stream", len(stored), "", " bytes in a stream")
        piece = read_piece(stream, min(max(len(stored), STEP), MAX_STEP, limits.stream + 1 - len(stored)))
        stored += piece
    limits.check("stream", len(stored), "", " bytes in a stream")
    return BytesSource(stored)


def is_regular(stream: Any) -> bool:
    """Returns whether a stream is a regular file opened by Python, and flushes it.

    A wrapper such as a GzipFile has the file's descriptor, but other bytes.
    """
    raw = stream.raw if type(stream) in (io.BufferedReader, io.BufferedRandom) else stream
    if type(raw) is not io.FileIO or not raw.readable() or not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
        return False
    if stream.writable():
        stream.flush()
    return True


def read_piece(stream: Readable, nbytes: int) -> bytes:
    """Returns up to `nbytes` bytes of `stream`; none at its end."""
    piece: Any = stream.read(nbytes)
    if piece is None:
        raise BlockingIOError(errno.EAGAIN, "the stream is non-blocking and has no bytes yet")
    if not isinstance(piece, (bytes, bytearray, memoryview)):
        raise TypeError(f"expected a stream of bytes, found one that returns {quote(piece, 40)}: open the file in binary mode")
    return bytes(piece)


def stream_of(source: Source) -> IO[bytes]:
    """Returns a stream of a source, which stays open when the stream is closed."""
    return io.BufferedReader(_SourceStream(source), MAX_STEP >> 4)


class _SourceStream(io.RawIOBase):
    def __init__(self, source: Source) -> None:
        self._cursor = Cursor(source)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        stored = self._cursor.read(min(len(buffer), self._cursor.left))
        buffer[: len(stored)] = stored
        return len(stored)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._cursor.seek(offset, whence)
