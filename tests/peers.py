"""Other people's packages, with which tests compare. A test that uses one is skipped if it is not installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

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


gguf = Peer("gguf")
yaml = Peer("yaml")
