"""Skips the tests of Hugging Face folders without the libraries of the extra ``hf``."""

from __future__ import annotations

import importlib.util

import pytest

from tests.tools.guarded_here import know_tokenizers

LIBRARIES = ("gguf", "tokenizers")


@pytest.fixture(autouse=True, scope="session")
def libraries() -> None:
    for name in LIBRARIES:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}: pip install 'glft_schema[hf]'")


@pytest.fixture(autouse=True)
def any_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the tokenizers of tiny folders known, in this process."""
    know_tokenizers(monkeypatch)
