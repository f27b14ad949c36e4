"""Refusals of the quantizer: what is missing and what to do, and nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema as glft
from glft_schema import OptionError, SchemeError, Typed, quantize
from tests.quantizer import models


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A llama of two layers, in F32."""
    path = tmp_path / "in.gguf"
    models.write(path, models.keys("llama", 2, 2, 1, 0), models.tensors(2, 0, tied=True, fused=False, width=256, down=64))
    return path


@pytest.mark.parametrize(
    ("recipe", "options", "error", "message"),
    [
        ("Q4_K_X", {}, OptionError, "expected a file type, one of F32, F16, .*; found 'Q4_K_X'"),
        (99, {}, OptionError, "expected a file type, .*; found 99"),
        ("IQ2_M", {}, SchemeError, "iq2_s, for tensor 'blk.0.attn_k.weight', requires an importance matrix, found none"),
        ("Q2_K_S", {}, SchemeError, "q2_k, for tensor .*, requires an importance matrix, found none"),
        ("Q8_0", {"tensor_types": [("(", "q8_0")]}, OptionError, r"expected a regular expression, found '\(': missing \)"),
        ("Q8_0", {"tensor_types": [("ffn", "q9")]}, SchemeError, "ggml has no type 'q9': expected"),
        ("Q8_0", {"output_tensor_type": "q8_1x"}, SchemeError, "ggml has no type 'q8_1x': expected"),
        ("Q8_0", {"include_weights": ["a"], "exclude_weights": ["b"]}, OptionError,
         "expected include_weights or exclude_weights .*, found both"),
        ("Q8_0", {"keep_split": True}, OptionError, "expected a file of a set for keep_split .*, found a single file"),
        ("Q8_0", {"importance": {"blk.7.attn_q.weight": torch.ones(64)}}, OptionError,
         "the importance matrix covers none of these tensors"),
    ],
)  # fmt: skip
def test_refused(source: Path, recipe: str | int, options: dict[str, Any], error: type[Exception], message: str) -> None:
    out = source.with_name("out.gguf")
    with pytest.raises(error, match=message):
        quantize(source, out, recipe, **options)
    assert not out.exists()


def test_a_quantized_source(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "q8_0.gguf", "Q8_0")
    with pytest.raises(SchemeError, match=r"quantized already, as q8_0; allow_requantize \(--allow-requantize\) makes it q6_k"):
        quantize(tmp_path / "q8_0.gguf", tmp_path / "out.gguf", "Q4_K_M")
    again = quantize(tmp_path / "q8_0.gguf", tmp_path / "out.gguf", "q4_k_m", allow_requantize=True)
    assert {tensor.type.name for tensor in again.tensors} >= {"F32", "Q4_K", "Q6_K"}
    same = quantize(tmp_path / "q8_0.gguf", tmp_path / "out.gguf", 7)
    assert all(tensor.copied for tensor in same.tensors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": None}, "expected the key general.architecture, found none: a recipe needs"),
        ({"llama.block_count": None}, "expected an integer at the key llama.block_count, found None"),
        ({"llama.block_count": Typed("2", "string")}, "expected an integer at the key llama.block_count, found '2'"),
        ({"llama.attention.head_count": Typed([], "array[uint32]")}, r"the key llama.attention.head_count, found \[\]"),
    ],
)
def test_a_key_that_recipes_need(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    metadata = {key: value for key, value in (models.keys("llama", 2, 2, 1, 0) | changes).items() if value is not None}
    models.write(tmp_path / "in.gguf", metadata, models.tensors(2, 0, tied=True, fused=False, width=64, down=64))
    with pytest.raises(SchemeError, match=message):
        quantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "Q4_K_M")


@pytest.mark.parametrize("name", ["ffn_down.weight", "blk.2.ffn_down_exps.weight"])
def test_a_layer_of_experts_without_its_number(tmp_path: Path, name: str) -> None:
    models.write(tmp_path / "in.gguf", models.keys("llama", 2, 2, 1, 4), {name: torch.zeros(4, 2, 256)})
    with pytest.raises(SchemeError, match=f"expected a name that begins with blk.N. with N below 2, found '{name}'"):
        quantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "Q4_K_M")


def test_a_model_without_metadata(tmp_path: Path) -> None:
    glft.save_file({"blk.0.attn_q.weight": torch.ones(2, 64)}, tmp_path / "in.safetensors")
    with pytest.raises(SchemeError, match="glft convert --scheme needs none"):
        quantize(tmp_path / "in.safetensors", tmp_path / "out.gguf", "Q8_0")
