"""Atomic file replacement: readers see the old file or the complete new one."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from glft_schema.errors import OptionError, quote, safe
from glft_schema.storage.source import Source, StrPath, path_text

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)  # no support for file locks
NO_SYNC = (errno.EINVAL, errno.ENOTSUP)  # no support for fsync of a folder
BLOCK = 1 << 21  # bytes per write: the size of a huge page on common processors
OPEN_BLOCKS = 8  # unfinished blocks of a file: payloads have at most 8 fields
CREATED = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW  # never an existing file or link
OTHERS = stat.S_IWGRP | stat.S_IWOTH  # write permissions of group and others
TEMPORARY = r"[0-9a-f]{8}\.tmp"  # ends of the names of temporary files
RESUMABLE = r"[0-9a-f]{16}\.([0-9]+\.)?part"


@contextmanager
def atomic_write(path: StrPath, key: str = "", *, resume: bool = True) -> Iterator[OutputFile]:
    """Opens a temporary file for writing and renames it to `path` when the block ends.

    The order is write, fsync, close, rename, fsync of the folder. If a step before the last fails,
    `path` is unchanged and the temporary file is removed. If the folder's fsync fails, the new file
    is in place but may not survive a power loss.

    A process killed by SIGKILL, or by SIGTERM without a handler, may leave ``.NAME.XXXXXXXX.tmp``.
    The next write to `path` removes it. Locks tell files in use from abandoned ones. If locks are
    local to a machine, one of two machines that write to `path` at once may get an error.

    The new file gets the mode of the old one and, if the system permits, its owner and group. If
    there is no old file, the umask applies. A symbolic link is followed and stays a link. Other
    hard links keep the old file.

    With a key, the temporary file is ``.NAME.KEY.part``, which other processes can find. Until it
    is renamed, only this user can read and write it, and a file that others could have written is
    refused. If the block raises, or the process is killed, all files that begin with ``.NAME.KEY.``
    remain, and the next call with `key` continues with them. A call with another key, or with none,
    removes them unless they are in use.

    Args:
        path: the file to write.
        key: 16 hexadecimal digits that identify the new file's content, or empty.
        resume: whether a temporary file with a key remains after an error.

    Raises:
        OptionError: if another process is writing a file with this key; as `open_own`.
        OSError: from the system, with errno and `path`. Raised before the block begins if the
            folder is missing or not writable, or `path` is not a regular file.
    """
    handle = None
    with ExitStack() as opened:
        with _naming(path):
            target, old = _find(path)
            folder, name = os.path.split(target)
            with suppress(PermissionError):  # a folder may be writable but not readable
                handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                opened.callback(_attempt, os.close, handle)
            temporary, fd = _open_partial(target, key) if key else _create_beside(target)
            if not (key and resume):
                opened.callback(_attempt, os.unlink, temporary)  # fails after the rename
            file = io.FileIO(fd, "r+")
            opened.callback(_attempt, file.close)
            lock = os.dup(fd)  # holds the lock until after the rename
            opened.callback(_attempt, os.close, lock)
            if old and not key:
                _copy_owner_and_mode(lock, old)
        stream = OutputFile(fd, path)
        yield stream
        stream.flush()
        with _naming(path):
            if key:
                _copy_owner_and_mode(lock, old or _create_in(folder, _start(name)).status)
            os.fsync(lock)
            file.close()
            os.replace(temporary, target)
            if handle is not None:
                _sync_folder(handle)
        if key:
            _remove_abandoned(folder, _start(name))


def _open_partial(target: str, key: str) -> tuple[str, int]:
    """Opens and locks the temporary file of a key, new or of an earlier run, and removes those of
    other keys. Returns its path and descriptor."""
    folder, name = os.path.split(target)
    temporary = partial_path(target, key)
    fd = _open_locked(temporary)
    if fd is None:
        raise OptionError(f"another process is writing {name!r}")
    _remove_abandoned(folder, _start(name), key)
    return temporary, fd


def _open_locked(path: str) -> int | None:
    """Opens or creates a temporary file and locks it. Returns None if another process holds
    the lock. Raises as `open_own`."""
    while True:
        fd = open_or_create(path)
        try:
            if not lock(fd):
                _attempt(os.close, fd)
                return None
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.lstat(path)):
                    return fd
        except BaseException:
            _attempt(os.close, fd)
            raise
        _attempt(os.close, fd)  # another writer took it for abandoned before it was locked


def open_or_create(path: str, flags: int = 0) -> int:
    """Creates a file that only this user can read and write, or opens one as `open_own`."""
    while True:
        with suppress(FileExistsError):
            return os.open(path, CREATED | flags, 0o600)
        with suppress(FileNotFoundError):  # removed meanwhile
            return open_own(path, os.O_RDWR | flags)


def open_own(path: str, flags: int) -> int:
    """Opens a temporary file of an earlier run, or of another rank, and returns its descriptor.

    Raises:
        OptionError: if the file is a link or not regular, has other hard links, or another user
            owns it or may write to it.
        OSError: from the system, with the temporary file's path.
    """
    _check_own(path, os.lstat(path))  # before open, which may have side effects on a device
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _check_own(path, os.fstat(fd))
    except BaseException:
        _attempt(os.close, fd)
        raise
    return fd


def _check_own(path: str, found: os.stat_result) -> None:
    """Raises OptionError unless only this user can have written a file; see `open_own`."""
    folder, name = os.path.split(path)
    problem = "a link or special file"
    if stat.S_ISREG(found.st_mode):
        own = _create_in(folder, re.sub(rf"{RESUMABLE}\Z", "", name))
        problem = ""
        if found.st_nlink > 1:
            problem = f"one with {found.st_nlink} names"
        elif found.st_uid != own.status.st_uid:
            problem = f"one of user {found.st_uid}"
        elif found.st_mode & OTHERS & ~own.private:
            problem = f"mode {stat.S_IMODE(found.st_mode):04o}"
    if problem:
        text = f"expected a temporary file that only this user can write to, found {problem}: remove {safe(path, 1000)}"
        raise OptionError(text)


class _Created(NamedTuple):
    """Owner, group and mode of a new file of this process.

    Attributes:
        status: owner, group and mode, by the umask.
        private: mode after a change to 0600. Some file systems have one mode for all files.
    """

    status: os.stat_result
    private: int


def _create_in(folder: str, start: str) -> _Created:
    """Creates and removes a file, to learn the owner and modes that the file system assigns."""
    path, fd = _create(folder, start)
    try:
        status = os.fstat(fd)
        _attempt(os.fchmod, fd, 0o600)
        return _Created(status, os.fstat(fd).st_mode)
    finally:
        _attempt(os.close, fd)
        _attempt(os.unlink, path)


def partial_path(path: StrPath, key: str, part: str = "") -> str:
    """Returns the path of the temporary file with a key, see `atomic_write`, or of another one with
    `part` in its name."""
    folder, name = os.path.split(os.path.realpath(path))
    return os.path.join(folder, f"{_start(name)}{key}.{part + '.' if part else ''}part")


@contextmanager
def new_files(paths: Sequence[StrPath]) -> Iterator[list[StrPath]]:
    """Yields a list for the paths that the caller has written. An error removes these files.

    Add a path when its file is complete: until then, a file there is another process's. Others than
    `paths` are never removed.
    Raises OptionError if one of the paths exists.
    """
    if taken := [path for path in paths if os.path.lexists(path)]:
        raise OptionError(
            f"expected no file at the output paths, found {quote(os.path.basename(taken[0]))}: remove it, or choose other paths"
        )
    created: list[StrPath] = []
    try:
        yield created
    except BaseException:
        for path in set(paths).intersection(created):
            _attempt(os.unlink, path)
        raise


@contextmanager
def _naming(path: StrPath) -> Iterator[None]:
    """Makes errors from the system name `path` instead of the temporary file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


