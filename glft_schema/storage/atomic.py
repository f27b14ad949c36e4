"""Atomic replacement of files: the name stands for the old file until the new one is safe on disk, then for the new one."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, BinaryIO

from glft_schema.storage.source import StrPath

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)  # what file systems say that cannot lock
BLOCK = 1 << 21  # bytes that are handed to the system together: the largest page of memory of common processors
NO_SYNC = (errno.EINVAL, errno.ENOTSUP)  # and those that cannot sync a folder


@contextmanager
def atomic_write(path: StrPath) -> Iterator[BinaryIO]:
    """Opens a new file beside `path` for writing, and lets it take the place of `path` when the block ends.

    The order is write, fsync, close, rename, fsync of the folder. Where anything before the last fails, `path` is as it was and
    the new file is gone; where the folder's fsync does, the new file stands under its name but may not outlive a loss of power.

    A process that is killed, also by SIGTERM where nothing handles it, may leave ``.NAME.XXXXXXXX.tmp``. The next that writes
    to `path` removes it. Files that are being written are locked, and so are told from those left behind; but for file systems
    whose locks other machines do not see, where of two machines that write to one path at a time one may get an error.

    Mode, owner and group are those of the file replaced, as far as the system lets us, or else follow the umask. A symbolic
    link is followed, so that it stays one; another hard link keeps the old file.

    Raises:
        OSError: from the system, with errno and `path`; before the block begins where the folder is missing or may not be
            written, or `path` is something else than a regular file.
    """
    with ExitStack() as opened:
        with _about(path):
            target, old = _find(path)
            folder = _open_folder(os.path.dirname(target))
            if folder is not None:
                opened.callback(_close, folder)
            temporary, file = _create_beside(target)
            opened.callback(_remove, temporary)
            opened.callback(_discard, file)
            lock = os.dup(file.fileno())  # which is held until the file has its name
            opened.callback(_close, lock)
            if old:
                _take_over(lock, old)
        stream = _Stream(file, path)
        yield stream
        stream.flush()
        with _about(path):
            os.fsync(lock)
            file.close()
            os.replace(temporary, target)
            if folder is not None:
                _sync_folder(folder)


@contextmanager
def _about(path: StrPath) -> Iterator[None]:
    """Puts `path`, not that of the temporary file or none, into what the system says."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


class _Stream(io.BufferedWriter):
    """A file being written, whose errors name the path that it will have; all that is written goes through it.

    The system is given whole blocks, each from a multiple of their size on, and out of memory that is there: so it can keep the
    file in large pages, and whoever maps it takes a tenth of the time for looking into each. What is written may itself be
    mapped, and come in page by page.
    """

    def __init__(self, raw: io.FileIO, path: StrPath) -> None:
        super().__init__(raw, BLOCK + 1)  # a whole block is less than that, and so is copied, not handed on as it lies
        self._path = path
        self._filled = 0  # bytes of the current block

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        with _about(self._path):
            while left:
                taken = super().write(left[: BLOCK - self._filled])
                self._filled, left = self._filled + taken, left[taken:]
                if self._filled == BLOCK:
                    self._filled = 0
                    super().flush()
        return memoryview(data).nbytes

    def flush(self) -> None:
        with _about(self._path):
            super().flush()

    def fileno(self) -> int:
        """Refuses: numpy would hand it to C's streams, which lose what fails when they are closed."""
        raise io.UnsupportedOperation("a file that is being written has no descriptor to write to beside it")


def _find(path: StrPath) -> tuple[str, os.stat_result | None]:
    """Returns where a file that is written to `path` goes, links followed, and what stands there. Raises as `atomic_write`."""
    name = os.fspath(path)
    if os.path.basename(name) in ("", os.curdir, os.pardir):
        code = errno.EISDIR if name else errno.ENOENT
        raise OSError(code, os.strerror(code), name)
    old = None
    with suppress(FileNotFoundError):
        old = os.stat(name)
    if old and not stat.S_ISREG(old.st_mode):
        code = errno.EISDIR if stat.S_ISDIR(old.st_mode) else errno.EINVAL
        raise OSError(code, "is not a regular file; it is left alone", name)
    return os.path.realpath(name, strict=old is not None), old


def _create_beside(target: str) -> tuple[str, io.FileIO]:
    """Makes a file in the folder of `target`, locks it, and returns its path and the open file."""
    folder, name = os.path.split(target)
    start = f".{os.fsencode(name)[:200].decode('utf-8', 'ignore')}."
    _remove_leftovers(folder, start)
    while True:
        path = os.path.join(folder, f"{start}{secrets.token_hex(4)}.tmp")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            if _lock(fd) and os.path.lexists(path):
                return path, io.FileIO(fd, "w")
        except BaseException:
            _close(fd)
            _remove(path)
            raise
        _close(fd)  # another writer took it for left behind before it was locked
        _remove(path)


def _lock(fd: int) -> bool:
    """Locks a file for as long as it is open, and tells whether nobody else has."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


def _remove_leftovers(folder: str, start: str) -> None:
    """Removes the files of writers that were killed: those that nobody has locked."""
    left = re.compile(rf"{re.escape(start)}[0-9a-f]{{8}}\.tmp")
    with suppress(OSError), os.scandir(folder) as entries:  # a folder that may not be read
        for path in [entry.path for entry in entries if left.fullmatch(entry.name)]:
            with suppress(OSError):  # locked, or not ours
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)  # it may be no more writable than its target
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if stat.S_ISREG(os.fstat(fd).st_mode):
                        os.unlink(path)
                finally:
                    os.close(fd)


def _take_over(fd: int, old: os.stat_result) -> None:
    """Gives a new file the group, owner and mode of the old one; where not the group, then its own has the rights of others."""
    new = os.fstat(fd)
    mode = stat.S_IMODE(old.st_mode)
    if new.st_gid != old.st_gid:
        try:
            os.fchown(fd, -1, old.st_gid)
        except OSError:
            mode = mode & ~stat.S_IRWXG | (mode & stat.S_IRWXO) << 3
    if new.st_uid != old.st_uid:
        with suppress(OSError):
            os.fchown(fd, old.st_uid, -1)
    if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
        os.fchmod(fd, mode)


def _discard(file: io.FileIO) -> None:
    """Closes a file, unless that is done, so that nothing is written to it any more."""
    with suppress(OSError):
        file.close()


def _remove(path: str) -> None:
    """Removes a temporary file, unless it has another name by now."""
    with suppress(OSError):
        os.unlink(path)


def _close(fd: int) -> None:
    """Closes a descriptor that nothing is written through any more, so that nothing can be lost."""
    with suppress(OSError):
        os.close(fd)


def _open_folder(folder: str) -> int | None:
    """Opens a folder, so that the names in it can be made durable; returns None for one that may be written but not read."""
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return None


def _sync_folder(fd: int) -> None:
    """Makes the names in a folder durable, where the system can."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
