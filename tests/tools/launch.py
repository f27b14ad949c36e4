"""`python -m glft_schema.distributed` in several processes, as a launcher starts them."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.tools.forked import Forked

TIMEOUT = 30  # seconds without progress, after which ranks give up
LONGEST = 90  # seconds until a test gives up

# A rank is killed, once, before it writes one piece more than given. A kill from outside could come
# after the end of the job.
KILLED = """
import os, runpy, signal
from glft_schema.distributed import writing

rank, pieces = map(int, os.environ["KILLED"].split())
write, left = writing._write_at, iter(range(pieces))

def write_or_end(*piece):
    if next(left, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(*piece)

if int(os.environ["RANK"]) == rank and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
    writing._write_at = write_or_end
runpy.run_module("glft_schema.distributed", run_name="__main__", alter_sys=True)
"""


class Ended(NamedTuple):
    """A process that has ended."""

    code: int
    out: str
    error: str


def run(
    ranks: int,
    arguments: Sequence[object],
    *,
    of_rank: Mapping[int, Sequence[object]] = {},
    environment: Mapping[int, Mapping[str, str]] = {},
    most_bytes: Mapping[int, int] = {},
    module: str = "glft_schema.distributed",
    folder: Path | None = None,
) -> list[Ended]:
    """Starts all ranks, which find each other by the environment, and waits for them.

    Args:
        ranks: the number of processes.
        arguments: of the command line.
        of_rank: arguments of some ranks instead.
        environment: variables of some ranks.
        most_bytes: size of files above which writes of some ranks fail.
        module: as `Forked`; a program gets no timeout.
        folder: the working directory.

    Raises:
        subprocess.TimeoutExpired: if a rank hangs.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(ranks)}
    processes = []
    for rank in range(ranks):
        own = [*([] if module == "-c" else ["--timeout", TIMEOUT]), *of_rank.get(rank, arguments)]
        variables = {**group, "RANK": str(rank), "OMP_NUM_THREADS": "1", **environment.get(rank, {})}
        processes.append(Forked(module, *own, environment=variables, most_bytes=most_bytes.get(rank), folder=folder))
    try:
        outputs = [process.communicate(LONGEST) for process in processes]
        return [Ended(process.returncode or 0, *output) for process, output in zip(processes, outputs, strict=True)]
    finally:
        for process in processes:
            process.kill()


def left_in(folder: Path) -> set[str]:
    """Returns the names of temporary files."""
    return {path.name for path in folder.iterdir() if path.name.startswith(".")}
