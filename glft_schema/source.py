"""Where bytes come from: a mapped file, a file read in pieces, or bytes in memory.

A `Source` hands out views of a known number of bytes; a `Cursor` is the stream over it that construct reads. Both refuse to go
past the end before anything is allocated.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import construct

from glft_schema.errors import ClosedError, SchemeError, TruncatedError, shown

StrPath = str | os.PathLike[str]
Version = tuple[int, int, int]  # of a file: its inode, size in bytes, and time of modification in nanoseconds


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
        self._nobody_reads()
        _ALIVE.add(self)

    def view(self, start: int, nbytes: int) -> memoryview:
        """Returns `nbytes` bytes from `start` on, not to be written to.

        Raises:
            ClosedError: after `close`.
            TruncatedError: where the bytes are not all there (any more).
            OSError: from the system, with the file's name.
        """
        return self._guarded(self._view, start, nbytes)

    def private(self, start: int, nbytes: int) -> memoryview:
        """Like `view`, but may be written to: that changes no file, nothing that `view` shows, and no caller's bytes."""
        return self._guarded(self._private, start, nbytes)

    def read(self, start: int, nbytes: int) -> memoryview:
        """Like `view`, but in memory that no change of the file can take away: of a mapped file a copy."""
        return self.view(start, nbytes)

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

    def _guarded(self, give: Callable[[int, int], memoryview], start: int, nbytes: int) -> memoryview:
        """Returns what `give` does of bytes that are there, in a file that stays open meanwhile."""
        with self._lock:
            self.check_open()
            self._readers += 1
        try:
            left = max(self._size_now() - start, 0)
            if nbytes > left:
                raise TruncatedError(f"expected {nbytes} bytes, found {left}", offset=start, file=self.name)
            return give(start, nbytes)
        except OSError as error:
            error.filename = error.filename or self.name
            raise
        finally:
            with self._lock:
                self._readers -= 1
                if self.closed and not self._readers:
                    self._release()

    def _nobody_reads(self) -> None:
        """Is so at the beginning, and in a child that was forked while others were reading: they are not in it."""
        self._readers = 0
        self._lock = threading.Lock()

    def _size_now(self) -> int:
        return self.size

    def __copy__(self) -> Source:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Source:
        return self  # nothing in it changes

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"a file over a {type(self).__name__} cannot be pickled")

    def _view(self, start: int, nbytes: int) -> memoryview:
        raise NotImplementedError

    def _private(self, start: int, nbytes: int) -> memoryview:
        return memoryview(bytearray(self._view(start, nbytes)))

    def _release(self) -> None:
        """Gives back what the system lent; called when nobody reads."""


_ALIVE: WeakSet[Source] = WeakSet()


def _after_fork() -> None:
    for source in _ALIVE:
        source._nobody_reads()


os.register_at_fork(after_in_child=_after_fork)


