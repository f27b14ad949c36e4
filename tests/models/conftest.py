"""Skips the tests of models without transformers. The tokenizers of tiny folders are known."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import glft_schema as glft
from tests.families.conftest import any_fingerprint, libraries  # noqa: F401
from tests.families.tiny_folders import make_folder


@pytest.fixture(autouse=True, scope="session")
def transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers: pip install 'glft_schema[transformers]'")


def tiny_gguf(parent: Path, name: str) -> Path:
    """Writes the folder of a family, and its GGUF file in float32."""
    out = parent / f"{name}.gguf"
    glft.convert(make_folder(parent, name), out, schemes={"*": "f32"})
    return out
