"""Scalar functions from texts, and C compiled by the system's compiler."""

from __future__ import annotations

import ctypes
import linecache
import os
import random
import re
import shutil
import subprocess
from importlib.util import find_spec
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glft_schema.scalar import language
from glft_schema.scalar.as_c import FLAGS
from glft_schema.scalar.as_torch import decoder
from glft_schema.scalar.kinds import KINDS
from glft_schema.scalar.language import run
from glft_schema.scalar.side_by_side import run_side_by_side
from glft_schema.scalar.tree import Function
from glft_schema.tensor_types.on_triton import kernel_of
from glft_schema.tensor_types.scalar_layout import ScalarLayout

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
    scope = {**{name: value for name, value in vars(language).items() if name[0] != "_"}, **names}
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
    with np.errstate(invalid="ignore"):  # of signaling NaN
        arrays = {name: field.T.astype(np.float32 if field.dtype.kind == "f" else np.int32) for name, field in fields.items()}
    length, blocks = function.parameters["w"].length, len(next(iter(fields.values())))
    arrays["w"] = np.zeros((length, blocks), np.float32)
    run_side_by_side(function, arrays, blocks)
    return np.ascontiguousarray(arrays["w"].T)


def by_torch(function: Function, fields: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Returns the weights [blocks, weights] of fields; torch gets unsigned words as signed ones."""
    words = {name: field for name, field in fields.items() if field.itemsize > 1}
    signed = fields | {name: field.view(field.dtype.str.replace("u", "i")) for name, field in words.items()}
    given = {name: torch.from_numpy(signed[name]) for name in function.parameters if name != "w"}
    weights = decoder(function)[0](w=torch.empty(len(next(iter(fields.values())))), **given)
    return weights.flatten(1).numpy()


def by_triton(source: Any, layout: ScalarLayout, blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the weights [blocks, weights] that a kernel in Triton's interpreter decodes, from
    odd addresses; skips the test without the interpreter."""
    if os.environ.get("TRITON_INTERPRET") != "1" or not find_spec("triton"):
        pytest.skip("Triton's interpreter is not installed, or this machine has a GPU")
    (kernel, tables), out = kernel_of(layout, source, (1,), "decode"), torch.full((len(blocks), layout.weights or 0), 7.0)
    part = torch.zeros(blocks.size + 1, dtype=torch.uint8)[1:].view(blocks.shape).copy_(torch.from_numpy(blocks))
    with np.errstate(all="ignore"):
        kernel[(-(-len(blocks) // 64),)](part, out, len(blocks), blocks.size, *map(torch.from_numpy, tables), CELLS=64)
    return out.numpy()


def by_plain_python(function: Any, fields: dict[str, np.ndarray[Any, Any]], length: int) -> np.ndarray[Any, Any]:
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    weights = np.zeros((len(next(iter(fields.values()))), length), np.float32)
    for block, w in enumerate(weights):
        run(function, w=w, **{name: fields[name][block] for name in names})
    return weights


def by_c(function: Any, blocks: np.ndarray[Any, Any], length: int) -> np.ndarray[Any, Any]:
    found = np.zeros((len(blocks), length), np.float32)
    function(pointer(blocks), pointer(found), ctypes.c_int64(len(blocks)))
    return found


def columns(layout: ScalarLayout, blocks: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the fields of blocks."""
    spans = zip(layout.fields, pairwise(layout.offsets), strict=True)
    return {
        field.name: np.ascontiguousarray(blocks[:, start:end]).view(KINDS[field.number].numpy) for field, (start, end) in spans
    }


def grown(random_: random.Random, text: str, depth: int, rules: dict[str, tuple[str, str]]) -> str:
    """Replaces the symbols of a text by rules, up to a depth, and then by leaves."""

    def replaced(symbol: re.Match[str]) -> str:
        grammar, leaves = (text.split(";") for text in rules[symbol[0]])
        if depth == 0 or random_.random() < 0.2:
            return random_.choice(leaves).strip()
        return grown(random_, random_.choice(grammar).strip(), depth - 1, rules)

    return re.sub(rf"\b[{''.join(rules)}]\b", replaced, text)


def pointer(array: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


def same_bits(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    """Tells whether floats have the same bits; NaN is NaN, whatever its sign and payload."""
    word = f"u{found.itemsize}"
    return bool(((found.view(word) == expected.view(word)) | (np.isnan(found) & np.isnan(expected))).all())
