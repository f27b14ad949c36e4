"""Libraries of three types, compiled once; each test has a copy of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.library import building, loading
from glft_schema.tensor_types.symmetric import Q4_PER_GROUP_64

TYPES = (*(type_ for type_ in GGML_TYPES if type_.name in ("Q4_K", "IQ2_XXS")), Q4_PER_GROUP_64)
# an encoder in lanes, and one of rows; that of IQ2_XXS needs large tables
FUNCTIONS = [type_.functions._replace(encoders=() if type_.name == "IQ2_XXS" else type_.encoders[:1]) for type_ in TYPES]


@pytest.fixture(scope="session")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Skips the test if there is no C compiler."""
    if building.compiler() is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("compiled")
    building.build(FUNCTIONS, folder)
    return folder


@pytest.fixture
def folder(compiled_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which this process finds compiled functions."""
    shutil.copytree(compiled_once, tmp_path / "compiled")
    monkeypatch.setattr(loading, "FOLDER", tmp_path / "compiled")
    monkeypatch.delenv("GLFT_LIBRARY", raising=False)
    loading.forget()
    yield tmp_path / "compiled"
    loading.forget()
