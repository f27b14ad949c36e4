"""The result, time and memory of reading a file in its own process, with limits on both.

``python -m tests.catalogue.judging READER SECONDS`` imports the reader once and forks for each
file: hundreds of files take seconds.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from tests.tools.posix import resource
from tests.tools.processes import Process, serve

SECONDS = 5  # of processor time
MEMORY = 64 << 20  # bytes of address space beyond the interpreter's, plus
TIMES = 16  # times the file's size


class Judged(NamedTuple):
    """The result of reading a file.

    Attributes:
        end: ``read``, the name of the exception, or the signal that ended the process.
        text: the text of the exception.
        seconds: processor time.
        memory: peak address space in bytes.
    """

    end: str
    text: str = ""
    seconds: float = 0
    memory: int = 0


def judged(paths: Iterable[Path], reader: str = "glft_schema", seconds: int = SECONDS) -> list[Judged]:
    """Reads each file in its own process with one of `READERS`."""
    with closing(Process("-m", "tests.catalogue.judging", reader, str(seconds))) as process:
        return [Judged(*process(str(path))) for path in paths]


def ours(path: str) -> None:
    """Reads a file without its payloads."""
    from glft_schema import Container

    with Container.parse_file(path) as file:
        dict(file.header)
        for key in file.metadata:
            file.metadata[key]
        for tensor in file.tensors.values():
            assert tensor.nbytes <= file.nbytes


def gguf_py(path: str) -> None:
    """Reads a file without its payloads."""
    import gguf

    gguf.GGUFReader(path)


def endless(path: str) -> None:
    while True:
        pass


def greedy(path: str) -> None:
    bytearray(MEMORY + TIMES * os.path.getsize(path) + (1 << 20))  # Python may free as much before


READERS = {"glft_schema": ours, "gguf_py": gguf_py, "endless": endless, "greedy": greedy}


def memory(figure: str) -> int:
    """Returns a figure of this process in bytes, ``VmSize`` or ``VmPeak``."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(figure))


def judge(read: Callable[[str], None], path: str) -> tuple[str, str, float, int]:
    """Reads a file within the limits in this process; returns the fields of a `Judged`."""
    before, start = memory("VmSize"), time.process_time()
    resource.setrlimit(resource.RLIMIT_AS, (before + MEMORY + TIMES * os.path.getsize(path), resource.RLIM_INFINITY))
    end, text = "read", ""
    try:
        read(path)
    except BaseException as error:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))  # room for the report
        end, text = type(error).__name__, str(error)
    took = time.process_time() - start
    return end, text, took, memory("VmPeak") - before


def in_a_fork(path: str) -> tuple[object, ...]:
    """Judges a file in a fork, by the reader and within the seconds of the command line."""
    (source, target), seconds = os.pipe(), int(sys.argv[2])
    if not (child := os.fork()):
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.write(target, pickle.dumps(judge(READERS[sys.argv[1]], path)))
        os._exit(0)
    os.close(target)
    with open(source, "rb") as stream:
        result = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return pickle.loads(result) if result else (signal.Signals(-code).name if code < 0 else f"exit code {code}",)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    import_module("gguf" if sys.argv[1] == "gguf_py" else "glft_schema")
    serve(in_a_fork)
