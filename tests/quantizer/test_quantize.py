"""Files equal those of llama.cpp's own quantizer, byte for byte."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings

import glft_schema as glft
from glft_schema import SchemeError, Typed, quantize
from glft_schema.quantizer.recipes import RECIPES, recipe_named
from tests.oracles import llama_quantize
from tests.quantizer import models
from tests.tools.real_files import kept

pytestmark = pytest.mark.network
NO_FALLBACK = {"nvfp4", "q1_0"}  # llama.cpp refuses rows that their blocks do not divide; here they become F16


@pytest.fixture(scope="session")
def folder(request: pytest.FixtureRequest) -> Path:
    """The folder of llama.cpp's shared objects."""
    with kept(request, f"llama-quantize-{llama_quantize.VERSION}") as cache:
        return llama_quantize.package(cache)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def importances(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns an importance for each matrix but the embedding: [columns], or [experts, columns]."""
    numbers = torch.Generator().manual_seed(5)
    return {
        name: torch.rand((*tensor.shape[:-2], tensor.shape[-1]), generator=numbers) ** 4 * 9 + 1e-3
        for name, tensor in weights.items()
        if tensor.dim() > 1 and name != "token_embd.weight"
    }


def compare(
    folder: Path, source: Path, names: list[str], importance: Mapping[str, torch.Tensor] | None = None, **options: Any
) -> dict[str, str]:
    """Quantizes a file here and there. Returns how the recipes ended: equal, or refused by both.

    Args:
        folder: of llama.cpp's shared objects.
        source: the model.
        names: of the recipes.
        importance: by tensor.
        options: fields of llama.cpp's options, and ``ours``, the options here.
    """
    ours, ended = options.pop("ours", {}), {}
    given = {"importance": {name: column.flatten().tolist() for name, column in importance.items()}} if importance else {}
    outs = {name: source.with_name(f"{source.stem}-{name}.c.gguf") for name in names}
    jobs = [
        {"source": str(source), "out": str(outs[name]), "ftype": recipe_named(name).code, **given, **options} for name in names
    ]
    codes = llama_quantize.quantize(folder, jobs)
    for name, code in zip(names, codes, strict=True):
        out = source.with_name(f"{source.stem}-{name}.gguf")
        try:
            quantize(source, out, name, importance=importance, **ours)
            ended[name] = "equal" if code == 0 and sha256(out) == sha256(outs[name]) else f"differs ({code})"
            out.unlink()
        except SchemeError as error:
            ended[name] = "refused" if code else f"only here: {error}"
        outs[name].unlink(missing_ok=True)
    return ended


THREE = ["Q4_K_M", "IQ3_XXS", "Q5_0"]


@pytest.mark.parametrize("experts", [0, 8])
def test_three_types(folder: Path, tmp_path: Path, experts: int) -> None:
    weights = models.tensors(9, experts, tied=not experts, fused=False, width=256, down=64)
    models.write(tmp_path / "in.gguf", models.keys("llama", 9, 4, 2, experts), weights)
    assert compare(folder, tmp_path / "in.gguf", THREE) == {"Q4_K_M": "equal", "IQ3_XXS": "refused", "Q5_0": "equal"}
    assert compare(folder, tmp_path / "in.gguf", THREE, importances(weights)) == dict.fromkeys(THREE, "equal")


@pytest.mark.slow
@settings(max_examples=max(settings.default.max_examples // 50, 5))
@given(models.models())
def test_any_model(folder: Path, tmp_path_factory: pytest.TempPathFactory, model: tuple[Any, Any]) -> None:
    metadata, weights = model
    source = tmp_path_factory.getbasetemp() / "any.gguf"
    models.write(source, metadata, weights)
    names = [recipe.name for recipe in RECIPES]
    for importance in (None, importances(weights)):
        ended = compare(folder, source, names, importance)
        width = {tensor.shape[-1] for tensor in weights.values() if tensor.dim() > 1}
        unequal = {name: end for name, end in ended.items() if end not in ("equal", "refused")}
        if any(size % 128 for size in width):  # see NO_FALLBACK
            unequal = {name: end for name, end in unequal.items() if recipe_named(name).default not in NO_FALLBACK}
        assert not unequal
        assert {name for name, end in ended.items() if end == "refused"} <= (REFUSED if importance is None else set())


REFUSED = {"Q2_K_S", "IQ3_XXS", "IQ3_XS", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"}  # without importance
