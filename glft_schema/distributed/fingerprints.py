"""Fingerprints of files and plans, which all ranks compare."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import NamedTuple

from glft_schema.errors import FormatError, safe
from glft_schema.files.container import open
from glft_schema.files.file import File
from glft_schema.storage.source import StrPath

SHOWN = 3  # files in a text


class Fingerprint(NamedTuple):
    """Files, told from others without reading their payloads.

    Attributes:
        entries: name, size and time of change of each file; the time is 0 if copies are equal.
    """

    entries: tuple[tuple[str, int, int], ...]

    @classmethod
    def of_file(cls, file: File, *, times: bool = True) -> Fingerprint:
        """Returns the fingerprint of an open file, or of all files of a set."""
        return cls._of((shard.name for shard in file.shards), times)

    @classmethod
    def of_inputs(cls, paths: Iterable[StrPath]) -> Fingerprint:
        """Returns the fingerprint of files, of the sets that they belong to, and of the files in
        folders.

        Raises:
            OSError: if one is missing.
        """
        return cls._of((name for path in paths for name in _files_of(path)), times=True)

    @classmethod
    def _of(cls, paths: Iterable[str], times: bool) -> Fingerprint:
        found = [(os.path.basename(path), os.stat(path)) for path in paths]
        return cls(tuple((name, status.st_size, status.st_mtime_ns * times) for name, status in found))

    def __str__(self) -> str:
        texts = [f"{safe(name)} of {size} bytes" + f", changed at {time} ns" * bool(time) for name, size, time in self.entries]
        return "; ".join(texts[:SHOWN]) + f" and {len(texts) - SHOWN} more" * (len(texts) > SHOWN)


def _files_of(path: StrPath) -> list[str]:
    name = os.fsdecode(path)
    if os.path.isdir(name):
        with os.scandir(name) as entries:
            return sorted(entry.path for entry in entries if entry.is_file())
    try:
        with open(name) as file:
            return [name, *(shard.name for shard in file.shards if shard.name != name)]
    except FormatError:  # another kind of file, such as a torch file
        return [name]


def digest(parts: Iterable[object]) -> str:
    """Returns the SHA-256 of parts: of bytes, or of the texts of others."""
    total = hashlib.sha256()
    for part in parts:
        stored = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogateescape")
        total.update(len(stored).to_bytes(8, "little") + stored)
    return total.hexdigest()
