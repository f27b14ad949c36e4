"""Skips the tests of Hugging Face folders without the libraries of the extra ``hf``."""

from __future__ import annotations

import importlib.util

import pytest

LIBRARIES = ("gguf", "sentencepiece", "tokenizers")


@pytest.fixture(autouse=True, scope="session")
def libraries() -> None:
    for name in LIBRARIES:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}: pip install 'glft_schema[hf]'")