class OutputFile:
    """A file written at arbitrary positions; errors name the final path.

    The system gets whole aligned blocks from resident memory, so it can cache the file in large
    pages, and page faults of a later map take a tenth of the time. The data passed to `write` may
    itself be a map whose pages are not loaded yet.

    Attributes:
        fd: its descriptor.

    Args:
        fd: as above; stays open.
        path: the path that errors name.
    """

    def __init__(self, fd: int, path: StrPath) -> None:
        self.fd, self._path, self._at = fd, path, 0
        self._blocks: dict[int, _Block] = {}  # unfinished ones, by number
        self._spare: list[bytearray] = []

    def write(self, data: Any) -> int:
        """Writes all of `data` at the position, and returns the number of bytes."""
        nbytes = self.write_at(self._at, data)
        self._at += nbytes
        return nbytes

    def write_at(self, start: int, data: Any) -> int:
        """Writes all of `data` from byte `start` on, and returns the number of bytes."""
        left = memoryview(data).cast("B")
        nbytes = len(left)
        while left:
            number, first = divmod(start, BLOCK)
            part = left[: BLOCK - first]
            block = self._blocks.get(number)
            if block is None or block.stop != first:
                self._end_block(number if block else None)
                block = self._blocks[number] = _Block(self._spare.pop() if self._spare else bytearray(BLOCK), first, first)
            block.stop = first + len(part)
            block.data[first : block.stop] = part
            if block.stop == BLOCK:
                self._end_block(number)
            start, left = start + len(part), left[len(part) :]
        return nbytes

    def copy_from(self, source: Source, start: int, nbytes: int) -> int:
        """Copies bytes of a source in the kernel. Copies none if there are fewer than `BLOCK`.

        Returns:
            The number of bytes copied, see `Source.copy_to`.
        """
        if nbytes < BLOCK:
            return 0
        self.flush()
        with _naming(self._path):
            os.lseek(self.fd, self._at, os.SEEK_SET)
        copied = source.copy_to(self.fd, start, nbytes)
        self._at += copied
        return copied

    def tell(self) -> int:
        """Returns the position."""
        return self._at

    def seek(self, position: int) -> None:
        """Moves the position, counted from the start."""
        self._at = position

    def flush(self) -> None:
        """Gives all bytes to the system."""
        for number in [*self._blocks]:
            self._end_block(number)

    def _end_block(self, number: int | None) -> None:
        """Writes an unfinished block; for None the oldest one, if there are too many."""
        if number is None:
            if len(self._blocks) < OPEN_BLOCKS:
                return
            number = next(iter(self._blocks))
        block = self._blocks.pop(number)
        left, position = memoryview(block.data)[block.start : block.stop], number * BLOCK + block.start
        with _naming(self._path):
            while left:
                written = os.pwrite(self.fd, left, position)
                left, position = left[written:], position + written
        self._spare.append(block.data)


