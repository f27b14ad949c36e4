"""llama.cpp's loader of models as an oracle, in a process of its own: it aborts on some files.

`Loader` keeps the process for many files, and starts another after an abort.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = r"""
import ctypes, os, sys

library, errors = ctypes.CDLL(sys.argv[1]), []
out = os.fdopen(os.dup(1), "w", buffering=1)

@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def log(level, text, user):
    if level == 4:
        errors.append(text.decode(errors="replace").strip())

class Params(ctypes.Structure):
    _fields_ = (("words", ctypes.c_uint64 * 64),)

library.llama_log_set(log, None)
library.llama_model_default_params.restype = Params
library.llama_model_load_from_file.restype = ctypes.c_void_p
library.llama_model_load_from_file.argtypes = ctypes.c_char_p, Params
library.llama_model_free.argtypes = (ctypes.c_void_p,)
params = library.llama_model_default_params()
for line in sys.stdin:
    model = library.llama_model_load_from_file(os.fsencode(line.rstrip("\n")), params)
    if model:
        library.llama_model_free(model)
    print("" if model else errors[0], file=out)
    errors.clear()
"""


class Loader:
    """Loads models with llama.cpp. A context manager."""

    def __init__(self) -> None:
        (self._library,) = Path(pytest.importorskip("xllamacpp").__file__).parent.glob("*.so")
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def refusal(self, path: Path) -> str:
        """Returns why llama.cpp refuses a model; an empty text if it loads it."""
        if self._process is None:
            command = [sys.executable, "-c", WORKER, str(self._library)]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "GGML_NO_BACKTRACE": "1"},
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin
        assert stdout
        stdin.write(f"{path}\n")
        stdin.flush()
        if line := stdout.readline():
            return line.rstrip("\n")
        self._stop()
        return "aborted"

    def _stop(self) -> None:
        if self._process:
            self._process.communicate()
            self._process = None
