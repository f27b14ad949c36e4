"""Runs a program with limits of memory and time, and without network.

    arguments:  JSON with the program's path, sys.path and the limits; then the program's arguments

Started by `families/processes.py` in Python's isolated mode, by this file's path. It imports
nothing outside the standard library, so that the limits apply to all other imports.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import runpy
import signal
import struct
import sys
from contextlib import suppress
from typing import Any

NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2  # of Linux's prctl
ARCHITECTURES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}  # processor: its number, the number of socket()
IO_URING, X32 = 425, 0x40000000  # io_uring_setup(), which also creates sockets; x32 calls
LOAD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # instructions of BPF
ALLOWED, REFUSED = 0x7FFF0000, 0x00050000 | errno.EACCES
LARGEST = (1 << 63) - 2  # the largest limit that all systems can store
LIMITS = {"memory": "RLIMIT_DATA", "seconds": "RLIMIT_CPU", "file": "RLIMIT_FSIZE"}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse_network() -> None:
    """Blocks new sockets with seccomp on x86_64 and aarch64 Linux; does nothing elsewhere."""
    known = ARCHITECTURES.get(os.uname().machine) if sys.platform == "linux" and sys.maxsize > 1 << 32 else None
    if known is None:
        return
    architecture, socket = known
    instructions = (  # operation, instructions to skip if true, if false, operand
        (LOAD, 0, 0, 4),
        (JUMP_IF_EQUAL, 0, 5, architecture),
        (LOAD, 0, 0, 0),
        (JUMP_IF_AT_LEAST, 3, 0, X32),
        (JUMP_IF_EQUAL, 2, 0, socket),
        (JUMP_IF_EQUAL, 1, 0, IO_URING),
        (RETURN, 0, 0, ALLOWED),
        (RETURN, 0, 0, REFUSED),
    )
    program = _Program(len(instructions), b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions))
    prctl = ctypes.CDLL(None).prctl
    prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    prctl(SECCOMP, FILTER, ctypes.byref(program), 0, 0)


def limit(name: str, most: int) -> None:
    """Lowers a limit of this process, if the system has it."""
    kind = getattr(resource, name)
    hard = resource.getrlimit(kind)[1]
    most = min(most, LARGEST if hard == resource.RLIM_INFINITY else max(hard - 1, 0))
    with suppress(OSError, ValueError):  # macOS refuses some
        resource.setrlimit(kind, (most, most + 1))  # a process at the hard limit of seconds is killed without a name for it


def main(settings: dict[str, Any], arguments: list[str]) -> None:
    """Runs the program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
    refuse_network()
    for name, kind in LIMITS.items():
        if settings[name] is not None:
            limit(kind, settings[name])
    sys.path[:] = settings["path"]
    sys.argv = [settings["program"], *arguments]
    runpy.run_path(settings["program"], run_name="__main__")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
