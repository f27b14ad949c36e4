"""Journals of finished units: a text file for each rank, beside the unfinished file.

A line has the start and the end of a unit in bytes, the SHA-256 of its bytes, and the hash of their
source; see `origins`.
"""

from __future__ import annotations

import os
import re
from types import TracebackType

from glft_schema.distributed.units import Unit
from glft_schema.storage.atomic import lock, open_or_create, open_own, partial_path
from glft_schema.storage.source import StrPath

LINE = re.compile(r"([0-9]{1,20}) ([0-9]{1,20}) ([0-9a-f]{64}) ([0-9a-f]{64})")
Line = tuple[int, int, str, str]  # start, end, SHA-256 of the bytes, hash of their source


class Journals:
    """The units that ranks have finished.

    Args:
        path: the file that is written.
        key: as for `atomic_write`.
        rank: whose journal is written.
    """

    def __init__(self, path: StrPath, key: str, rank: int) -> None:
        self._folder, start = os.path.split(partial_path(path, key))
        self._names = re.compile(re.escape(start.removesuffix("part")) + r"[0-9]+\.part")
        self._own = partial_path(path, key, str(rank))
        self._fd = -1

    def __enter__(self) -> Journals:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def read(self) -> list[Line]:
        """Returns the units in all journals. Raises OptionError for a journal that others could
        have written; see `open_own`."""
        found: list[Line] = []
        with os.scandir(self._folder) as entries:
            journals = [entry.path for entry in entries if self._names.fullmatch(entry.name)]
        for journal in sorted(journals):
            with open(open_own(journal, os.O_RDONLY), encoding="ascii", errors="replace") as lines:
                matches = [LINE.fullmatch(line.rstrip("\n")) for line in lines]  # the last one may be incomplete
                found += [(int(match[1]), int(match[2]), match[3], match[4]) for match in matches if match]
        return found

    def add(self, unit: Unit, sha256: str, origin: str) -> None:
        """Adds a unit to this rank's journal, which stays open and locked."""
        if self._fd < 0:
            self._fd = open_or_create(self._own, os.O_APPEND)
            lock(self._fd)
            if os.fstat(self._fd).st_size:
                os.write(self._fd, b"\n")  # ends a line that an earlier run has not finished
        os.write(self._fd, f"{unit.start} {unit.stop} {sha256} {origin}\n".encode())
