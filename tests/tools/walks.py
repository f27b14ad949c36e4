"""Counts the modules and functions of the package that a job enters when it is done a second time.

python -m tests.tools.walks
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import glft_schema as glft
from tests.families.tiny_folders import make_folder
from tests.tools.command_line import in_this_process
from tests.tools.guarded_here import know_tokenizers

PACKAGE = str(Path(glft.__file__).parent)
EXPRESSIONS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>")


def entered(job: Callable[[], object]) -> tuple[int, int]:
    """Returns the numbers of modules and of functions that a job enters."""
    job()
    found: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name not in EXPRESSIONS:
            found.add((code.co_filename, code.co_qualname if sys.version_info >= (3, 11) else code.co_name))

    sys.setprofile(note)
    try:
        job()
    finally:
        sys.setprofile(None)
    return len({module for module, _ in found}), len(found)


def jobs(folder: Path) -> dict[str, Callable[[], Any]]:
    """Returns the jobs, on files that are written first."""
    path, model, out = folder / "two.safetensors", folder / "model.gguf", folder / "out.gguf"
    state = {"a": np.ones((2, 64), np.float32), "b": np.ones(3, np.float32)}
    glft.save_file(state, path)
    source = make_folder(folder, "tiny-llama")
    glft.quantize(source, model, "Q4_0")

    def dequantize() -> None:
        with glft.open(model) as file:
            file.tensors["blk.0.ffn_up.weight"].dequantize()

    return {
        "save_file of two tensors": lambda: glft.save_file(state, path),
        "load_file": lambda: glft.load_file(path),
        "open and dequantize": dequantize,
        "quantize(folder)": lambda: glft.quantize(source, out, "Q8_0"),
        "convert(folder)": lambda: glft.convert(source, out),
        "verify --rules llama.cpp": lambda: in_this_process("verify", model, "--rules", "llama.cpp"),
    }


def main() -> None:
    """Prints a table."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        know_tokenizers(patch)
        for job, call in jobs(Path(name)).items():
            modules, functions = entered(call)
            print(f"| {job} | {modules} | {functions} |")


if __name__ == "__main__":
    main()
