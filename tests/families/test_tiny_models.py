"""Models as published: the logits of transformers and llama.cpp, and the file of llama.cpp's converter."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import glft_schema as glft
from glft_schema.families.folders import family_of
from tests.families.tiny_models import TINY_MODELS, TinyModel
from tests.golden.record_conversions import contents
from tests.golden.record_models import PATH
from tests.oracles.llama_model import LlamaModel
from tests.tools.depth import in_full

TOKENS = [1, 45, 120, 77, 200, 12, 99, 33, 250, 7, 8, 9, 61, 17, 140, 3, 90, 55, 21, 230, 111, 5, 66, 180]
FIRST = {model.file: model for model in reversed(TINY_MODELS)}
CASES = [model if FIRST[model.file] is model else in_full((model,)) for model in TINY_MODELS]
IDS = [f"{model.file}, {model.name}" for model in TINY_MODELS]


def other_than_the_converters(model: TinyModel, found: Any) -> set[str]:
    """Returns the keys and tensors that a file has otherwise than the converter's; ``*`` if it fails."""
    recorded = json.loads((PATH / f"{model.file}.json").read_text())[model.name]
    if isinstance(recorded, str):
        return {"*"}
    rows = (
        (name, found[part].get(name), recorded[part].get(name)) for part in found for name in {*found[part], *recorded[part]}
    )
    return {name for name, ours, other in rows if ours != other}


def outputs(reference: Any, loaded: LlamaModel) -> tuple[np.ndarray, np.ndarray]:
    """Returns the logits or embeddings of all tokens, or the scores of the text, of both models."""
    tokens = [token for token in TOKENS if token != reference.config.pad_token_id]  # some models do not count it
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
    assert other_than_the_converters(model, contents(tmp_path / "out.gguf")) == {*model.differs}
    with LlamaModel(tmp_path / "out.gguf", exact=True) as loaded:
        expected, ours = outputs(reference, loaded)
    assert np.abs(ours - expected).max() / (expected.std() or 1) <= model.tolerance


@pytest.mark.parametrize("model", CASES, ids=IDS)
def test_there_and_back(model: TinyModel, tmp_path: Path) -> None:
    folder, _ = model.make(tmp_path)
    glft.convert(folder, tmp_path / "out.gguf")
    glft.convert(tmp_path / "out.gguf", f"{tmp_path}/back/")
    (tmp_path / "back/metadata.gguf").unlink()  # the config states all
    first, again = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert {name: tensor.tolist() for name, tensor in again.items()} == {
        name: tensor.tolist() for name, tensor in first.items() if not family_of(folder).drops(name)
    }
    glft.convert(tmp_path / "back", tmp_path / "again.gguf")
    found, expected = (contents(tmp_path / name) for name in ("again.gguf", "out.gguf"))
    named = {name for name in expected["keys"] if name.startswith(("general.", "tokenizer."))}
    assert {**found["keys"], **{name: expected["keys"][name] for name in named}} == {**found["keys"], **expected["keys"]}
    assert found["tensors"] == expected["tensors"]