@dataclass
class _Block:
    """An unfinished block: `data` has its bytes from `start` to `stop`."""

    data: bytearray
    start: int
    stop: int


def _find(path: StrPath) -> tuple[str, os.stat_result | None]:
    """Returns the path with links resolved and the old file's status. Raises as `atomic_write`."""
    name = path_text(path)
    if os.path.basename(name) in ("", os.curdir, os.pardir):
        code = errno.EISDIR if name else errno.ENOENT
        raise OSError(code, os.strerror(code), name)
    old = None
    with suppress(FileNotFoundError):
        old = os.stat(name)
    if old and not stat.S_ISREG(old.st_mode):
        code = errno.EISDIR if stat.S_ISDIR(old.st_mode) else errno.EINVAL
        raise OSError(code, "not a regular file; left unchanged", name)
    return os.path.realpath(name, strict=old is not None), old


def _create_beside(target: str) -> tuple[str, int]:
    """Creates and locks a temporary file in the folder of `target`. Returns its path and
    descriptor."""
    folder, name = os.path.split(target)
    start = _start(name)
    _remove_abandoned(folder, start)
    while True:
        path, fd = _create(folder, start)
        try:
            if lock(fd) and os.path.lexists(path):
                return path, fd
        except BaseException:
            _attempt(os.close, fd)
            _attempt(os.unlink, path)
            raise
        _attempt(os.close, fd)  # another writer saw it unlocked and took it for abandoned
        _attempt(os.unlink, path)


def _create(folder: str, start: str) -> tuple[str, int]:
    """Creates a temporary file. Returns its path and descriptor."""
    path = os.path.join(folder, f"{start}{os.urandom(4).hex()}.tmp")
    return path, os.open(path, CREATED, 0o666)


def _start(name: str) -> str:
    """Returns the start of the names of a file's temporary files."""
    return f".{os.fsencode(name)[:200].decode('utf-8', 'ignore')}."


def lock(fd: int) -> bool:
    """Locks a file until it is closed; returns False if another process holds the lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


def _remove_abandoned(folder: str, start: str, kept: str = "") -> None:
    """Removes unlocked temporary files, which writers that were killed have left.

    Args:
        folder: their folder.
        start: the start of their names.
        kept: a key whose files are kept; see `atomic_write`.
    """
    others = rf"(?!{kept}\.)" if kept else ""
    temporary = re.compile(rf"{re.escape(start)}({TEMPORARY}|{others}{RESUMABLE})")
    with suppress(OSError), os.scandir(folder) as entries:  # the folder may not be readable
        for path in [entry.path for entry in entries if temporary.fullmatch(entry.name)]:
            with suppress(OSError):  # locked, or another user's
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)  # may be read-only, as its target
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if stat.S_ISREG(os.fstat(fd).st_mode):
                        os.unlink(path)
                finally:
                    os.close(fd)


def _copy_owner_and_mode(fd: int, old: os.stat_result) -> None:
    """Gives the new file the group, owner and mode of the old one.

    If the group cannot be set, the file's own group gets the permissions of others.
    """
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


def _attempt(function: Callable[..., object], *args: object) -> None:
    """Calls a cleanup function. Its errors are ignored, since no data can be lost."""
    with suppress(OSError):
        function(*args)


def _sync_folder(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
