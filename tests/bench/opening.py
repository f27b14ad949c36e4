"""Opening a file: header, metadata and tensor infos, without payloads."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import gguf

from glft_schema import Container
from tests.bench import files
from tests.bench.measure import Row, in_turn, once, processor_time_of_children
from tests.oracles import llama_cpp


def by_c(path: Path) -> None:
    """Opens a file by llama.cpp without allocating tensors."""
    c = llama_cpp.library()
    c.gguf_init_from_file.restype = ctypes.c_void_p
    opened = ctypes.c_void_p(c.gguf_init_from_file(str(path).encode(), llama_cpp.GgufInitParams(True, None)))
    assert opened
    c.gguf_free(opened)


def opened(what: str, path: Path, at_most_c: float | None, at_most_gguf_py: float) -> Iterator[Row]:
    times = in_turn({"ours": lambda: Container.parse_file(path).close(), "C": lambda: by_c(path)}, 10)
    yield Row(what, times["ours"], "llama.cpp's C", times["C"], "s", at_most=at_most_c)
    yield Row(what, times["ours"], "gguf-py", once(lambda: gguf.GGUFReader(path)), "s", at_most=at_most_gguf_py)


def processes(folder: Path) -> Iterator[Row]:
    small = files.many_tensors(folder, 1)
    commands = {
        "numpy, construct": ["-c", "import numpy, construct"],
        "numpy, construct, click": ["-c", "import numpy, construct, click"],
        "python -c 'import glft_schema'": ["-c", "import glft_schema"],
        "glft --help": ["-m", "glft_schema", "--help"],
        "glft inspect, a small file": ["-m", "glft_schema", "inspect", str(small)],
        "glft inspect, SmolLM2": ["-m", "glft_schema", "inspect", str(files.smollm2())],
        "glft inspect, 20,000 tensors": ["-m", "glft_schema", "inspect", str(files.many_tensors(folder, 20_000))],
    }
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # as for users
    run = partial(subprocess.run, stdout=subprocess.DEVNULL, env=compiled, check=True)
    times = in_turn(
        {name: partial(run, [sys.executable, *options]) for name, options in commands.items()}, 8, processor_time_of_children
    )
    for name, goal in zip(list(commands)[2:], (1.4, 1.2, 1.2, None, None), strict=True):
        imports = "numpy, construct" if "import" in name else "numpy, construct, click"
        yield Row(f"{name}, processor time", times[name], f"python -c 'import {imports}'", times[imports], "s", at_most=goal)


def rows() -> Iterator[Row]:
    yield from opened("open SmolLM2 (272 tensors, 98,000 strings)", files.smollm2(), 1.5, 1 / 200)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield from opened("open 150,000 strings", files.vocabulary(folder, 150_000, 0), 1.0, 1 / 300)
        yield from opened("open 780,000 strings", files.vocabulary(folder, 262_000, 518_000), 1.0, 1 / 300)
        yield from opened("open 20,000 tensors", files.many_tensors(folder, 20_000), 5.0, 1 / 10)
        few, many = files.many_tensors(folder, 10_000), files.many_tensors(folder, 40_000)
        times = in_turn({path.name: lambda path=path: Container.parse_file(path).close() for path in (few, many)}, 5)
        yield Row("open 40,000 tensors", times[many.name], "4 x 10,000", 4 * times[few.name], "s", at_most=1.15)
        yield from processes(folder)
