"""Third-party packages to compare with; a test that uses a missing one is skipped."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import hypothesis
import pytest


class Peer:
    """A package that is imported on first use."""

    def __init__(self, package: str) -> None:
        self._package = package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for marks on every global of a module
            raise AttributeError(name)
        pytest.importorskip(self._package)
        return getattr(import_module(self._package), name)


makes_examples_of_bytes = pytest.mark.skipif(
    hypothesis.__version_info__ < (6, 169),  # 6.168 is the last for Python 3.10
    reason="this hypothesis never finishes some draws of integers from random bytes",
)
gguf = Peer("gguf")
