"""A process that writes files in forks, which a test may kill or make fail.

As a script it reads a job in JSON from each line of its input and answers with lines. One run of
strace can make any call fail: strace fails call number `LAST` of each kind in each process. To fail
the n-th call of the writing, a fork first makes ``LAST - n`` calls without effect.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.tools.posix import fcntl

LAST = 300
NOWHERE = 1 << 20  # a descriptor that is not open
WITHOUT_EFFECT: dict[str, Callable[[], object]] = {
    "openat": lambda: os.open("", os.O_RDONLY),
    "%%stat": lambda: os.stat(""),
    "flock": lambda: fcntl.flock(NOWHERE, fcntl.LOCK_UN),
    "fcntl": lambda: fcntl.fcntl(NOWHERE, fcntl.F_GETFD),
    "fchmod": lambda: os.fchmod(NOWHERE, 0),
    "pwrite64": lambda: os.pwrite(NOWHERE, b"", 0),
    "fsync": lambda: os.fsync(NOWHERE),
    "close": lambda: os.close(NOWHERE),
    "rename": lambda: os.rename("", ""),
    "unlink": lambda: os.unlink(""),
}


def container(letter: int, large: int = 1 << 20) -> dict[str, Any]:
    """Returns the value of a file with four payloads, two of them larger than the buffer."""
    sizes = {"a": 10, "b": large, "c": 3, "d": large}
    rows = [{"name": name, "dims": [size], "dtype": 0} for name, size in sizes.items()]
    return {"metadata": {"k": "v"}, "descriptors": rows, "data": {n: bytes([letter]) * 4 * s for n, s in sizes.items()}}


class Writers:
    """The process, for a test."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.tools.forked_writers"]
        variables = {name: text for name, text in os.environ.items() if not name.startswith("COVERAGE_")}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables)
        assert self.answer() == "ready"

    def begin(self, path: os.PathLike[str], **job: object) -> None:
        """Starts a job in a fork."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"path": os.fspath(path), **job}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def write(self, path: os.PathLike[str], call: str = "", number: int = 0) -> dict[str, Any]:
        """Writes ``container(2)`` in a fork, in which strace can fail call `number` of a kind."""
        self.begin(path, call=call, number=number)
        return dict(self.answer())

    def end(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            stream.close()
        assert self.process.wait() == 0


def _again_and_again(path: str) -> None:
    from glft_schema import Container

    files = [container(1), container(2)]
    end = time.monotonic() + 10  # if no test kills it
    while time.monotonic() < end:
        for file in files:
            Container.build_file(file, path)


def _once(job: Mapping[str, Any], out: socket.socket) -> None:
    from glft_schema import Container

    for _ in range(LAST - job["number"] if job["call"] else 0):
        with suppress(OSError):
            WITHOUT_EFFECT[job["call"]]()
    answer: dict[str, Any] = {"before": _descriptors()}
    try:
        Container.build_file(container(2), job["path"])
    except OSError as error:
        answer |= {"errno": error.errno, "filename": error.filename, "text": str(error)}
    answer["after"] = _descriptors()
    out.send(json.dumps(answer).encode())


def _descriptors() -> list[int]:
    """Returns the open descriptors, without opening one."""
    found = []
    for fd in range(100):
        try:
            os.lseek(fd, 0, os.SEEK_CUR)
        except OSError as error:
            if error.errno == errno.EBADF:
                continue
        found.append(fd)
    return found


def _answer(line: str) -> None:
    os.writev(sys.stdout.fileno(), [f"{line}\n".encode()])  # strace fails call number LAST of write


def main() -> None:
    from glft_schema import Container

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        Container.build_file(container(1), Path(folder, "m.glft"))  # imports and compiles everything
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1))  # PR_SET_PTRACER: any process may attach
    mine, theirs = socket.socketpair()
    _answer(json.dumps("ready"))
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if not child:
            _once(job, theirs) if "call" in job else _again_and_again(job["path"])
            os._exit(0)
        if "call" not in job:
            _answer(json.dumps(child))
        os.waitpid(child, 0)
        _answer(json.dumps("ended") if "call" not in job else mine.recv(1 << 16).decode())


if __name__ == "__main__":
    main()