class BytesSource(Source):
    """Bytes in memory."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "<bytes>") -> None:
        self._bytes = memoryview(data).toreadonly().cast("B")
        super().__init__(name, len(self._bytes))

    def __reduce__(self) -> tuple[Any, ...]:
        return BytesSource, (bytes(self.view(0, self.size)), self.name)

    def _view(self, start: int, nbytes: int) -> memoryview:
        return self._bytes[start : start + nbytes]


class FileSource(Source):
    """A regular file, or a part of one, read in pieces into memory of its own: what is read cannot change afterwards.

    The file's size is looked up again at each reading: a file cut short since it was opened is an error here. Pickles as the
    path, or as its bytes if it has none; unpickling raises OSError if the file at the path has changed since it was opened.

    Args:
        fd: the open file's descriptor, which the source takes over.
        name: the file's, or ``<bytes>``.
        start: where in the file the bytes begin.
        size: how many they are; unless given, all up to where the file ends now.
        has_path: `name` is where it can be opened again.

    Attributes:
        start: as given.
        asked: the size as it was given.
        has_path: as given.
        version: changes if the file is written to or replaced.
    """

    def __init__(self, fd: int, name: str, start: int = 0, size: int | None = None, has_path: bool = False) -> None:
        self._fd = fd
        self.start = start
        self.asked = size
        self.has_path = has_path
        status = os.fstat(fd)
        self.version = _version(status)
        left = max(status.st_size - start, 0)
        super().__init__(name, left if size is None else size)
        if self.size > left:
            self.close()
            raise TruncatedError(f"expected {size} bytes from byte {start} of the file on, found {left}", offset=0, file=name)

    def read(self, start: int, nbytes: int) -> memoryview:
        return self._guarded(self._read, start, nbytes)

    def check_version(self, version: Version) -> None:
        """Closes the file and raises OSError if it is not of this version."""
        if self.version != version:
            self.close()
            raise _changed(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        self.check_open()
        if not self.has_path:
            return BytesSource, (bytes(self.read(0, self.size)),)
        return _reopened, (self.name, self.mapped, self.start, self.asked, self.version)

    def _size_now(self) -> int:
        return min(self.size, os.fstat(self._fd).st_size - self.start)

    def _read(self, start: int, nbytes: int) -> memoryview:
        view = memoryview(bytearray(nbytes))
        got = 0
        while got < nbytes:
            n = os.preadv(self._fd, [view[got:]], self.start + start + got)
            if n == 0:
                raise TruncatedError(f"expected {nbytes} bytes, found {got}", offset=start, file=self.name)
            got += n
        return view

    def _view(self, start: int, nbytes: int) -> memoryview:
        return self._read(start, nbytes)

    def _private(self, start: int, nbytes: int) -> memoryview:
        return self._view(start, nbytes)

    def _release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            self._release()


class MappedSource(FileSource):
    """A regular file, or a part of one, mapped: once to be viewed, and once copied on write for private views.

    `read`, which parsing uses, does not touch the map. What is cut off the file while a view is in use no map can protect
    against; `FileSource` can.
    """

    mapped = True

    def __init__(self, fd: int, name: str, start: int = 0, size: int | None = None, has_path: bool = False) -> None:
        self._maps: list[mmap.mmap] = []
        super().__init__(fd, name, start, size, has_path)
        self._lead = start % mmap.ALLOCATIONGRANULARITY  # a map begins at a page
        if self.size:
            place = {"length": self._lead + self.size, "offset": start - self._lead}
            try:
                self._maps.append(mmap.mmap(fd, access=mmap.ACCESS_READ, **place))
                self._maps.append(_copy_on_write(fd, **place))
            except OSError as error:
                self.close()
                error.filename = name
                raise

    def _view(self, start: int, nbytes: int) -> memoryview:
        return self._part(0, start, nbytes)

    def _private(self, start: int, nbytes: int) -> memoryview:
        return self._part(1, start, nbytes)

    def _part(self, which: int, start: int, nbytes: int) -> memoryview:
        if not self._maps:
            return memoryview(b"")
        return memoryview(self._maps[which])[self._lead + start : self._lead + start + nbytes]

    def _release(self) -> None:
        super()._release()
        maps, self._maps = self._maps, []
        for held in maps:
            try:
                held.close()
            except BufferError:  # tensors still look into it: it goes when the last of them goes
                continue


class ReadSource(Source):
    """The bytes of another source, read when they are asked for: a map is not touched.

    A fault in a map makes the system read ahead, megabytes on some disks. A reading of a few bytes takes their pages alone.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        super().__init__(source.name, source.size)

    def _view(self, start: int, nbytes: int) -> memoryview:
        return self._source.read(start, nbytes)

    def _private(self, start: int, nbytes: int) -> memoryview:
        stored = self._source.read(start, nbytes)
        return memoryview(bytearray(stored)) if stored.readonly else stored


def _copy_on_write(fd: int, length: int, offset: int) -> mmap.mmap:
    """Maps a file for writing that stays in memory, and promises no memory for it: a file may be larger than the machine's."""
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)  # Python names it from 3.13 on
    return mmap.mmap(fd, length, flags=mmap.MAP_PRIVATE | no_reserve, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=offset)


def open_regular(path: StrPath) -> int:
    """Opens a regular file for reading and returns its descriptor; refuses all else without waiting on it.

    Raises:
        OSError: with the path; from the system, or where it is not a regular file.
    """
    _check_regular(os.stat(path), path)  # first, because opening a device may set something off
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_regular(os.fstat(fd), path)
    except OSError:
        os.close(fd)
        raise
    return fd


def _check_regular(found: os.stat_result, path: StrPath) -> None:
    if not stat.S_ISREG(found.st_mode):
        number = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
        raise OSError(number, "it is not a regular file", os.fspath(path))


def open_source(path: StrPath, mmap: bool = True, offset: int = 0, size: int | None = None) -> FileSource:
    """Opens the file at `path`, or a part of it, mapped or read in pieces.

    Args:
        path: the file.
        mmap: map it.
        offset: the part's first byte.
        size: the part's bytes; unless given, all up to the end.

    Raises:
        OSError: with the path, where it cannot be opened or is not a regular file.
        SchemeError: for an offset or a size below 0.
        TruncatedError: where the file has fewer than `size` bytes there.
    """
    for what, number in (("offset", offset), ("size", size)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
            raise SchemeError(f"expected an integer from 0 on as {what}, found {shown(number)}")
    path = os.fsdecode(path)
    fd = open_regular(path)
    return (MappedSource if mmap else FileSource)(fd, path, offset, size, has_path=True)


def _reopened(path: str, mmap: bool, offset: int, size: int | None, version: Version) -> FileSource:
    check_version(path, version)  # first: a file that is cut short fails to open in another way
    source = open_source(path, mmap, offset, size)
    source.check_version(version)
    return source


def check_version(path: str, version: Version) -> None:
    """Raises OSError if the file at a path is not of this version."""
    if _version(os.stat(path)) != version:
        raise _changed(path)


def _changed(path: str) -> OSError:
    return OSError(errno.ESTALE, "the file has changed since it was opened", path)


def _version(status: os.stat_result) -> Version:
    return status.st_ino, status.st_size, status.st_mtime_ns


def read_regular(path: StrPath) -> bytes:
    """Returns all bytes of a regular file. Raises OSError as `open_regular`."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


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
