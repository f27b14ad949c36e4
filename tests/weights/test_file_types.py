"""The key ``general.file_type`` of new GGUF files. Its codes are of llama.h, enum llama_ftype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema as glft

WEIGHTS = {"blk.0.w": torch.randn(2, 256), "blk.1.w": torch.randn(2, 256), "norm": torch.ones(64)}
MODEL, KEY = {"general.architecture": "toy"}, "general.file_type"
Q4_0_AND_F16 = {"blk.0.*": "q4_0", "blk.1.*": "f16"}


def entries(path: Path) -> list[tuple[str, Any]]:
    with glft.open(path) as file:
        return [*file.metadata.items()]


@pytest.mark.parametrize(
    ("stated", "schemes", "found"),
    [
        (3, {}, 0),
        (3, {"*": "q4_0"}, 2),
        (3, Q4_0_AND_F16, 2),
        (1, Q4_0_AND_F16, 1),
        (0, {"*": "q4_0"}, 2),  # though a norm is F32
        (14, {"*": "q4_k"}, 14),  # a mix
        (15, {"*": "q4_k"}, 15),
        (["x"], {}, ["x"]),
        (3, {"*.w": "f64"}, None),  # which has no code
    ],
)
def test_a_wrong_type_is_corrected(stated: Any, schemes: dict[str, str], found: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    glft.save_file(WEIGHTS, path, {KEY: stated, "toy.n": 1}, schemes=schemes, rules=())
    assert entries(path) == [*[(KEY, found)] * (found is not None), ("toy.n", 1)]


def test_the_type_is_kept_if_most_weights_are_copied(tmp_path: Path) -> None:
    glft.save_file(WEIGHTS, tmp_path / "m.gguf", schemes={"*": "q4_k"})
    with glft.open(tmp_path / "m.gguf") as file:
        glft.save_file({**file.tensors, "blk.1.w": WEIGHTS["blk.1.w"]}, tmp_path / "out.gguf", {KEY: 2})
    assert entries(tmp_path / "out.gguf") == [(KEY, 2)]


@pytest.mark.parametrize(
    ("before", "schemes", "added", "found"),
    [
        (MODEL, {"*": "q8_0"}, {}, 7),
        (MODEL, {"*": "q4_k"}, {}, 15),
        (MODEL, {"*": "iq4_nl"}, {}, 25),
        (MODEL, {"*": "f16"}, {}, 1),
        (MODEL, {"*": "bf16"}, {}, 32),
        (MODEL, {"*": "f32"}, {KEY: 3}, 3),
        (MODEL, {"*": "f64"}, {}, None),
        (MODEL | {KEY: 0}, {"*": "f64"}, {}, None),
        (MODEL, {}, {}, None),
        ({"toy.key": 1}, {"*": "q8_0"}, {}, None),
    ],
)
def test_a_converted_model_has_the_type_of_most_weights(
    before: dict[str, Any], schemes: dict[str, str], added: dict[str, Any], found: int | None, tmp_path: Path
) -> None:
    glft.save_file(WEIGHTS, tmp_path / "m.gguf", before)
    glft.convert(tmp_path / "m.gguf", tmp_path / "out.gguf", schemes=schemes, metadata=added)
    with glft.open(tmp_path / "out.gguf") as file:
        assert file.metadata.get(KEY) == found
        assert found is None or file.metadata.type_of(KEY) == "uint32"


def test_a_type_kept_as_text_is_not_that_of_dequantized_weights(tmp_path: Path) -> None:
    glft.save_file(WEIGHTS, tmp_path / "m.gguf", MODEL | {KEY: 15}, schemes={"*": "q4_k"})
    glft.convert(tmp_path / "m.gguf", tmp_path / "m.safetensors")
    glft.convert(tmp_path / "m.safetensors", tmp_path / "out.gguf")
    with glft.open(tmp_path / "out.gguf") as file:
        assert ({*map(str, (tensor.type for tensor in file.tensors.values()))}, file.metadata[KEY]) == ({"F32"}, 0)
