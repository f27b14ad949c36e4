"""Regular files as sources: mapped, or read in pieces."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
from typing import Any

from glft_schema.errors import OptionError, TruncatedError, shown
from glft_schema.storage.source import BytesSource, Source, StrPath

Version = tuple[int, int, int]  # of a file: its inode, size in bytes, and time of modification in nanoseconds


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


def open_source(path: StrPath, mmap: bool = True, *, offset: int = 0, size: int | None = None) -> FileSource:
    """Opens the file at `path`, or a part of it, mapped or read in pieces.

    Args:
        path: the file.
        mmap: map it.
        offset: the part's first byte.
        size: the part's bytes; unless given, all up to the end.

    Raises:
        OSError: with the path, where it cannot be opened or is not a regular file.
        OptionError: for an offset or a size below 0.
        TruncatedError: where the file has fewer than `size` bytes there.
    """
    for what, number in (("offset", offset), ("size", size)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
            raise OptionError(f"expected an integer from 0 on as {what}, found {shown(number)}")
    path = os.fsdecode(path)
    fd = open_regular(path)
    return (MappedSource if mmap else FileSource)(fd, path, offset, size, has_path=True)


def _reopened(path: str, mmap: bool, offset: int, size: int | None, version: Version) -> FileSource:
    fd = open_regular(path)
    if _version(os.fstat(fd)) != version:  # first: a file that is cut short fails to open in another way
        os.close(fd)
        raise OSError(errno.ESTALE, "the file has changed since it was opened", path)
    return (MappedSource if mmap else FileSource)(fd, path, offset, size, has_path=True)


def _version(status: os.stat_result) -> Version:
    return status.st_ino, status.st_size, status.st_mtime_ns


def read_regular(path: StrPath) -> bytes:
    """Returns all bytes of a regular file. Raises OSError as `open_regular`."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()
