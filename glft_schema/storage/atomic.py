"""Atomic file replacement: readers see the old file or the complete new one."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from glft_schema.errors import OptionError, quote
from glft_schema.storage.locations import check_local
from glft_schema.storage.source import Source, StrPath, path_text
from glft_schema.storage.system import (
    check_replaceable,
    copy_owner_and_mode,
    hold_lock,
    lock,
    open_file,
    open_folder,
    remove_unlocked,
    replace,
    sync_folder,
    write_at,
)

RANDOM = r"[0-9a-f]{8}\.tmp"  # the end of the name of a temporary file
BLOCK = 1 << 21  # bytes per write: the size of a huge page on common processors
OPEN_BLOCKS = 8  # unfinished blocks of a file: payloads have at most 8 fields


@contextmanager
def atomic_write(path: StrPath, source: Source | None = None) -> Iterator[OutputFile]:
    """Opens a temporary file for writing and renames it to `path` when the block ends.

    The order is write, fsync, close, rename, fsync of the folder. If a step before the last fails,
    `path` is unchanged and the temporary file is removed. If the folder's fsync fails, the new file
    is in place but may not survive a power loss.

    A process killed by SIGKILL, or by SIGTERM without a handler, may leave ``.NAME.XXXXXXXX.tmp``.
    The next write to `path` removes it. Locks tell files in use from abandoned ones. If locks are
    local to a machine, one of two machines that write to `path` at once may get an error.

    The new file gets the mode of the old one and, if the system permits, its owner and group; until
    it is complete, only this user can read it. If there is no old file, the umask applies. On
    Windows, the permissions are those of a new file in the folder. A symbolic link is followed and
    stays a link. Other hard links keep the old file.

    Args:
        path: the file to write.
        source: what the block reads from `path` itself; closed when the block ends.

    Raises:
        OSError: from the system, with errno and `path`. Raised before the block begins if the
            folder is missing or not writable, or `path` is not a regular file; on Windows also if
            it is read-only, or a program has it open or mapped.
        OptionError: if `path` is a URL.
    """
    with ExitStack() as opened:
        with naming(path):
            target, old = _find(path)
            if old and not source:
                check_replaceable(target)
            folder = open_folder(os.path.dirname(target))
            if folder is not None:
                opened.callback(_attempt, os.close, folder)
            _remove_abandoned(target)
            temporary, fd = _open_temporary(target, 0o600 if old else 0o666)
            opened.callback(_attempt, os.unlink, temporary)  # fails after the rename
            file = io.FileIO(fd, "r+")
            opened.callback(_attempt, file.close)
            held = hold_lock(fd)  # until after the rename
            if held is not None:
                opened.callback(_attempt, os.close, held)
        stream = OutputFile(fd, path, os.path.basename(temporary))
        yield stream
        stream.flush()
        with naming(path):
            if old:
                copy_owner_and_mode(fd, old)
            os.fsync(fd)
            if source:
                source.close()
            file.close()
            replace(temporary, target)
            if folder is not None:
                sync_folder(folder)


def _open_temporary(target: str, mode: int) -> tuple[str, int]:
    """Creates and locks a temporary file. Returns its path and descriptor."""
    while True:
        path = f"{_start(target)}{os.urandom(4).hex()}.tmp"
        fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode, follow=False)
        is_kept = False
        try:
            is_kept = lock(fd, path)  # another writer may take it for abandoned before
            if is_kept:
                return path, fd
        finally:
            if not is_kept:
                _attempt(os.close, fd)
                _attempt(os.unlink, path)


def open_begun(path: StrPath, name: str) -> int:
    """Opens the temporary file that `atomic_write` has begun in another process, and returns its
    descriptor.

    Args:
        path: the file that is written.
        name: of the temporary file, as the other process says.

    Raises:
        OptionError: if the name is not that of a temporary file of `path`, or if no regular file
            with one name has it.
        OSError: from the system, with `path`.
    """
    target, _ = _find(path)
    start = _start(target)
    if not re.fullmatch(re.escape(os.path.basename(start)) + RANDOM, name):
        raise OptionError(f"expected the name of a temporary file of {quote(os.path.basename(target))}, found {quote(name)}")
    try:
        with naming(path):
            fd = open_file(os.path.join(os.path.dirname(start), name), os.O_RDWR, follow=False)
    except FileNotFoundError:
        raise OptionError(f"expected {quote(name)}, which another process has begun: all need one file system") from None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(fd)
        raise OptionError(f"expected a regular file with one name, found another one: {quote(name)}")
    return fd


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
def naming(path: StrPath) -> Iterator[None]:
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
        name: of the file in its folder.

    Args:
        fd: as above; stays open.
        path: the path that errors name.
        name: as above.
    """

    def __init__(self, fd: int, path: StrPath, name: str) -> None:
        self.fd, self.name, self._path, self._at = fd, name, path, 0
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
        with naming(self._path):
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
        with naming(self._path):
            write_at(self.fd, left, position)
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
    check_local(name)
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


def _start(target: str) -> str:
    """Returns the start of the paths of a file's temporary files."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{os.fsencode(name)[:200].decode('utf-8', 'ignore')}.")


def _remove_abandoned(target: str) -> None:
    """Removes unlocked temporary files of a file, which writers that were killed have left."""
    folder, start = os.path.split(_start(target))
    temporary = re.compile(re.escape(start) + RANDOM)
    with suppress(OSError), os.scandir(folder) as entries:  # the folder may not be readable
        for path in [entry.path for entry in entries if temporary.fullmatch(entry.name)]:
            with suppress(OSError):  # locked, or another user's
                remove_unlocked(path)


def _attempt(function: Callable[..., object], *args: object) -> None:
    """Calls a cleanup function. Its errors are ignored, since no data can be lost."""
    with suppress(OSError):
        function(*args)
