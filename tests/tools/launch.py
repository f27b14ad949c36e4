"""`python -m glft_schema.distributed` in several processes, as a launcher starts them."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

TIMEOUT = 30  # seconds without progress, after which ranks give up
LONGEST = 90  # seconds until a test gives up


class Ended(NamedTuple):
    """A process that has ended."""

    code: int
    out: str
    error: str


def start(
    ranks: int,
    arguments: Sequence[object],
    *,
    of_rank: Mapping[int, Sequence[object]] | None = None,
    environment: Mapping[int, Mapping[str, str]] | None = None,
    most_bytes: Mapping[int, int] | None = None,
    timeout: int = TIMEOUT,
) -> list[subprocess.Popen[str]]:
    """Starts all ranks, which find each other by the environment.

    Args:
        ranks: the number of processes.
        arguments: of the command line.
        of_rank: arguments of some ranks instead.
        environment: variables of some ranks.
        most_bytes: size of files above which writes of some ranks fail.
        timeout: of the command line.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(ranks):
        own = (of_rank or {}).get(rank, arguments)
        command = [sys.executable, "-m", "glft_schema.distributed", "--timeout", str(timeout), *map(str, own)]
        settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(ranks)}
        most = (most_bytes or {}).get(rank)
        limit = (lambda most=most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))) if most else None
        variables = {**os.environ, **settings, "OMP_NUM_THREADS": "1", **(environment or {}).get(rank, {})}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, env=variables, preexec_fn=limit, **pipes))
    return processes


def ended(processes: Sequence[subprocess.Popen[str]]) -> list[Ended]:
    """Waits for all ranks. Raises subprocess.TimeoutExpired if one hangs."""
    try:
        found = [(process, *process.communicate(timeout=LONGEST)) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [Ended(process.returncode, out, error) for process, out, error in found]


def run(ranks: int, arguments: Sequence[object], **more: object) -> list[Ended]:
    """Starts all ranks and waits for them; see `start`."""
    return ended(start(ranks, arguments, **more))  # type: ignore[arg-type]


def left_in(folder: Path) -> set[str]:
    """Returns the names of temporary files."""
    return {path.name for path in folder.iterdir() if path.name.startswith(".")}
