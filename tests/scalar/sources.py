"""Scalar functions from texts, and C compiled by the system's compiler."""

from __future__ import annotations

import ctypes
import linecache
import shutil
import subprocess
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glft_schema.scalar import language
from glft_schema.scalar.as_c import FLAGS
from glft_schema.scalar.side_by_side import run_side_by_side
from glft_schema.scalar.tree import Function

ARITHMETIC = {  # bodies of decoders of 16 weights, with fields d and qs
    "arithmetic": """
        for i in range(16):
            x = float32(qs[i] - 8) * d[0]
            w[i] = -x / 3 + 0.1 - d[1] * x""",
    "constants": """
        for i in range(16):
            x = float32(0.1) / float32(3) * float32(1.5) - float32(-3)
            w[i] = x + abs(float32(-0.1)) * d[0] / (float32(0.1) * 3) + max(d[1], float32(1) / float32(i))""",
}
GNU = ("-std=gnu11", "-Wno-psabi")  # lanes use vectors of gcc and clang
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
NAMES = (
    "float32",
    "int32",
    "float16",
    "nearest",
    "root",
    "as_bits",
    "as_float",
    "as_float16",
    "floats",
    "integers",
    "LookupTable",
    "truncated",
    "alone",
)
_numbers = count()


def declared(source: str, **names: Any) -> Any:
    """Returns the last function of a text, whose source `inspect` finds."""
    path = f"<scalar {next(_numbers)}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    scope = {**{name: getattr(language, name) for name in NAMES}, **names}
    exec(compile(source, path, "exec"), scope)
    return [value for value in scope.values() if getattr(getattr(value, "__code__", None), "co_filename", "") == path][-1]


def compiled(source: str, folder: Path, *flags: str) -> ctypes.CDLL:
    """Compiles C without warnings; skips the test if there is no compiler."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler: cc is not on the path")
    path, library = folder / "unit.c", folder / f"unit{next(_numbers)}.so"
    path.write_text(source, "utf-8")
    done = subprocess.run([compiler, *STRICT, *FLAGS, *flags, "-o", library, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


def by_numpy(function: Function, fields: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Returns the weights [blocks, weights] of fields [blocks, numbers], decoded side by side."""
    arrays = {name: field.T.astype(np.float32 if field.dtype.kind == "f" else np.int32) for name, field in fields.items()}
    length, blocks = function.parameters["w"].length, len(next(iter(fields.values())))
    arrays["w"] = np.zeros((length, blocks), np.float32)
    run_side_by_side(function, arrays, blocks)
    return np.ascontiguousarray(arrays["w"].T)


def pointer(array: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


def same_bits(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    """Tells whether floats have the same bits; NaN is NaN, whatever its sign and payload."""
    word = f"u{found.itemsize}"
    return bool(((found.view(word) == expected.view(word)) | (np.isnan(found) & np.isnan(expected))).all())
