"""Recipes from text files."""

from __future__ import annotations

from pathlib import Path

import pytest

import glft_schema as glft
from glft_schema import OptionError, SchemeError, quantize
from glft_schema.quantizer import Recipe
from glft_schema.quantizer.recipe_files import read_recipe, recipe_text
from tests.quantizer import models

TEXT = """\
# of my own
default = Q8_0

blk.*.attn_v.weight=q6_k # all of them
blk.1.attn_v.weight=f16
token_embd.weight=q4_k
output_norm.weight=q8_0
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.gguf"
    models.write(path, models.keys(layers=3), models.tensors(3))
    return path


def test_the_last_line_counts(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(TEXT)
    quantize(source, tmp_path / "out.gguf", tmp_path / "mine.txt")
    with glft.open(tmp_path / "out.gguf") as file:
        found = {name: tensor.type.scheme for name, tensor in file.tensors.items()}
        assert file.metadata["general.file_type"] == 7
    assert [found[f"blk.{i}.attn_v.weight"] for i in range(3)] == ["q6_k", "f16", "q6_k"]
    assert (found["token_embd.weight"], found["blk.0.attn_k.weight"]) == ("q4_k", "q8_0")
    assert (found["output_norm.weight"], found["blk.0.ffn_norm.weight"]) == ("f32", "f32")  # norms keep their types


def test_a_recipe_is_written_as_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(TEXT)
    recipe = read_recipe(path)
    assert (recipe.name, recipe.code, recipe.default, len(recipe.tensors)) == ("mine", 7, "q8_0", 4)
    path.write_text(recipe_text(recipe))
    assert read_recipe(path) == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q4_k\n", "mine.txt: line 1: expected NAME=TYPE, found 'q4_k'"),
        ("default=q4_k\n=q8_0", "mine.txt: line 2: expected NAME=TYPE, found '=q8_0'"),
        ("\ndefault=q4_kk", "mine.txt: line 2: ggml has no type 'q4_kk': expected"),
        ("a=q4_k\na=q4_k", "mine.txt: line 2: expected each name once, found 'a' twice"),
        ("a=q4_k", "mine.txt: expected a line default=TYPE, found none"),
        ("default=i8", "mine.txt: expected a default that general.file_type can have, one of f32, .*; found i8"),
    ],
)
def test_mistakes(source: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.txt").write_text(text)
    with pytest.raises(OptionError, match=message):
        quantize(source, tmp_path / "out.gguf", str(tmp_path / "mine.txt"))
    assert not (tmp_path / "out.gguf").exists()


def test_a_name_that_no_tensor_has(source: Path, tmp_path: Path) -> None:
    recipe = Recipe("mine", 7, "q8_0", tensors={"blk.0.attn_w.weight": "q8_0"})
    with pytest.raises(SchemeError, match=r"found none; did you mean 'blk\.0\.attn_v\.weight'"):
        quantize(source, tmp_path / "out.gguf", recipe)
