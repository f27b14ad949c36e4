"""GGUF models that lack keys, as old files do. The oracles are llama.cpp's loader and logits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema as glft
from glft_schema.models.from_gguf import load_model
from tests.families.tiny_folders import CONFIGS, make_folder
from tests.oracles.llama_loader import Loader
from tests.oracles.llama_model import LlamaModel
from tests.tools.depth import some_by_default

TOKENS = [1, 45, 120, 77, 200, 12, 99, 33, 250, 7, 8, 9, *range(3, 45)]  # beyond the windows of 32
UNSTATED = {"tiny-llama-3": ("llama.rope.freq_base", "expected factors of Llama 3's rope scaling, found others")}


@pytest.fixture(scope="module")
def loader() -> Iterator[Loader]:
    with Loader() as started:
        yield started


class Model:
    """A tiny GGUF model, and copies of it that lack keys."""

    def __init__(self, parent: Path, name: str) -> None:
        folder = make_folder(parent, name)
        self.name, self.path, self.copy = name, parent / "whole.gguf", parent / "lacking.gguf"
        glft.convert(folder, self.path, schemes={"*": "f32"})
        self.file = glft.open(self.path)
        self.metadata: Any = self.file.metadata
        self.tensors = {name: tensor.dequantize() for name, tensor in self.file.tensors.items()}

    def without(self, *keys: str, **added: Any) -> Path:
        """Returns the path of the copy."""
        metadata = self.metadata.without(*keys) | added
        glft.save_file(self.tensors, self.copy, metadata, rules=[])
        return self.copy


def computed(model: Model, path: Path) -> Any:
    """Returns what transformers computes. gpt-oss rounds yarn's dims here, as llama.cpp does."""
    if model.name == "tiny-gpt-oss-bf16":
        folder = path.with_suffix("")
        shutil.rmtree(folder, ignore_errors=True)
        glft.convert(path, f"{folder}/")
        path, config = folder, json.loads((folder / "config.json").read_text())
        config.get("rope_scaling", {}).update(truncate=True)
        (folder / "config.json").write_text(json.dumps(config))
    with torch.inference_mode():
        return load_model(path)(torch.tensor([TOKENS]))[0][0]


@pytest.mark.filterwarnings("ignore:no tokenizer is written")
@pytest.mark.long
@pytest.mark.parametrize("name", some_by_default([name for name in CONFIGS if name != "tiny-gpt-oss"], 4))  # it has other types
def test_each_key(name: str, loader: Loader, tmp_path: Path) -> None:
    """What the loader refuses is refused by name. Other models compute the same."""
    model = Model(tmp_path, name)
    arch = model.metadata["general.architecture"]
    for key in (key for key in model.metadata if not key.startswith("general.") and key != f"{arch}.pooling_type"):
        path = model.without(key)
        refusal = loader.refusal(path)
        if refusal:
            with pytest.raises(glft.FormatError) as caught:
                glft.transformers.load(path)
            assert key.rpartition(".")[2] in str(caught.value), refusal
        elif key == UNSTATED.get(name, [""])[0]:
            with pytest.raises(glft.FormatError, match=UNSTATED[name][1]):
                load_model(path)
        else:
            glft.transformers.load(path)
            found = computed(model, path)
            if name != "tiny-bert":
                with LlamaModel(path, exact=True) as expected:
                    np.testing.assert_allclose(expected.all_logits(TOKENS), found, atol=0.02, err_msg=key)


# fmt: off
TOGETHER = {  # keys that depend on each other: the folder, the keys that are missing or added, and fields of config.json
    "head size":     ("tiny-gemma2", ["attention.key_length", "attention.value_length"], {}, {"head_dim": 16}),
    "no heads":      ("tiny-qwen3moe", ["attention.key_length", "attention.value_length"], {}, {}),
    "old scaling":   ("tiny-yarn", ["rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length"],
                      {"rope.scale_linear": 2.5}, {"rope_scaling": {"rope_type": "linear", "factor": 2.5}}),
    "linear":        ("tiny-yarn", ["rope.scaling.type"], {}, {}),
    "no scaling":    ("tiny-yarn", [], {"rope.scaling.type": "none"}, {"rope_scaling": None}),
    "no context":    ("tiny-yarn", ["rope.scaling.original_context_length"], {},
                      {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}}),
    "no window":     ("tiny-gemma3", ["attention.sliding_window", "rope.freq_base"], {},
                      {"layer_types": ["full_attention"] * 2, "rope_theta": 10000}),
    "window of 0":   ("tiny-gemma3", [], {"attention.sliding_window": 0}, {"layer_types": ["full_attention"] * 2}),
    "vocab and rope": ("tiny-llama", ["vocab_size", "rope.dimension_count", "rope.freq_base", "attention.key_length",
                                      "attention.value_length"], {}, {"vocab_size": 264, "head_dim": 16}),
    "phi3":          ("tiny-phi3", ["attention.sliding_window", "rope.dimension_count", "rope.scaling.attn_factor"], {},
                      {"sliding_window": None}),
}
# fmt: on


@pytest.mark.filterwarnings("ignore:no tokenizer is written")
@pytest.mark.parametrize("case", TOGETHER)
def test_several_keys(case: str, tmp_path: Path) -> None:
    name, missing, added, fields = TOGETHER[case]
    model = Model(tmp_path, name)
    arch = model.metadata["general.architecture"]
    path = model.without(*(f"{arch}.{key}" for key in missing), **{f"{arch}.{key}": value for key, value in added.items()})
    glft.convert(path, f"{tmp_path / 'back'}/")
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert {field: config.get(field) for field in fields} == fields
    with LlamaModel(path, exact=True) as expected:
        for source in (path, tmp_path / "back"):
            np.testing.assert_allclose(expected.all_logits(TOKENS), computed(model, source), atol=0.02)


def test_keys_that_contradict(tmp_path: Path, loader: Loader) -> None:
    """llama.cpp has sizes of keys and of values. config.json has one."""
    model = Model(tmp_path, "tiny-mistral")
    for name in ("blk.0.attn_v.weight", "blk.1.attn_v.weight"):
        model.tensors[name] = model.tensors[name][:32]
    path = model.without(**{"llama.attention.value_length": 16})
    assert not loader.refusal(path)
    with pytest.raises(glft.FormatError, match=r"expected 32 for llama\.attention\.value_length, as head_dim of .*, found 16"):
        load_model(path)
