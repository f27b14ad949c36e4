"""Tiny models: the logits of transformers and llama.cpp, and the file of llama.cpp's converter."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file

import glft_schema as glft
from glft_schema.families.folders import declared_family
from tests.families.tiny_folders import TOKENIZERS
from tests.families.tiny_models import TINY_MODELS, TinyModel, class_named
from tests.golden.record_conversions import contents
from tests.golden.record_models import PATH
from tests.oracles.llama_model import LlamaModel
from tests.tools.depth import in_full

TOKENS = [1, 45, 120, 77, 200, 12, 99, 33, 250, 7, 8, 9, 61, 17, 140, 3, 90, 55, 21, 230, 111, 5, 66, 180]
TEXT = "the cat, a hat; that 12 bats\n at the  end"
FIRST = {model.file: model for model in reversed(TINY_MODELS)}
CASES = [model if FIRST[model.file] is model else in_full((model,)) for model in TINY_MODELS]
IDS = [f"{model.file}, {model.name}" for model in TINY_MODELS]


def other_than_the_converters(model: TinyModel, found: Any) -> set[str]:
    """Returns the keys and tensors that differ from the converter's file; ``*`` if it fails."""
    recorded = json.loads((PATH / f"{model.file}.json").read_text())[model.name]
    if isinstance(recorded, str):
        return {"*"}
    rows = (
        (name, found[part].get(name), recorded[part].get(name)) for part in found for name in {*found[part], *recorded[part]}
    )
    return {name for name, ours, other in rows if ours != other}


def keys_of_the_architecture(found: Any) -> dict[str, Any]:
    """Returns the keys of a file's contents without those of the name and the tokenizer."""
    return {name: value for name, value in found["keys"].items() if not name.startswith(("general.", "tokenizer."))}


def loaded(names: str, folder: Path) -> Any:
    """Returns a model of the class that the folder states, which must be one of `names`."""
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    assert name in names.split()
    return class_named(name).from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()


def outputs(reference: Any, loaded: LlamaModel) -> tuple[np.ndarray, np.ndarray]:
    """Returns the logits or embeddings of all tokens, or the scores of the text, of both models."""
    padding = reference.config.get_text_config().pad_token_id
    tokens = [token for token in TOKENS if token != padding]  # some models do not count it
    with torch.no_grad():
        found = reference(torch.tensor([tokens]))
    if "logits" not in found:
        return found.last_hidden_state[0].numpy(), loaded.embeddings(tokens)
    logits = found.logits[0].numpy()
    return logits, loaded.all_logits(tokens) if logits.ndim > 1 else loaded.embedding(tokens)


@pytest.mark.parametrize("newest", [False, in_full(True)], ids=["transformers 4", "transformers 5"])
@pytest.mark.parametrize("model", CASES, ids=IDS)
def test_logits_and_the_converters_file(model: TinyModel, newest: bool, tmp_path: Path) -> None:
    folder, reference = model.make(tmp_path, newest=newest)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        glft.convert(folder, tmp_path / "out.gguf")
    others = other_than_the_converters(model, contents(tmp_path / "out.gguf"))
    added = {name for name in others if newest and name.endswith("_token_id")}  # transformers 5 states its defaults
    assert others - added == {*model.differs} - added
    with LlamaModel(tmp_path / "out.gguf", exact=True) as loaded:
        expected, ours = outputs(reference, loaded)
        if (folder / "tokenizer.json").exists():
            tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            tokenizer.no_truncation()
            tokenizer.no_padding()
            assert loaded.tokens(TEXT, special=False) == tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert np.abs(ours - expected).max() / (expected.std() or 1) <= model.tolerance


@pytest.mark.parametrize("model", CASES, ids=IDS)
def test_there_and_back(model: TinyModel, tmp_path: Path) -> None:
    folder, reference = model.make(tmp_path)
    glft.convert(folder, tmp_path / "out.gguf")
    glft.convert(tmp_path / "out.gguf", f"{tmp_path}/back/")
    if back := model.stated.get("back"):  # a class that computes the same
        with torch.no_grad():
            ours, expected = (each(torch.tensor([TOKENS])).logits for each in (loaded(back, tmp_path / "back"), reference))
        assert ((ours - expected).abs().max() / expected.std()).item() <= model.tolerance
        glft.convert(tmp_path / "back", tmp_path / "again.gguf")  # of another architecture
        with LlamaModel(tmp_path / "again.gguf", exact=True) as again_loaded:
            expected, ours = outputs(reference, again_loaded)
        assert np.abs(ours - expected).max() / expected.std() <= model.tolerance
        return
    (tmp_path / "back/metadata.gguf").unlink()  # the config states all
    shutil.copytree(TOKENIZERS / model.stated["tokenizer"], tmp_path / "back", dirs_exist_ok=True)
    first, again = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert {name: tensor.tolist() for name, tensor in again.items()} == {
        name: tensor.tolist() for name, tensor in first.items() if not declared_family(folder).drops(name)
    }
    glft.convert(tmp_path / "back", tmp_path / "again.gguf")
    found, expected = (contents(tmp_path / name) for name in ("again.gguf", "out.gguf"))
    assert keys_of_the_architecture(found) == keys_of_the_architecture(expected)
    assert found["tensors"] == expected["tensors"]
