"""Reads all files of the catalogues and reports time and memory.

    python -m tests.catalogue [READER [SCALE]]

READER is ``glft_schema`` or ``gguf_py``; the latter gets only GGUF files. SCALE multiplies the size
of the large files.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.catalogue import gguf_cases, glft_cases
from tests.catalogue.gguf_cases import COUNTS, sized
from tests.catalogue.judging import MEMORY, TIMES, judged

CATALOGUES = {"GLFT": glft_cases, "GGUF": gguf_cases}
REFUSED = {f"{format}, {name}": case for format, cases in CATALOGUES.items() for name, case in cases.REFUSED.items()}
READ = {f"{format}, {name}": case for format, cases in CATALOGUES.items() for name, case in cases.READ.items()}
LARGE = {f"{format}, {name}": case for format, cases in CATALOGUES.items() for name, case in cases.LARGE.items()}
HUGE = [(field, number, 3) for field in COUNTS for number in (2**32 - 1, 2**60, 2**64 - 1)]
HUGE += [(field, 2**32 - 1, 1) for field in COUNTS]
IS_READ = "read"


class Entry(NamedTuple):
    """A file of the catalogues.

    Attributes:
        name: the format and the name of the case.
        stored: the file.
        end: ``read``, or the name of the error's class.
        message: a part of the error text.
    """

    name: str
    stored: bytes
    end: str
    message: str = ""


def entries(scale: float = 1) -> Iterator[Entry]:
    """Yields every file, small files first."""
    yield from (Entry(name, case.stored, case.error.__name__, case.message) for name, case in REFUSED.items())
    yield from (Entry(name, case.stored, IS_READ) for name, case in READ.items())
    for field, number, version in HUGE:
        yield Entry(f"GGUF, {field} of {number} in version {version}", sized(field, number, version), COUNTS[field][1].__name__)
    for name, case in LARGE.items():
        end = case.error.__name__ if case.error else IS_READ
        yield Entry(f"{name}, {int(case.size * scale)}", case.make(int(case.size * scale)), end, case.message)


def written(folder: Path, made: Iterable[Entry]) -> dict[Path, Entry]:
    """Writes files to a folder; returns entries by path, without their bytes."""
    paths = {}
    for i, entry in enumerate(made):
        path = folder / str(i)
        path.write_bytes(entry.stored)
        paths[path] = entry._replace(stored=b"")
    return paths


def report(reader: str = "glft_schema", scale: str = "1") -> None:
    """Prints the result of each large, slow or unexpected file, and totals."""
    ends, most = Counter[str](), dict.fromkeys(("seconds", "memory", "resident"), (0.0, ""))
    with tempfile.TemporaryDirectory() as folder:
        made = (entry for entry in entries(float(scale)) if reader != "gguf_py" or entry.name.startswith("GGUF"))
        paths = written(Path(folder), made)
        for (path, entry), found in zip(paths.items(), judged(paths, reader), strict=True):
            ends[f"{entry.end} -> {found.end}"] += 1
            for what in most:
                most[what] = max(most[what], (getattr(found, what), entry.name))
            size, as_said = path.stat().st_size, found.end == entry.end and entry.message in found.text
            if size > 1 << 17 or found.seconds > 1 or (reader == "glft_schema" and not as_said):
                took = f"{found.seconds:.2f} s, {found.memory >> 20} MiB of {(MEMORY + TIMES * size) >> 20}"
                print(f"{entry.name}, {size:,} bytes: {entry.end} -> {found.end}, {took}, {found.resident >> 20} resident")
    for end, count in sorted(ends.items()):
        print(f"{count:5} {end}")
    for what, (figure, name) in most.items():
        print(f"most {what}: {figure:,.2f} ({name})")


if __name__ == "__main__":
    report(*sys.argv[1:])
