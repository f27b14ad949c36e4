"""Numbers of the metadata that explain many findings.

The oracle is llama.cpp's loader: it loads the file with the number that is named.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema as glft
from glft_schema.checks.rules import report
from tests.oracles.llama_loader import Loader
from tests.tools.command_line import in_this_process

KEYS = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "llama.embedding_length": 96,
    "llama.block_count": 3,
    "llama.feed_forward_length": 160,
    "llama.attention.head_count": 6,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 8,
    "tokenizer.ggml.model": "no_vocab",
}
EXPERTS = {"llama.expert_count": 4, "llama.expert_used_count": 2}
ATTENTION = {"attn_norm": (96,), "attn_q": (96, 96), "attn_k": (32, 96), "attn_v": (32, 96), "attn_output": (96, 96)}
DENSE = {"ffn_norm": (96,), "ffn_gate": (160, 96), "ffn_up": (160, 96), "ffn_down": (96, 160)}
MIXTURE = {"ffn_norm": (96,), "ffn_gate_inp": (4, 96), "ffn_gate_exps": (4, 160, 96), "ffn_up_exps": (4, 160, 96)}
MIXTURE |= {"ffn_down_exps": (4, 96, 160)}


def write(path: Path, metadata: dict[str, Any], feed_forward: dict[str, tuple[int, ...]]) -> Path:
    shapes = {f"blk.{i}.{name}.weight": shape for i in range(3) for name, shape in {**ATTENTION, **feed_forward}.items()}
    shapes |= {"token_embd.weight": (8, 96), "output_norm.weight": (96,), "output.weight": (8, 96)}
    keys = {key: value for key, value in metadata.items() if value is not None}
    glft.save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, path, keys, rules=[])
    return path


@pytest.mark.parametrize(
    ("changed", "text", "right"),
    [
        ({"attention.head_count": 5}, " = 5 explains 12 of 12", 6),
        ({"attention.head_count_kv": 3}, " = 3 explains 6 of 6", 2),
        ({"attention.head_count_kv": None}, "the missing llama.attention.head_count_kv explains 6 of 6", 2),
        ({"embedding_length": 128}, " = 128 explains 30 of 30", 96),
        ({"feed_forward_length": 96}, " = 96 explains 9 of 9", 160),
        ({"block_count": 1}, " = 1 explains 2 of 2", 3),
        ({"vocab_size": 9}, " = 9 explains 2 of 2", 8),
        ({"expert_count": 4, "expert_used_count": 2}, "llama.expert_count = 4 explains ", 0),
        ({"mixture": True, "expert_count": 8}, " = 8 explains 12 of 12", 4),
        ({"mixture": True, "feed_forward_length": 192}, " = 192 explains 9 of 9", 160),
        ({"attention.key_length": 24}, " = 24 explains ", 16),
    ],
)
def test_the_loader_takes_the_value_that_is_named(changed: dict[str, Any], text: str, right: int, tmp_path: Path) -> None:
    is_mixture = "mixture" in changed
    keys = (
        KEYS | (EXPERTS if is_mixture else {}) | {f"llama.{key}": value for key, value in changed.items() if key != "mixture"}
    )
    feed_forward = MIXTURE if is_mixture else DENSE
    path = write(tmp_path / "model.gguf", keys, feed_forward)
    with glft.open(path) as file:
        cause = report(file).cause
        found = glft.check_rules(file, "llama.cpp")
    assert text in cause
    assert cause.endswith(f"violations: the tensors fit {right}")
    named = re.search(r"llama\.[a-z_.]+", cause)
    assert named
    fixed = (
        keys | {named[0]: right} | ({"llama.expert_used_count": 0} if named[0] == "llama.expert_count" and not right else {})
    )
    with Loader() as loader:
        assert loader.refusal(path)
        assert loader.refusal(write(tmp_path / "fixed.gguf", fixed, feed_forward)) == ""
    with glft.open(path) as file:  # trying values changes nothing
        assert glft.check_rules(file, "llama.cpp") == found
    done = in_this_process("verify", path)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1] == cause
    assert json.loads(in_this_process("verify", path, "--json").stdout)["rules"]["cause"] == cause


def test_tokens_are_a_number(tmp_path: Path) -> None:
    tokens = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [f"t{i}" for i in range(7)]}
    with glft.open(write(tmp_path / "model.gguf", KEYS | tokens, DENSE)) as file:
        cause = report(file).cause
    assert cause == "tokenizer.ggml.tokens with 7 elements explains 2 of 2 violations: the tensors fit 8"


@pytest.mark.parametrize(
    "changed",
    [
        {"attention.layer_norm_rms_epsilon": None},  # one finding
        {"attention.layer_norm_rms_epsilon": None, "vocab_size": 9, "context_length": None},  # 2 of 4
        {"block_count": 4},  # one finding
        {"attention.head_count": None, "attention.layer_norm_rms_epsilon": None},  # no number
    ],
)
def test_no_cause(changed: dict[str, Any], tmp_path: Path) -> None:
    keys = KEYS | {f"llama.{key}": value for key, value in changed.items()}
    with glft.open(write(tmp_path / "model.gguf", keys, DENSE)) as file:
        verdict = report(file)
    assert (verdict.cause, verdict.failures > 0) == ("", True)


def test_cost_is_bounded(tmp_path: Path) -> None:
    """Few equations are solved of tensors with many different dims. Solving all takes 15 s."""
    dims = {f"blk.{i}.{name}.weight": (96 + i, 7 * i + j) for i in range(60) for j, name in enumerate((*ATTENTION, *DENSE), 1)}
    glft.save_file({name: torch.zeros(shape) for name, shape in dims.items()}, tmp_path / "m.gguf", KEYS, rules=[])
    with glft.open(tmp_path / "m.gguf") as file:
        start = time.process_time()
        assert report(file).failures > 50
        assert time.process_time() - start < 10


def test_a_page_names_the_cause(tmp_path: Path) -> None:
    path, page = write(tmp_path / "model.gguf", KEYS | {"llama.vocab_size": 9}, DENSE), tmp_path / "page.html"
    assert in_this_process("view", path, "-o", page).returncode == 0
    text = page.read_text()
    assert "2 rule violations (spec, ggml, llama.cpp); llama.cpp refuses the file." in text
    assert "llama.vocab_size = 9 explains 2 of 2 violations: the tensors fit 8" in text
    write(path, KEYS | {"general.architecture": "flux"}, DENSE)
    assert in_this_process("view", path, "-o", page).returncode == 0
    assert "not checked, <bdi>no rules for the architecture &#39;flux&#39;</bdi>" in page.read_text()
