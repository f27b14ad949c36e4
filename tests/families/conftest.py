"""Skips the tests of Hugging Face folders without the libraries of the extra ``hf``."""

from __future__ import annotations

import importlib.util

import pytest

from glft_schema.families import pre_tokenizers
from tests.golden.record_conversions import PRE
from tests.tools.guarded_here import guarded_here

TABLE = "glft_schema.families.vocabulary.PRE_TOKENIZERS"
LIBRARIES = ("gguf", "sentencepiece", "tokenizers")


@pytest.fixture(autouse=True, scope="session")
def libraries() -> None:
    for name in LIBRARIES:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}: pip install 'glft_schema[hf]'")


class AnyFingerprint(dict[str, str]):
    """A table of pre-tokenizers in which none is unknown."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> str:
        return PRE


@pytest.fixture(autouse=True)
def any_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the tokenizers of tiny folders known, in this process."""
    monkeypatch.setattr("glft_schema.families.folders.guarded", guarded_here)
    monkeypatch.setattr(TABLE, AnyFingerprint(pre_tokenizers.PRE_TOKENIZERS))
