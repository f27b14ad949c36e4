"""llama.cpp's loader of models as an oracle, in a process of its own: it aborts on some files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracles.llama_cpp import LOG, Loaded, library
from tests.tools.processes import Process, serve


class Loader(Process):
    """Loads models with llama.cpp. A context manager."""

    def __init__(self) -> None:
        pytest.importorskip("xllamacpp")
        super().__init__("-m", "tests.oracles.llama_loader", GGML_NO_BACKTRACE="1")

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def refusal(self, path: Path) -> str:
        """Returns why llama.cpp refuses a model; an empty text if it loads it."""
        try:
            return str(self(path))
        except EOFError:
            return "aborted"


def refusal(path: Path) -> str:
    errors = []

    @LOG
    def log(level: int, text: bytes, user: object) -> None:
        if level == 4:
            errors.append(text.decode(errors="replace").strip())

    try:
        with Loaded(path, log=log):
            return ""
    except AssertionError:
        return errors[0]


if __name__ == "__main__":
    library()
    serve(refusal)
