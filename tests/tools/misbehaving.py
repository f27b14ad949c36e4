"""Functions for `glft_schema.families.apart` that fail, or tell about their process."""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path
from typing import Any

from glft_schema.errors import FormatError, OptionError, TensorError
from glft_schema.limits import current
from tests.tools.posix import resource

SURROUNDINGS = ("variables", "files", "isolated", "limit")


def surroundings(folder: Path) -> dict[str, Any]:
    """Returns what a function finds around it."""
    variables, limit = dict(os.environ), resource.getrlimit(resource.RLIMIT_DATA)[0]
    found = (variables, os.listdir(), [sys.flags.isolated, "" in sys.path], [limit, current().objects])
    return dict(zip(SURROUNDINGS, found, strict=True))


def echo(folder: Path, value: Any) -> Any:
    """Returns a value, and prints it."""
    print(value.__repr__().encode("utf-8", "replace"), file=sys.stdout)
    return value


def fail(folder: Path, name: str) -> None:
    """Raises an error about a file of the folder."""
    file = str(folder / "a.json")
    raise {
        "format": FormatError("expected 1, found 2", "a -> b", file=file, key="k"),
        "tensor": TensorError("expected 1", "t"),
        "option": OptionError("expected 2"),
        "system": OSError(errno.ENOENT, "no such file", file),
    }[name]


def allocate(folder: Path) -> None:
    """Takes all memory."""
    found = []
    while True:
        found.append(bytearray(1 << 24))


def say(folder: Path, text: str, number: int) -> None:
    """Writes to stderr, and ends the process by a signal, or with a code if it is negative."""
    os.write(2, text.encode())
    if number < 0:
        os._exit(-number)
    os.kill(os.getpid(), number)


def wait(folder: Path, seconds: float) -> str:
    """Takes wall time, but no processor time."""
    time.sleep(seconds)
    return "waited"


def spin(folder: Path) -> None:
    """Does not return."""
    while True:
        pass
