"""How reading a file ends, and what it takes: each file in a process of its own with little time and memory.

``python -m tests.catalogue.judging READER SECONDS`` reads paths from its input, a line each, and writes what became of each as
a line of JSON. It has imported the reader once; for each file it forks, so that hundreds of files take seconds.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.tools.unmeasured import unmeasured

ROOT = Path(__file__).parents[2]
SECONDS = 5  # of the processor
MEMORY = 64 << 20  # bytes of address space beside what the interpreter has, and
TIMES = 16  # times the file


class Judged(NamedTuple):
    """What became of a file.

    Attributes:
        end: ``read``, or what was raised, or the signal that ended it.
        text: of what was raised.
        seconds: of the processor.
        memory: bytes of address space that it took at most.
        resident: bytes of memory that it took at most.
    """

    end: str
    text: str
    seconds: float
    memory: int
    resident: int


def judged(paths: Iterable[Path], reader: str = "glft_schema", seconds: int = SECONDS) -> list[Judged]:
    """Reads files, each in a process of its own, and returns what became of them. `reader` is one of `READERS`."""
    command = [sys.executable, "-m", "tests.catalogue.judging", reader, str(seconds)]
    lines = "".join(f"{path}\n" for path in paths)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, cwd=ROOT, env=unmeasured(), check=True)
    return [Judged(**json.loads(line)) for line in done.stdout.splitlines()]


def ours() -> Callable[[str], None]:
    """Returns a function that reads a file, all but its payloads."""
    from glft_schema import Container

    def read(path: str) -> None:
        with Container.parse_file(path) as file:
            dict(file.header)
            for key in file.metadata:
                file.metadata[key]
            for tensor in file.tensors.values():
                assert tensor.nbytes <= file.nbytes

    return read


def gguf_py() -> Callable[[str], None]:
    """Returns a function that makes gguf-py's reader of a file, which reads all but payloads."""
    import gguf

    def read(path: str) -> None:
        gguf.GGUFReader(path)

    return read


def endless() -> Callable[[str], None]:
    """Returns a function that never comes back."""

    def read(path: str) -> None:
        while True:
            pass

    return read


def greedy() -> Callable[[str], None]:
    """Returns a function that asks for more memory than there is."""
    return lambda path: print(bytes(MEMORY + TIMES * os.path.getsize(path) + 1)[0])


READERS = {reader.__name__: reader for reader in (gguf_py, endless, greedy)} | {"glft_schema": ours}


def memory() -> dict[str, int]:
    """Returns what Linux says of this process, such as ``VmPeak``, in bytes."""
    lines = (line.split() for line in Path("/proc/self/status").read_text("ascii").splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if words[0].startswith("Vm")}


def judge(read: Callable[[str], None], path: str) -> dict[str, Any]:
    """Reads the file at `path` within the limits, in this process; returns the fields of a `Judged`."""
    before, start = memory(), time.process_time()
    limit = before["VmSize"] + MEMORY + TIMES * os.path.getsize(path)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    end, text = "read", ""
    try:
        read(path)
    except BaseException as error:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))  # to have room to say so
        end, text = type(error).__name__, str(error)
    took, after = time.process_time() - start, memory()
    peaks = {"memory": after["VmPeak"] - before["VmSize"], "resident": after["VmHWM"] - before["VmRSS"]}
    return {"end": end, "text": text, "seconds": took, **peaks}


def forked(read: Callable[[str], None], path: str, seconds: int) -> dict[str, Any]:
    """Judges the file at `path` in a process of its own."""
    said, saying = os.pipe()
    if not (child := os.fork()):
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open(saying, "w", encoding="ascii") as stream:
            stream.write(json.dumps(judge(read, path)))
        os._exit(0)
    os.close(saying)
    with open(said, encoding="ascii") as stream:
        found = stream.read()
    _, status, used = os.wait4(child, 0)
    if found:
        return dict(json.loads(found))
    ended = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
    return {"end": ended, "text": "", "seconds": used.ru_utime + used.ru_stime, "memory": 0, "resident": used.ru_maxrss << 10}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    reader, limit = READERS[sys.argv[1]](), int(sys.argv[2])
    for line in sys.stdin:
        print(json.dumps(forked(reader, line.rstrip("\n"), limit)), flush=True)
