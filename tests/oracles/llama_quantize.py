"""llama.cpp's ``llama_model_quantize`` as an oracle, from the shared objects of an npm package.

Run as a program, in a process of its own, because llama.cpp may abort it. It reads a list of jobs
as JSON and prints one exit code a job.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PACKAGE = "@node-llama-cpp/linux-x64"
VERSION = "3.22.1"  # llama.cpp v0.5.0
NO_TYPE = 43  # number of ggml's types in that build
PROCESSOR = "libggml-cpu-x64.so"  # without contracted multiply-adds


class Importance(ctypes.Structure):
    """``llama_model_imatrix_data`` of llama.h."""

    _fields_ = (("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t))


class Pattern(ctypes.Structure):
    """``llama_model_tensor_override`` of llama.h."""

    _fields_ = (("pattern", ctypes.c_char_p), ("type", ctypes.c_int))


class Value(ctypes.Union):
    """The value of ``llama_model_kv_override``."""

    _fields_ = (
        ("integer", ctypes.c_int64),
        ("number", ctypes.c_double),
        ("boolean", ctypes.c_bool),
        ("text", ctypes.c_char * 128),
    )


class Override(ctypes.Structure):
    """``llama_model_kv_override`` of llama.h."""

    _fields_ = (("tag", ctypes.c_int), ("key", ctypes.c_char * 128), ("value", Value))


class Options(ctypes.Structure):
    """``llama_model_quantize_params`` of llama.h."""

    _fields_ = (
        ("nthread", ctypes.c_int32),
        ("ftype", ctypes.c_int),
        ("output_tensor_type", ctypes.c_int),
        ("token_embedding_type", ctypes.c_int),
        ("allow_requantize", ctypes.c_bool),
        ("quantize_output_tensor", ctypes.c_bool),
        ("only_copy", ctypes.c_bool),
        ("pure", ctypes.c_bool),
        ("keep_split", ctypes.c_bool),
        ("dry_run", ctypes.c_bool),
        ("imatrix", ctypes.POINTER(Importance)),
        ("kv_overrides", ctypes.POINTER(Override)),
        ("tt_overrides", ctypes.POINTER(Pattern)),
        ("prune_layers", ctypes.POINTER(ctypes.c_int32)),
        ("max_buf_size", ctypes.c_size_t),
    )


def package(cache: Path) -> Path:
    """Returns the folder of the shared objects in `cache`; skips the test if npm has none."""
    from tests.tools import npm  # not in the program

    return npm.installed(cache, f"{PACKAGE}@{VERSION}") / "node_modules" / PACKAGE / "bins/linux-x64"


def quantize(folder: Path, jobs: Sequence[dict[str, Any]]) -> list[int]:
    """Runs ``llama_model_quantize`` for each job, in one process.

    Args:
        folder: of the shared objects.
        jobs: source, out, ftype; and fields of `Options`, ``importance`` as numbers by tensor,
            ``overrides`` as values by key, ``patterns`` as pairs, and ``pruned`` as layers.

    Returns:
        Its result for each job, 0 on success.
    """
    command = [sys.executable, __file__, str(folder)]
    done = subprocess.run(command, input=json.dumps(list(jobs)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    codes: list[int] = json.loads(done.stdout.splitlines()[-1])
    return codes


def main(folder: Path) -> None:
    """Reads jobs from standard input and prints their results."""
    for name in ("libggml-base.so", *(path.name for path in folder.glob("libggml.v*.so"))):
        ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(next(folder.glob("libllama.v*.so"))), ctypes.RTLD_GLOBAL)
    ggml = ctypes.CDLL(str(next(folder.glob("libggml.v*.so"))), ctypes.RTLD_GLOBAL)
    ggml.ggml_backend_load.restype = ctypes.c_void_p
    assert ggml.ggml_backend_load(str(folder / PROCESSOR).encode())
    library.llama_backend_init()
    library.llama_model_quantize_default_params.restype = Options
    assert library.llama_model_quantize_default_params().output_tensor_type == NO_TYPE
    print(json.dumps([_run(library, job) for job in json.load(sys.stdin)]))


def _run(library: ctypes.CDLL, job: dict[str, Any]) -> int:
    source, out = (job.pop(key).encode() for key in ("source", "out"))
    options = library.llama_model_quantize_default_params()
    given = ("importance", "overrides", "patterns", "pruned")
    importance, overrides, patterns, pruned = (job.pop(key, None) for key in given)
    for key, value in {"nthread": 2, **job}.items():
        setattr(options, key, value)
    if importance:
        entries = [Importance(k.encode(), (ctypes.c_float * len(v))(*v), len(v)) for k, v in importance.items()]
        options.imatrix = (Importance * (len(entries) + 1))(*entries)
    if patterns:
        pairs = [Pattern(pattern.encode(), code) for pattern, code in patterns]
        options.tt_overrides = (Pattern * (len(pairs) + 1))(*pairs, Pattern(None, NO_TYPE))
    if overrides:
        options.kv_overrides = (Override * (len(overrides) + 1))(*(_override(*item) for item in overrides.items()))
    if pruned:
        options.prune_layers = (ctypes.c_int32 * (len(pruned) + 1))(*pruned, -1)
    library.llama_model_quantize.restype = ctypes.c_uint32
    code: int = library.llama_model_quantize(source, out, ctypes.byref(options))
    return code


def _override(key: str, value: bool | int | float | str) -> Override:
    found = Override(key=key.encode())
    found.tag = [int, float, bool, str].index(type(value))
    name = ("integer", "number", "boolean", "text")[found.tag]
    setattr(found.value, name, value.encode() if isinstance(value, str) else value)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
