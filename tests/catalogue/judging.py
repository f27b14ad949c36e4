"""The result, time and memory of reading a file in its own process, with limits on both.

``python -m tests.catalogue.judging READER SECONDS`` reads a path from each line of its input and
writes the result as a line of JSON. It imports the reader once and forks for each file: hundreds of
files take seconds.
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
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from tests.tools.unmeasured import unmeasured

ROOT = Path(__file__).parents[2]
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
        resident: peak resident memory in bytes.
    """

    end: str
    text: str
    seconds: float
    memory: int
    resident: int


def judged(paths: Iterable[Path], reader: str = "glft_schema", seconds: int = SECONDS) -> list[Judged]:
    """Reads each file in its own process with one of `READERS`."""
    command = [sys.executable, "-m", "tests.catalogue.judging", reader, str(seconds)]
    lines = "".join(f"{path}\n" for path in paths)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, cwd=ROOT, env=unmeasured(), check=True)
    return [Judged(**json.loads(line)) for line in done.stdout.splitlines()]


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
PACKAGES = {"gguf_py": "gguf"}  # imported before forking; glft_schema for all others


def memory() -> dict[str, int]:
    """Returns the ``Vm`` figures of this process, such as ``VmPeak``, in bytes."""
    lines = (line.split() for line in Path("/proc/self/status").read_text("ascii").splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if words[0].startswith("Vm")}


def judge(read: Callable[[str], None], path: str) -> dict[str, Any]:
    """Reads a file within the limits in this process; returns the fields of a `Judged`."""
    before, start = memory(), time.process_time()
    limit = before["VmSize"] + MEMORY + TIMES * os.path.getsize(path)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    end, text = "read", ""
    try:
        read(path)
    except BaseException as error:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))  # room for the report
        end, text = type(error).__name__, str(error)
    took, after = time.process_time() - start, memory()
    peaks = {"memory": after["VmPeak"] - before["VmSize"], "resident": after["VmHWM"] - before["VmRSS"]}
    return {"end": end, "text": text, "seconds": took, **peaks}


def forked(read: Callable[[str], None], path: str, seconds: int) -> dict[str, Any]:
    """Judges a file in a fork."""
    source, target = os.pipe()
    if not (child := os.fork()):
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open(target, "w", encoding="ascii") as stream:
            stream.write(json.dumps(judge(read, path)))
        os._exit(0)
    os.close(target)
    with open(source, encoding="ascii") as stream:
        result = stream.read()
    _, status, used = os.wait4(child, 0)
    if result:
        return dict(json.loads(result))
    ended = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
    return {"end": ended, "text": "", "seconds": used.ru_utime + used.ru_stime, "memory": 0, "resident": used.ru_maxrss << 10}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    reader, limit = READERS[sys.argv[1]], int(sys.argv[2])
    import_module(PACKAGES.get(sys.argv[1], "glft_schema"))
    for line in sys.stdin:
        print(json.dumps(forked(reader, line.rstrip("\n"), limit)), flush=True)
