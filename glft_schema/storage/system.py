"""Operating-system differences: descriptors, maps, locks, replaced files, streams and processes.

Each function uses what POSIX has, or else what Windows has. No other module depends on the system.
"""

from __future__ import annotations

import errno
import gc
import io
import mmap
import os
import re
import signal
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

try:
    import fcntl
    import resource
except ImportError:
    fcntl = resource = None  # type: ignore[assignment]

WINDOWS = os.name == "nt"
MAPS = not WINDOWS  # whether files are mapped by default: Windows commits memory for private maps
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)  # no support for file locks
NO_SYNC = (errno.EINVAL, errno.ENOTSUP)  # no support for fsync of a folder
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)  # named since Python 3.13
LARGEST = (1 << 63) - 2  # the largest limit of a process that all systems can store
LIMITS_OF_JOB = "=qqI4xQQI4xQII48xQQQQ"  # JOBOBJECT_EXTENDED_LIMIT_INFORMATION of 64-bit Windows
TIME, MEMORY, EXTENDED = 0x2, 0x100, 9  # JOB_OBJECT_LIMIT_PROCESS_*, and the class of that information
# Exit codes of a process over its limit of seconds: of a signal, and ERROR_NOT_ENOUGH_QUOTA.
OUT_OF_TIME = (-getattr(signal, "SIGXCPU", 24), 1816)
SHARING_VIOLATION = 32  # ERROR_SHARING_VIOLATION
IN_USE = "is open or mapped, by this program or another one, so Windows cannot replace it; left unchanged"
PAUSES = 0.05, 0.15, 0.3, 0.5  # seconds after each attempt but the last
# Names that cannot be regular files on some system. Windows drops a dot or a space at the end.
RESERVED = re.compile(r'[\0-\x1f"*/:<>?\\|]|[. ]$|^(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(COM|LPT)[0-9¹²³]) *(\.|$)', re.IGNORECASE)
_MOVING = threading.Lock()


def open_file(path: str, flags: int, mode: int = 0o666, *, follow: bool = True) -> int:
    """Opens a file for bytes, without waiting for a pipe. Returns its descriptor.

    Args:
        path: the file.
        flags: those of `os.open`.
        mode: of a new file.
        follow: whether a symbolic link is followed; otherwise it is an error.
    """
    if not (follow or hasattr(os, "O_NOFOLLOW")) and os.path.islink(path):
        raise OSError(errno.ELOOP, "is a symbolic link", path)
    for name in ("O_BINARY", "O_NONBLOCK", *(() if follow else ("O_NOFOLLOW",))):
        flags |= getattr(os, name, 0)
    return os.open(path, flags, mode)


def read_at(fd: int, memory: Any, position: int) -> int:
    """Reads bytes at a position of a file. Returns their number, 0 at the end."""
    if hasattr(os, "preadv"):
        return os.preadv(fd, [memory], position)
    with _moved(fd, position), io.FileIO(fd, closefd=False) as file:
        return file.readinto(memory) or 0


def write_at(fd: int, data: memoryview, position: int) -> None:
    """Writes all bytes at a position of a file."""
    while data:
        if hasattr(os, "pwrite"):
            written = os.pwrite(fd, data, position)
        else:
            with _moved(fd, position):
                written = os.write(fd, data)
        data, position = data[written:], position + written


@contextmanager
def _moved(fd: int, position: int) -> Iterator[None]:
    """Moves the position of a descriptor, which its duplicates share, and restores it."""
    with _MOVING:
        before = os.lseek(fd, 0, os.SEEK_CUR)
        try:
            os.lseek(fd, position, os.SEEK_SET)
            yield
        finally:
            os.lseek(fd, before, os.SEEK_SET)


