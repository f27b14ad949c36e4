"""A process of its own that writes files as it is told, each in a fork: what is killed or fails there fails nowhere else.

Run as a script it takes a job in JSON on each line of its input, and answers with lines. So that one run of strace can make any
call fail, it makes the call number `LAST` of each kind fail in each process: a fork makes ``LAST - n`` calls that do nothing
before it writes, and the n-th of the writing fails.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

LAST = 300
NOWHERE = 1 << 20  # a descriptor that nothing has
WITHOUT_EFFECT: dict[str, Callable[[], object]] = {
    "openat": lambda: os.open("", os.O_RDONLY),
    "%%stat": lambda: os.stat(""),
    "flock": lambda: fcntl.flock(NOWHERE, fcntl.LOCK_UN),
    "fcntl": lambda: fcntl.fcntl(NOWHERE, fcntl.F_GETFD),
    "fchmod": lambda: os.fchmod(NOWHERE, 0),
    "write": lambda: os.write(NOWHERE, b""),
    "fsync": lambda: os.fsync(NOWHERE),
    "close": lambda: os.close(NOWHERE),
    "rename": lambda: os.rename("", ""),
    "unlink": lambda: os.unlink(""),
}


def container(letter: int, large: int = 1 << 20) -> dict[str, Any]:
    """Returns what a file of four payloads is made of, two of them larger than what is buffered."""
    sizes = {"a": 10, "b": large, "c": 3, "d": large}
    rows = [{"name": name, "dims": [size], "dtype": 0} for name, size in sizes.items()]
    return {"metadata": {"k": "v"}, "descriptors": rows, "data": {n: bytes([letter]) * 4 * s for n, s in sizes.items()}}


class Writers:
    """The process, as a test has it."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.tools.forked_writers"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.answer() == "ready"

    def begin(self, path: os.PathLike[str], **job: object) -> None:
        """Lets a fork do a job."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"path": os.fspath(path), **job}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Waits for the next answer."""
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def write(self, path: os.PathLike[str], call: str = "", number: int = 0) -> dict[str, Any]:
        """Lets a fork write ``container(2)`` to `path`; of `call`, the one that is to be its `number`-th is number `LAST`."""
        self.begin(path, call=call, number=number)
        answer = self.answer()
        assert isinstance(answer, dict)
        return answer

    def end(self) -> None:
        """Ends it."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            stream.close()
        assert self.process.wait() == 0


def _again_and_again(path: str) -> None:
    from glft_schema import Container

    files = [container(1), container(2)]
    end = time.monotonic() + 10  # should nobody kill it
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
    """Returns what is open, found without opening anything."""
    found = []
    for fd in range(100):
        try:
            os.lseek(fd, 0, os.SEEK_CUR)
        except OSError as error:
            if error.errno == errno.EBADF:
                continue
        found.append(fd)
    return found


def main() -> None:
    """Does the jobs."""
    from glft_schema import Container

    warnings.simplefilter("ignore")
    Container.build(container(1))  # so that all is imported
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1))  # lets strace attach although it is no parent
    mine, theirs = socket.socketpair()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if not child:
            if "call" in job:
                _once(job, theirs)
            else:
                _again_and_again(job["path"])
            os._exit(0)
        if "call" not in job:
            print(json.dumps(child), flush=True)
        os.waitpid(child, 0)
        print(json.dumps("ended") if "call" not in job else mine.recv(1 << 16).decode(), flush=True)


if __name__ == "__main__":
    main()
