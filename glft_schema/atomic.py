"""Writing a file so that its name always stands for a whole one: the old until the new is safe on disk, then the new."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

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
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    try:
        with open(fd, "wb", buffering=1 << 20) as stream:
            if mode is not None:
                os.fchmod(fd, mode)
            yield stream
            stream.flush()
            os.fsync(fd)
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = os.fspath(path)
        raise
    sync_folder(folder)


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
