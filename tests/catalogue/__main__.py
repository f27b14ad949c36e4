"""All files of the catalogues; as a program, reads them and reports unexpected and slow ones.

    python -m tests.catalogue [READER [SCALE]]

READER is ``glft_schema`` or ``gguf_py``; the latter gets only GGUF files. SCALE multiplies the size
of the large files.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.catalogue import gguf_cases, glft_cases
from tests.catalogue.gguf_cases import COUNTS, sized
from tests.catalogue.judging import Judged, judged

CATALOGUES = {"GLFT": glft_cases, "GGUF": gguf_cases}
REFUSED = {f"{format}, {name}": case for format, cases in CATALOGUES.items() for name, case in cases.REFUSED.items()}
READ = {f"{format}, {name}": case for format, cases in CATALOGUES.items() for name, case in cases.READ.items()}
LARGE = {f"{format}, {name}": case for format, cases in CATALOGUES.items() for name, case in cases.LARGE.items()}
HUGE = [(field, number, 3) for field in COUNTS for number in (2**32 - 1, 2**60, 2**64 - 1)]
HUGE += [(field, 2**32 - 1, 1) for field in COUNTS]


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
    end: str = "read"
    message: str = ""


def entries(scale: float = 1) -> Iterator[Entry]:
    """Yields every file, small files first."""
    yield from (Entry(name, case.stored, case.error.__name__, case.message) for name, case in REFUSED.items())
    yield from (Entry(name, case.stored) for name, case in READ.items())
    for huge in HUGE:
        yield Entry(f"GGUF, {huge}", sized(*huge), "TruncatedError")
    for name, case in LARGE.items():
        end = case.error.__name__ if case.error else "read"
        yield Entry(name, case.make(int(case.size * scale)), end, case.message)


def results(reader: str = "glft_schema", scale: float = 1) -> Iterator[tuple[Entry, Judged]]:
    """Yields each file without its bytes, and a reader's result."""
    with tempfile.TemporaryDirectory() as folder:
        made = {}
        for entry in entries(scale):
            if reader != "gguf_py" or entry.name.startswith("GGUF"):
                path = Path(folder, str(len(made)))
                path.write_bytes(entry.stored)
                made[path] = entry._replace(stored=b"")
        yield from zip(made.values(), judged(made, reader), strict=True)


def report(reader: str = "glft_schema", scale: str = "1") -> None:
    """Prints each slow or unexpected file, and totals."""
    ends, seconds, memory = Counter[str](), 0.0, 0
    for entry, found in results(reader, float(scale)):
        ends[f"{entry.end} -> {found.end}"] += 1
        seconds, memory = max(seconds, found.seconds), max(memory, found.memory)
        if found.seconds > 1 or (reader == "glft_schema" and not (found.end == entry.end and entry.message in found.text)):
            print(f"{entry.name}: {entry.end} -> {found.end}, {found.seconds:.2f} s, {found.memory >> 20} MiB")
    print(*sorted(ends.items()), f"at most {seconds:.2f} s and {memory >> 20} MiB", sep="\n")


if __name__ == "__main__":
    report(*sys.argv[1:])
