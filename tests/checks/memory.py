"""Peak memory of a piece of code, measured in a fork: the peak of a new interpreter is at least its
parent's.
"""

from __future__ import annotations

from pathlib import Path

from tests.tools import forked

MEASURED = """
import resource, sys
from glft_schema import Container, check_values
from glft_schema.checks import hash_file
file = Container.parse_file(sys.argv[1], mmap=False)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print({expression}, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, sep="\\n")
"""


def sparse_file(path: Path, start: bytes, nbytes: int) -> Path:
    """Writes `start` and a hole of `nbytes`."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(len(start) + nbytes)
    return path


def result_and_growth(expression: str, path: Path) -> tuple[str, int]:
    """Returns the printed value of an expression of `file`, the opened path, and KiB of growth."""
    done = forked.run("-c", MEASURED.format(expression=expression), path)
    result, grown = done.stdout.splitlines()
    return result, int(grown)
