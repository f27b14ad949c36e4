"""Perplexity and divergence. The oracle is numpy, from the logits of llama.cpp."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import glft_schema as glft
from tests.families.tiny_folders import edit_json, edit_tensors, make_folder
from tests.models.conftest import tiny_gguf
from tests.oracles.llama_model import LlamaModel
from tests.tools.command_line import assert_refused, in_this_process

TOKENS = [(i * 37 + i * i * 11) % 250 + 4 for i in range(150)]
CONTEXT = 64  # two chunks, and a rest


def predicted(path: Path, tokens: list[int], context: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns llama.cpp's log-probabilities f64[tokens, vocabulary], and the next tokens."""
    logs, targets = [], list[int]()
    with LlamaModel(path, exact=True) as model:
        for start in range(0, len(tokens) - context + 1, context):
            chunk = tokens[start : start + context]
            for position in range(context // 2, context - 1):
                targets.append(chunk[position + 1])
            logits = model.all_logits(chunk)[context // 2 : context - 1].astype(np.float64)
            logs.append(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    return np.concatenate(logs), np.array(targets)


def expected_of(one: Path, other: Path, tokens: list[int], context: int) -> glft.models.Predictions:
    (a, targets), (b, _) = (predicted(path, tokens, context) for path in (one, other))
    places = np.arange(len(targets))
    perplexities = [float(np.exp(-logs[places, targets].mean())) for logs in (a, b)]
    divergences = (np.exp(a) * (a - b)).sum(-1)
    same = float((a.argmax(-1) == b.argmax(-1)).mean())
    return glft.models.Predictions(*perplexities, float(divergences.mean()), float(divergences.max()), same, len(targets))


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A tiny model, and what Q4_0 makes of it."""
    path = tiny_gguf(tmp_path, "tiny-llama")
    glft.quantize(path, tmp_path / "quantized.gguf", "Q4_0")
    return path, tmp_path / "quantized.gguf"


def test_predictions_are_those_of_llama_cpp(pair: tuple[Path, Path], tmp_path: Path) -> None:
    one, other = pair
    glft.convert(other, tmp_path / "exact.gguf", schemes={"*": "f32"})  # llama.cpp rounds activations for other types
    expected = expected_of(one, tmp_path / "exact.gguf", TOKENS, CONTEXT)
    found = glft.models.compare_predictions(one, other, text=TOKENS, context=CONTEXT)
    assert found == pytest.approx(expected, rel=1e-4)
    assert found.mean_divergence > 0.001
    assert found.tokens == 62
    assert found.same_top < 1
    assert glft.models.perplexity(other, TOKENS, context=CONTEXT) == pytest.approx((expected.perplexity_b, 62), rel=1e-4)


def test_equal_models_do_not_diverge(pair: tuple[Path, Path]) -> None:
    seen = list[float]()
    found = glft.models.compare_predictions(
        pair[0], pair[0], chunks=1, progress=lambda name, done: seen.append(done)
    )  # on the default text
    assert found == (found.perplexity_b, found.perplexity_a, 0, 0, 1, 255)
    assert seen == [1.0, 1.0]  # for each model


class Constant(torch.nn.Module):
    """Always predicts the same."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.tensor(logits))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(*tokens.shape, -1)


HALF = Constant(0.0, 0.0)


def test_models_in_memory() -> None:
    """Perplexity and divergence are by hand."""
    found = glft.models.compare_predictions(HALF, Constant(float(np.log(3)), 0.0), text=[0, 0, 1, 0], context=4)
    divergence = 0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(0.5 / 0.25)
    assert found == pytest.approx((2, 4 / 3, divergence, divergence, 1, 1), rel=1e-6)
    assert glft.models.perplexity(Constant(0.0, 1e4), [0, 0, 0, 0], context=4) == (np.inf, 1)


def test_models_that_cannot_be_compared() -> None:
    with pytest.raises(glft.OptionError, match="expected models of one vocabulary, found 2 and 3 tokens"):
        glft.models.compare_predictions(HALF, Constant(0.0, 0.0, 0.0), text=[0, 0, 1, 0], context=4)
    with pytest.raises(glft.OptionError, match="expected a context of at least 3 tokens, found 2"):
        glft.models.perplexity(HALF, [0, 1], context=2)


@pytest.mark.parametrize("kind", ["BertModel", "BertForMaskedLM"])
def test_embedding_models_predict_nothing(kind: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-bert")
    edit_json(folder / "config.json", architectures=[kind])
    with pytest.raises(glft.OptionError, match=f"expected a causal language model, found {kind}"):
        glft.models.perplexity(folder, TOKENS, context=CONTEXT)


@pytest.mark.parametrize("kind", ["LlamaForSequenceClassification", "LlamaForTokenClassification"])
def test_classifiers_predict_no_tokens(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 264}
    with pytest.raises(glft.OptionError, match=f"expected a causal language model, found {kind}"):
        glft.models.perplexity(getattr(transformers, kind)(transformers.LlamaConfig(**sizes)), TOKENS, context=CONTEXT)


def test_models_of_different_vocabularies(tmp_path: Path) -> None:
    """B would not even run on A's tokens."""
    one, other = make_folder(tmp_path, "tiny-llama"), make_folder(tmp_path, "tiny-qwen2")
    edit_json(other / "config.json", vocab_size=100)
    edit_tensors(other, {"model.embed_tokens.weight": torch.ones(100, 64)})
    with pytest.raises(glft.OptionError, match="expected models of one vocabulary, found 264 and 100 tokens"):
        glft.models.compare_predictions(one, other, text=TOKENS, context=CONTEXT)


def test_from_the_command_line(pair: tuple[Path, Path], tmp_path: Path) -> None:
    one, other = pair
    (tmp_path / "text.txt").write_text("the a b " * 100)
    found = glft.models.compare_predictions(one, other, text="the a b " * 100, chunks=2, context=32)
    options = ["--text", tmp_path / "text.txt", "--chunks", "2", "--context", "32"]
    done = in_this_process("compare", one, other, *options)
    assert (
        f"\npredictions: perplexity {found.perplexity_a:.4f} and {found.perplexity_b:.4f}, "
        f"divergence {found.mean_divergence:.5f}, at most {found.max_divergence:.3f}, "
        f"same top token {100 * found.same_top:.3g} %, 30 tokens\n"
    ) in done.stdout
    assert json.loads(in_this_process("compare", one, other, *options, "--json").stdout)["predictions"] == found._asdict()
    done = in_this_process("compare", one, one, "--chunks", "1")
    assert_refused(done, "--chunks and --tokenizer run the models: add --run or --text FILE")
    glft.save_file({"x": torch.ones(3)}, tmp_path / "other.gguf", {"general.architecture": "mamba"}, rules=[])
    done = in_this_process("compare", one, tmp_path / "other.gguf", *options)
    problem = f"{tmp_path}/other.gguf: metadata -> general.architecture: expected a declared architecture, found 'mamba'"
    assert_not_run(done, problem, "A and B have no tensor in common")


def assert_not_run(done: subprocess.CompletedProcess[str], problem: str, compared: str) -> None:
    """Asserts that weights are compared, and that one line says why there are no predictions."""
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"glft: {problem}")
    assert compared in done.stdout
    assert "predictions: " not in done.stdout


def test_weights_of_encoders_are_compared(tmp_path: Path) -> None:
    command = ["compare", *[make_folder(tmp_path, "tiny-bert")] * 2, "--run", "--context", CONTEXT]
    done = in_this_process(*command)
    assert_not_run(done, "expected a causal language model, found Bert", "A and B hold the same weights\n")
    data = json.loads(in_this_process(*command, "--json").stdout)
    assert (data["same"], data["predictions"]) == (True, {"problem": done.stderr[6:-1]})


def test_errors_name_the_file_of_a_tensor(tmp_path: Path) -> None:
    one, other, name = tiny_gguf(tmp_path, "tiny-llama"), tmp_path / "other.gguf", "blk.0.nope.weight"
    with glft.open(one) as file:
        glft.save_file(glft.load_file(one) | {name: torch.ones(3)}, other, file.metadata, rules=[])
    done = in_this_process("compare", one, other, "--run", "--chunks", "1")
    problem = f"{other}: the llama family has no such tensor: exclude it (tensor '{name}')"
    assert_not_run(done, problem, "1 tensor is only in B; the tensors in both hold the same weights\n")
