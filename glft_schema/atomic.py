"""Writing a file so that its name always stands for a whole one: the old until the new is safe on disk, then the new."""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from glft_schema.source import StrPath


@contextmanager
def atomic_write(path: StrPath) -> Iterator[BinaryIO]:
    """Opens a new file beside `path` for writing, and lets it take the place of `path` when the block ends.

    The order is write, fsync, rename, fsync of the folder. Where anything before the last fails, `path` is as it was and the
    new file is gone; where the folder's fsync does, the new file stands under its name but may not outlive a loss of power.
    A process that is killed may leave ``.NAME.XXXXXXXX.tmp``. The mode follows the umask, or that of the file replaced; a
    symbolic link is followed, so that it stays one; another hard link keeps the old file.

    Raises:
        OSError: from the system, with a filename; also where `path` is something else than a regular file.
    """
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    mode = None
    with suppress(FileNotFoundError):
        found = os.stat(target)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{os.fspath(path)!r} is not a regular file; it is left alone")
        mode = stat.S_IMODE(found.st_mode)
    short = os.fsencode(name)[:200].decode("utf-8", "ignore")
    temporary = os.path.join(folder, f".{short}.{secrets.token_hex(4)}.tmp")
    with _about(path):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with _Target(io.FileIO(fd, "w"), path) as stream:
            if mode is not None:
                os.fchmod(fd, mode)
            yield stream
            stream.flush()
            with _about(path):
                os.fsync(fd)
        with _about(path):
            os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    with _about(path):
        sync_folder(folder)


@contextmanager
def _about(path: StrPath) -> Iterator[None]:
    """Puts `path`, not that of the temporary file or none, into what the system says."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = os.fspath(path)
        raise


class _Target(io.BufferedWriter):
    """A file being written, whose errors name the path that it will have."""

    def __init__(self, raw: io.FileIO, path: StrPath) -> None:
        super().__init__(raw, 1 << 20)
        self._path = path

    def write(self, data: Any) -> int:
        with _about(self._path):
            return super().write(data)

    def flush(self) -> None:
        with _about(self._path):
            super().flush()


def sync_folder(folder: StrPath) -> None:
    """Makes the names in `folder` durable, where the system can: some folders may be written but not opened or synced."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)
