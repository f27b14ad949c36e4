"""What is left of a stream, as a `Source`: a regular file stays where it is, all else is read into memory."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable
from typing import Any, Protocol

from glft_schema.errors import shown
from glft_schema.limits import current
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.file_source import FileSource, MappedSource
from glft_schema.storage.source import BytesSource, Source

START = 16  # bytes that are looked at before the rest is read
STEP = 1 << 16  # bytes read at a time at first; later as many as are there already, up to a limit
MAX_STEP = 1 << 24


class Readable(Protocol):
    """Any stream with a `read`: what `Container.parse_stream` takes."""

    def read(self, size: int = -1, /) -> bytes: ...


def stream_source(stream: Readable, check: Callable[[Source], object], mmap: bool = True) -> Source:
    """Returns what is left of `stream`, which stands at its end afterwards.

    Of a file that Python opened, where it is a regular one, nothing is read: the source has a descriptor of its own, and works
    also after `stream` is closed. Of other streams the first bytes are looked at before the rest is waited for.

    Args:
        stream: it need not be seekable.
        check: looks at the first `START` bytes, or at all where there are fewer, and raises where it is not worth to go on.
        mmap: map a regular file; otherwise it is read in pieces.

    Raises:
        LimitError: where more bytes come than are read of a stream that is no regular file.
        TypeError: where `stream` gives text.
        OSError: from the system; BlockingIOError where a stream has no bytes yet, but does not wait for them.
    """
    if isinstance(stream, Cursor):  # inside of another container
        return BytesSource(stream.read())
    if (file := _regular(stream)) is not None:
        start = file.tell()  # of the stream: the file itself may be further, as far as it was read ahead
        name = os.fsdecode(file.name) if isinstance(file.name, (str, bytes, os.PathLike)) else "<bytes>"
        source = (MappedSource if mmap else FileSource)(os.dup(file.fileno()), name, start)
        file.seek(0, os.SEEK_END)
        return source
    limits, stored = current(), bytearray()
    while len(stored) < START and (piece := _piece(stream, START - len(stored))):
        stored += piece
    check(BytesSource(bytes(stored)))
    while piece:
        limits.check("stream", len(stored), "", " bytes in a stream")
        piece = _piece(stream, min(max(len(stored), STEP), MAX_STEP, limits.stream + 1 - len(stored)))
        stored += piece
    limits.check("stream", len(stored), "", " bytes in a stream")
    return BytesSource(stored)


def _regular(stream: Any) -> Any:
    """Returns `stream` where it is a regular file that Python opened, else None.

    Other streams over a file have other bytes than it: one that unpacks them has that file's descriptor, too.
    """
    raw = stream.raw if type(stream) in (io.BufferedReader, io.BufferedRandom) else stream
    if type(raw) is not io.FileIO or not raw.readable() or not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
        return None
    if stream.writable():
        stream.flush()
    return stream


def _piece(stream: Readable, nbytes: int) -> bytes:
    """Returns up to `nbytes` bytes of `stream`, none at its end."""
    piece: Any = stream.read(nbytes)
    if piece is None:
        raise BlockingIOError(errno.EAGAIN, "the stream has no bytes yet, and does not wait for them")
    if not isinstance(piece, (bytes, bytearray, memoryview)):
        raise TypeError(f"expected a stream of bytes, found one that gives {shown(piece, 40)}: open it in binary mode")
    return bytes(piece)
