"""Skips the tests of Hugging Face folders without the libraries of the extra ``hf``."""

from __future__ import annotations

import importlib.util

import pytest

from glft_schema.families import pre_tokenizers
from tests.golden.record_conversions import PRE

LIBRARIES = ("gguf", "sentencepiece", "tokenizers")


@pytest.fixture(autouse=True, scope="session")
def libraries() -> None:
    for name in LIBRARIES:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}: pip install 'glft_schema[hf]'")


@pytest.fixture(autouse=True)
def any_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the tokenizers of tiny folders known."""

    class AnyFingerprint(dict[str, str]):
        def __contains__(self, key: object) -> bool:
            return True

        def __missing__(self, key: str) -> str:
            return PRE

    monkeypatch.setattr("glft_schema.families.vocabulary.PRE_TOKENIZERS", AnyFingerprint(pre_tokenizers.PRE_TOKENIZERS))