def map_copy_on_write(fd: int, length: int, offset: int) -> mmap.mmap:
    """Maps a file copy-on-write. POSIX reserves no memory: the file may be larger than RAM."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        with _moved(fd, 0):  # Python's mmap moves the position to 0 there
            return mmap.mmap(fd, length, access=mmap.ACCESS_COPY, offset=offset)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    return mmap.mmap(fd, length, flags=mmap.MAP_PRIVATE | NO_RESERVE, prot=protection, offset=offset)


def lock(fd: int, path: str) -> bool:
    """Locks a new file until it is closed. Returns False if another process has locked it, or taken
    its name, before.

    Windows needs no lock: an open file cannot be removed there.
    """
    if not fcntl:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def hold_lock(fd: int) -> int | None:
    """Returns a descriptor that holds the lock when `fd` is closed. Returns None on Windows, which
    renames no open file."""
    return os.dup(fd) if fcntl else None


def remove_unlocked(path: str) -> None:
    """Removes a regular file. Raises OSError if another process has locked it."""
    if not fcntl:
        os.unlink(path)
        return
    fd = open_file(path, os.O_RDONLY, follow=False)  # may be read-only, as its target
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            os.unlink(path)
    finally:
        os.close(fd)


def open_folder(path: str) -> int | None:
    """Returns a descriptor for `sync_folder`, or None if the folder cannot be opened."""
    with suppress(PermissionError):  # a folder may be writable but not readable
        return os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    return None


def sync_folder(fd: int) -> None:
    """Waits until the names in a folder are on disk."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def copy_owner_and_mode(fd: int, old: os.stat_result) -> None:
    """Gives a new file the group, owner and mode of the old one. On Windows, does nothing.

    If the group cannot be set, the file's own group gets the permissions of others.
    """
    if not hasattr(os, "fchown"):
        return
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


def check_replaceable(path: str) -> None:
    """Raises PermissionError if a file cannot be replaced now: on Windows, a read-only one, or one
    that a program has open or mapped."""
    if not WINDOWS or not os.path.exists(path):
        return
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "is read-only; left unchanged", path)
    for _ in range(2):
        try:
            os.rename(path, path)
            return
        except PermissionError as error:
            if getattr(error, "winerror", 0) != SHARING_VIOLATION:
                raise
        gc.collect()  # closes files that are not in use any more
    raise PermissionError(errno.EACCES, IN_USE, path)


def replace(path: str, target: str) -> None:
    """Renames a file, in place of an old one. On Windows, tries for a second, because scanners for
    viruses open new files. Raises as `check_replaceable`."""
    for pause in PAUSES if WINDOWS else ():
        with suppress(PermissionError):
            os.replace(path, target)
            return
        gc.collect()
        time.sleep(pause)
    try:
        os.replace(path, target)
    except PermissionError:
        check_replaceable(target)
        if WINDOWS and os.path.exists(target):  # it is mapped, but not open
            raise PermissionError(errno.EACCES, IN_USE, target) from None
        raise


def call_in_forks(function: Callable[[], object]) -> None:
    """Calls a function in each process that is forked from this one, if the system forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def limit_process(memory: int, seconds: int, nbytes: int) -> None:
    """Limits this process as far as the system can.

    Args:
        memory: bytes.
        seconds: of the processor, on Windows without those in the system; see `OUT_OF_TIME`.
        nbytes: of a file that it writes; not on Windows.
    """
    if not resource:
        import ctypes

        limits = (min(seconds * 10**7, LARGEST), 0, TIME | MEMORY, 0, 0, 0, 0, 0, 0, min(memory, LARGEST), 0, 0, 0)
        kernel, handle = getattr(ctypes, "windll").kernel32, ctypes.c_void_p  # noqa: B009
        kernel.CreateJobObjectW.restype = kernel.GetCurrentProcess.restype = handle
        job, stored = handle(kernel.CreateJobObjectW(None, None)), struct.pack(LIMITS_OF_JOB, *limits)
        kernel.SetInformationJobObject(job, EXTENDED, stored, len(stored))
        kernel.AssignProcessToJobObject(job, handle(kernel.GetCurrentProcess()))
        return
    for kind, most in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_FSIZE, nbytes)):
        hard = resource.getrlimit(kind)[1]
        most = min(most, LARGEST if hard == resource.RLIM_INFINITY else max(hard - 1, 0))
        with suppress(OSError, ValueError):  # macOS refuses some
            resource.setrlimit(kind, (most, most + 1))  # at the hard limit of seconds, SIGKILL does not tell the reason


def is_broken_pipe(error: OSError) -> bool:
    """Returns whether an error of a pipe says that its reader has closed it."""
    return error.errno == errno.EPIPE or (error.errno == errno.EINVAL and WINDOWS and not error.filename)


def configure_output(stream: io.TextIOWrapper) -> None:
    """Prints characters outside a stream's encoding as escapes. On Windows, prints UTF-8 and line
    feeds, and lets its terminals show colours."""
    if not WINDOWS:
        stream.reconfigure(errors="backslashreplace")
    else:
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
        from colorama import just_fix_windows_console  # click depends on it there

        just_fix_windows_console()
