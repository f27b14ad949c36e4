"""Regular files as sources: memory-mapped, or read on demand."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
from contextlib import suppress
from typing import Any

from glft_schema.errors import TruncatedError
from glft_schema.storage.source import BytesSource, Source, StrPath, path_text
from glft_schema.storage.system import MAPS, map_copy_on_write, open_file, read_at

STEP = 1 << 26  # bytes per copying call: a few milliseconds, then signals are handled
_MAPPING = threading.Lock()
Version = tuple[int, int, int]  # inode, size in bytes, modification time in nanoseconds


class Descriptor:
    """A file descriptor. It is closed with the last reference: of a source, or a read in progress.

    Keep the object in a variable while `fd` is in use.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        if os:  # at Python's exit, the modules may be gone already
            os.close(self.fd)


class FileSource(Source):
    """A regular file or a part of it, read on demand. Data that has been read does not change.

    Each read checks the file's size again, so a file truncated while open raises an error. Pickles
    as the path, or as the bytes if there is none. Unpickling a changed file raises OSError.

    Args:
        fd: file descriptor; the source takes ownership.
        name: the file's name, or ``<bytes>``.
        start: first byte of the part.
        size: bytes of the part; by default up to the end of the file.
        has_path: whether `name` is a path that opens the file again.
    """

    def __init__(self, fd: int, name: str, start: int = 0, size: int | None = None, has_path: bool = False) -> None:
        self._file: Descriptor | None = Descriptor(fd)
        self.start = start
        self._size_given = size
        self.has_path = has_path
        status = os.fstat(fd)
        self.version = _version(status)  # changes if the file is written to or replaced
        left = max(status.st_size - start, 0)
        super().__init__(name, left if size is None else size)
        if self.size > left:
            self.close()
            raise TruncatedError(f"expected {size} bytes at byte {start} of the file, found {left}", offset=0, file=name)

    def __reduce__(self) -> tuple[Any, ...]:
        self.check_open()
        if not self.has_path:
            return BytesSource, (bytes(self.read(0, self.size)),)
        return _reopen, (self.name, self.mapped, self.start, self._size_given, self.version)

    def _opened(self) -> Descriptor:
        """Returns the descriptor. Raises ClosedError after `close`."""
        file = self._file
        if file is None:
            self.check_open()
        assert file
        return file

    def _size_now(self) -> int:
        file = self._opened()
        return min(self.size, os.fstat(file.fd).st_size - self.start)

    def _view(self, start: int, nbytes: int) -> memoryview:
        view = memoryview(bytearray(nbytes))
        self._read_into(view, 0, start, nbytes)
        return view

    def _read_into(self, memory: Any, first: int, start: int, nbytes: int) -> None:
        file, at, last = self._opened(), first, first + len(memory)
        while at < last:
            n = read_at(file.fd, memory[at - first :], self.start + start + at)
            if n == 0:
                raise TruncatedError(f"expected {nbytes} bytes, found {at}", offset=start, file=self.name)
            at += n

    def _copy_to(self, fd: int, start: int, nbytes: int) -> int:
        copy = getattr(os, "copy_file_range", None)  # Linux only
        file, done = self._opened(), 0
        with suppress(OSError):  # not supported between these files, for example
            while copy and done < nbytes:
                at = self.start + start + done
                try:  # steps end at multiples of STEP, so that the blocks of the file can be shared
                    n = copy(file.fd, fd, min(nbytes - done, STEP - at % STEP), at)
                except InterruptedError:
                    continue
                if n == 0:  # the file was truncated, or its file system cannot copy
                    break
                done += n
        return done

    def _private(self, start: int, nbytes: int) -> memoryview:
        return self._view(start, nbytes)

    def _release(self) -> None:
        self._file = None


class MappedSource(FileSource):
    """A mapped file or a part of it: one map for views, one copy-on-write map for private views. On
    Windows, the latter is made with the first private view, because memory is committed for it.

    Parsing uses `read`, which does not touch the maps. If a mapped file is truncated while a view
    is in use, the process ends with SIGBUS; a `FileSource` raises an error instead.
    """

    mapped = True

    def __init__(self, fd: int, name: str, start: int = 0, size: int | None = None, has_path: bool = False) -> None:
        self._maps: list[mmap.mmap] = []
        super().__init__(fd, name, start, size, has_path)
        self._lead = start % mmap.ALLOCATIONGRANULARITY  # maps begin at page boundaries
        self._span = {"length": self._lead + self.size, "offset": start - self._lead}
        if self.size:
            try:
                self._maps.append(mmap.mmap(fd, access=mmap.ACCESS_READ, **self._span))
                if MAPS:  # now, because the file may be truncated later
                    self._private(0, 0)
            except OSError as error:
                self.close()
                error.filename = name
                raise

    def read(self, start: int, nbytes: int) -> memoryview:
        return self._guard(super()._view, start, nbytes)

    def _view(self, start: int, nbytes: int) -> memoryview:
        return self._part(0, start, nbytes)

    def _private(self, start: int, nbytes: int) -> memoryview:
        file, maps = self._opened(), self._maps
        if len(maps) == 1:
            with _MAPPING:
                if len(maps) == 1:
                    maps.append(map_copy_on_write(file.fd, **self._span))
        return self._part(1, start, nbytes)

    def _part(self, which: int, start: int, nbytes: int) -> memoryview:
        maps = self._maps
        if not maps:
            self.check_open()
            return memoryview(b"")
        return memoryview(maps[which])[self._lead + start : self._lead + start + nbytes]

    def _release(self) -> None:
        super()._release()
        self._maps = []  # tensors may still use them: a map is released with the last of these


def open_regular(path: StrPath) -> int:
    """Opens a regular file for reading and returns its descriptor; never blocks on a pipe.

    Raises:
        OSError: with the path; from the system, or if the path is not a regular file.
    """
    path = path_text(path)
    _check_regular(os.stat(path), path)  # before open, which can have side effects on a device
    fd = open_file(path, os.O_RDONLY)
    try:
        _check_regular(os.fstat(fd), path)
    except OSError:
        os.close(fd)
        raise
    return fd


def _check_regular(status: os.stat_result, path: StrPath) -> None:
    if not stat.S_ISREG(status.st_mode):
        code = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(code, "not a regular file", os.fspath(path))


def _reopen(path: str, mmap: bool, offset: int, size: int | None, version: Version) -> FileSource:
    fd = open_regular(path)
    if _version(os.fstat(fd)) != version:  # before the source, which reports a shortened file differently
        os.close(fd)
        raise OSError(errno.ESTALE, "the file has changed since it was opened", path)
    return (MappedSource if mmap else FileSource)(fd, path, offset, size, has_path=True)


def _version(status: os.stat_result) -> Version:
    return status.st_ino, status.st_size, status.st_mtime_ns
