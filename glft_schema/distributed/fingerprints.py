"""Fingerprints of files and plans, which all ranks compare, and versions of this rank's inputs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from functools import partial
from typing import NamedTuple

from glft_schema.errors import FormatError, OptionError, safe
from glft_schema.files.container import open
from glft_schema.files.file import File
from glft_schema.storage.file_source import open_source
from glft_schema.storage.source import StrPath

SHOWN = 3  # files in a text
DIGITS = 16  # hexadecimal digits of a digest
SAMPLE = 256  # bytes of each payload
WHOLE = 1 << 26  # bytes: a file without known payloads up to this size is hashed whole
SAMPLES = 4096  # samples of a larger file
READ = 1 << 22  # bytes to hash at once


class FileFingerprint(NamedTuple):
    """Properties of a file that are equal on all machines.

    Attributes:
        name: without its folder.
        size: in bytes.
        time: modification time in ns, or 0 to make copies equal.
        content: digest of the bytes before the first payload and of a sample of each payload; of a
            file without known payloads, of all bytes, or of samples if it is large.
    """

    name: str
    size: int
    time: int
    content: str

    def __str__(self) -> str:
        return (
            f"{safe(self.name)} of {self.size} bytes, {f'changed at {self.time} ns, ' * bool(self.time)}content {self.content}"
        )


class Fingerprint(NamedTuple):
    """Identifies files without reading all of their bytes."""

    entries: tuple[FileFingerprint, ...]

    @classmethod
    def of_file(cls, file: File) -> Fingerprint:
        """Returns the fingerprint of an open file, or of all files of a set, without times."""
        shards = file.shards
        return cls(
            tuple(FileFingerprint(os.path.basename(each.name), each.source.size, 0, _content_of(each)) for each in shards)
        )

    def __str__(self) -> str:
        """The first files, and a digest of the others."""
        texts, others = [str(entry) for entry in self.entries[:SHOWN]], self.entries[SHOWN:]
        return "; ".join(texts) + (f" and {len(others)} more, {digest(others)[:DIGITS]}" if others else "")


class Inputs:
    """The input files of a run: their fingerprint, and their versions on this rank at the start.

    Device, inode and times differ between machines. So ranks compare fingerprints, and each rank
    checks its own versions for changes.

    Args:
        paths: files and folders. A file that opens a set stands for the whole set.
    """

    def __init__(self, paths: Iterable[StrPath]) -> None:
        self._versions: dict[str, os.stat_result] = {}
        self._problem: OSError | None = None
        entries: dict[str, FileFingerprint] = {}
        try:
            for name in (name for path in paths for name in _files_in(path)):
                self._add(name, entries)
        except OSError as error:  # the block that needs the file reports it, or makes the file
            self._problem = error
        self._fingerprint = Fingerprint(tuple(entries.values()))

    @property
    def fingerprint(self) -> Fingerprint:
        """Names, sizes, times and contents. Raises OSError if a file is missing."""
        if self._problem is not None:
            raise self._problem
        return self._fingerprint

    def check_unchanged(self) -> None:
        """Raises OptionError if a file has been changed or replaced, and OSError if it is gone."""
        for path, before in self._versions.items():
            if _version(now := os.stat(path)) != _version(before):
                name = safe(os.path.basename(path))
                raise OptionError(f"input {name} has changed from {_format(before)} to {_format(now)}")

    def _add(self, name: str, entries: dict[str, FileFingerprint]) -> None:
        """Adds a file, and all files of the set that it opens."""
        if name in entries:
            return
        with suppress(FormatError), open(name) as file:  # raised for another kind of file, such as a torch file
            for shard in file.shards:
                self._note(shard.name, partial(_content_of, shard), entries)
        if name not in entries:  # also the index of a set
            with closing(open_source(name, mmap=False)) as source:
                self._note(name, lambda: sha256_of(source.read, _samples(source.size))[:DIGITS], entries)

    def _note(self, path: str, content: Callable[[], str], entries: dict[str, FileFingerprint]) -> None:
        self._versions[path] = status = os.stat(path)
        entries[path] = FileFingerprint(os.path.basename(path), status.st_size, status.st_mtime_ns, content())


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


def _content_of(file: File) -> str:
    """Returns the digest of a file of a known format."""
    payloads = sorted({(tensor.position, tensor.nbytes) for tensor in file.tensors.values() if tensor.nbytes})
    head = payloads[0][0] if payloads else file.source.size
    middles = ((start + max(nbytes - SAMPLE, 0) // 2, min(nbytes, SAMPLE)) for start, nbytes in payloads)
    return sha256_of(file.source.read, [(0, head), *middles])[:DIGITS]


def _samples(size: int) -> list[tuple[int, int]]:
    """Returns first byte and size of each sample of a file without known payloads."""
    return [(0, size)] if size <= WHOLE else [((size - SAMPLE) * i // (SAMPLES - 1), SAMPLE) for i in range(SAMPLES)]


def sha256_of(read: Callable[[int, int], bytes | memoryview], spans: Iterable[tuple[int, int]]) -> str:
    """Returns the SHA-256 of spans, each a first byte and a size, in hex."""
    total = hashlib.sha256()
    for start, nbytes in spans:
        for at in range(start, start + nbytes, READ):
            total.update(read(at, min(READ, start + nbytes - at)))
    return total.hexdigest()


def digest(parts: Iterable[object]) -> str:
    """Returns the SHA-256 of parts: of bytes as they are, and of other objects as text."""
    total = hashlib.sha256()
    for part in parts:
        stored = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogateescape")
        total.update(len(stored).to_bytes(8, "little") + stored)
    return total.hexdigest()
