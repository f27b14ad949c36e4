"""Other people's packages, with which tests compare. A test that uses one is skipped if it is not installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import hypothesis
import pytest


class Peer:
    """A package that is imported when a test first uses it."""

    def __init__(self, package: str) -> None:
        self._package = package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for its marks on whatever a module holds
            raise AttributeError(name)
        pytest.importorskip(self._package)
        return getattr(import_module(self._package), name)


makes_examples_of_bytes = pytest.mark.skipif(
    hypothesis.__version_info__ < (6, 169),  # the last for Python 3.10 is 6.168
    reason="this hypothesis draws some integers from random bytes without end",
)
gguf = Peer("gguf")
yaml = Peer("yaml")
