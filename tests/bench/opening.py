"""Opening a file: header, metadata and tensor infos, without payloads."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import gguf

from glft_schema import Container
from tests.bench import files
from tests.bench.measure import Row, compared, in_turn, seconds_of
from tests.oracles import llama_cpp

SMALL, LARGER = "python -c 'import numpy, construct'", "python -c 'import numpy, construct, click'"


def by_c(path: Path) -> None:
    """Opens a file by llama.cpp without allocating tensors."""
    c = llama_cpp.library()
    c.gguf_init_from_file.restype = ctypes.c_void_p
    opened = ctypes.c_void_p(c.gguf_init_from_file(str(path).encode(), llama_cpp.GgufInitParams(True, None)))
    assert opened
    c.gguf_free(opened)


def by_us(path: Path) -> None:
    Container.parse_file(path).close()


def opened(what: str, path: Path, goal_c: float, goal_gguf_py: float) -> Iterator[Row]:
    (row,) = compared(what, partial(by_us, path), {"llama.cpp's C": partial(by_c, path)}, goal_c, repeats=10)
    yield row
    yield Row(what, row.ours, "gguf-py", seconds_of(partial(gguf.GGUFReader, path)), "s", goal_gguf_py)


def processor_time_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def started(*options: str) -> Callable[[], object]:
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # as for users
    return partial(subprocess.run, [sys.executable, *options], stdout=subprocess.DEVNULL, env=compiled, check=True)


def processes(folder: Path) -> Iterator[Row]:
    measured = {"repeats": 8, "measure": partial(seconds_of, clock=processor_time_of_children)}
    imports = {SMALL: started("-c", "import numpy, construct"), LARGER: started("-c", "import numpy, construct, click")}
    run, glft = imports[LARGER], ("-m", "glft_schema")
    yield from compared(
        "python -c 'import glft_schema', processor time",
        started("-c", "import glft_schema"),
        {SMALL: imports[SMALL]},
        1.4,
        **measured,
    )
    for what, options, goal in (
        ("glft --help", ["--help"], 1.2),
        ("glft inspect, a small file", ["inspect", str(files.many_tensors(folder, 1))], 1.2),
        ("glft inspect, SmolLM2", ["inspect", str(files.smollm2())], {}),
        ("glft inspect, 20,000 tensors", ["inspect", str(files.many_tensors(folder, 20_000))], {}),
    ):
        yield from compared(f"{what}, processor time", started(*glft, *options), {LARGER: run}, goal, **measured)


def rows() -> Iterator[Row]:
    yield from opened("open SmolLM2 (272 tensors, 98,000 strings)", files.smollm2(), 1.5, 1 / 200)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield from opened("open 150,000 strings", files.vocabulary(folder, 150_000, 0), 1.0, 1 / 300)
        yield from opened("open 780,000 strings", files.vocabulary(folder, 262_000, 518_000), 1.0, 1 / 300)
        yield from opened("open 20,000 tensors", files.many_tensors(folder, 20_000), 5.0, 1 / 10)
        many = {str(count): partial(by_us, files.many_tensors(folder, count)) for count in (10_000, 40_000)}
        times = in_turn(many)
        yield Row("open 40,000 tensors", times["40000"], "4 x 10,000", 4 * times["10000"], "s", 1.15)
        yield from processes(folder)
