"""Fingerprints of files and plans, which all ranks compare, and versions of this rank's inputs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from glft_schema.errors import FormatError, OptionError, safe
from glft_schema.files.container import open
from glft_schema.files.file import File
from glft_schema.storage.source import StrPath

SHOWN = 3  # files in a text
DIGITS = 16  # hexadecimal digits of a digest
SAMPLE = 256  # bytes of each payload


class Inputs:
    """The input files of a run, and their versions on this rank at the start.

    All ranks read them on one file system, so ranks compare names, sizes and modification times.
    Each rank checks its own versions, with inodes and times of the status, for changes.

    Args:
        paths: files and folders. A file that opens a set stands for the whole set.
    """

    def __init__(self, paths: Iterable[StrPath]) -> None:
        self._versions: dict[str, os.stat_result] = {}
        self._problem: OSError | None = None
        try:
            for path in (file for given in paths for file in _files_in(given)):
                if path in self._versions:
                    continue
                self._versions[path] = os.stat(path)
                with suppress(FormatError), open(path) as file:  # raised for another kind of file, such as a torch file
                    self._versions |= {shard.name: os.stat(shard.name) for shard in file.shards}
        except OSError as error:  # the block that needs the file reports it, or makes the file
            self._problem = error

    @property
    def fingerprint(self) -> str:
        """Names, sizes and times. Raises OSError if a file is missing."""
        if self._problem is not None:
            raise self._problem
        return _in_one_line(
            [
                f"{safe(os.path.basename(path))} of {status.st_size} bytes, changed at {status.st_mtime_ns} ns"
                for path, status in self._versions.items()
            ]
        )

    def check_unchanged(self) -> None:
        """Raises OptionError if a file has been changed or replaced, and OSError if it is gone."""
        for path, before in self._versions.items():
            if _version(now := os.stat(path)) != _version(before):
                name = safe(os.path.basename(path))
                raise OptionError(f"input {name} has changed from {_format(before)} to {_format(now)}")


def fingerprint_of(file: File) -> str:
    """Returns the names and sizes of an open file or set, with digests of the bytes before the
    payloads and of a sample of each payload: equal for copies on several machines."""
    return _in_one_line(
        [
            f"{safe(os.path.basename(shard.name))} of {shard.source.size} bytes, content {_content_of(shard)}"
            for shard in file.shards
        ]
    )


def _content_of(file: File) -> str:
    payloads = sorted({(tensor.position, tensor.nbytes) for tensor in file.tensors.values() if tensor.nbytes})
    head = payloads[0][0] if payloads else file.source.size
    middles = ((start + max(nbytes - SAMPLE, 0) // 2, min(nbytes, SAMPLE)) for start, nbytes in payloads)
    return digest(bytes(file.source.read(*span)) for span in [(0, head), *middles])[:DIGITS]


def _in_one_line(texts: Sequence[str]) -> str:
    """Returns the first texts, and a digest of the others."""
    others = texts[SHOWN:]
    return "; ".join(texts[:SHOWN]) + (f" and {len(others)} more, {digest(others)[:DIGITS]}" if others else "")


def _format(status: os.stat_result) -> str:
    times = f"changed at {status.st_mtime_ns} ns, status at {status.st_ctime_ns} ns"
    return f"{status.st_size} bytes, {times}, inode {status.st_ino}"


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _files_in(path: StrPath) -> list[str]:
    name = os.fsdecode(path)
    if not os.path.isdir(name):
        return [name]
    with os.scandir(name) as entries:
        return sorted(entry.path for entry in entries if entry.is_file())


def digest(parts: Iterable[object]) -> str:
    """Returns the SHA-256 of parts: of bytes as they are, and of other objects as text."""
    total = hashlib.sha256()
    for part in parts:
        stored = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogateescape")
        total.update(len(stored).to_bytes(8, "little") + stored)
    return total.hexdigest()
