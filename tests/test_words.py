"""Suggestions for misspelled names, from Python and on the command line."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema as glft
from glft_schema.words import MissingKeyError, suggestion
from tests.tools.command_line import in_this_process


@pytest.fixture
def model(tmp_path: Path) -> Path:
    metadata = {"general.architecture": "toy", "general.name": "a"}
    glft.save_file({"blk.0.attn_q.weight": torch.ones(2, 32)}, tmp_path / "model.gguf", metadata)
    return tmp_path / "model.gguf"


@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (["--limit", "nestin=3", "inspect", "MODEL"], "'nesting'"),
        (["convert", "MODEL", "o.gguf", "--scheme", "q4k"], "'q4_k'"),
        (["convert", "MODEL", "o.gguf", "--format", "ggfu"], "'GGUF'"),
        (["convert", "MODEL", "o.gguf", "--rules", "gmml"], "'ggml'"),
        (["verify", "MODEL", "--rules", "llamacpp"], "'llama.cpp'"),
        (["quantize", "MODEL", "o.gguf", "Q4KM"], "'Q4_K_M'"),
        (["edit", "MODEL", "--remove", "general.nam"], "'general.name'"),
        (["explain", "MODEL", "--tensor", "blk.0.attn_k.weight"], "'blk.0.attn_q.weight'"),
        (["explain", "MODEL", "--color", "nver"], "'never'"),
        (["get-tensor", "MODEL", "blk.0.attn_q.weight", "o.npy", "--dtype", "flot16"], "'float16'"),
        (["schema", "Q4K"], "'q4_k'"),
        (["schema", "q8"], "'q8_per_channel', 'q8_0' or 'q8_1'"),
        (["schema", "gguf", "--as", "kaitia"], "'kaitai'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_errors_suggest_words(arguments: list[str], suggested: str, model: Path) -> None:
    done = in_this_process(*(model if word == "MODEL" else word for word in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"; did you mean {suggested}?\n")


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("OUTPUT", "; did you mean 'output'?"),  # alone, though others begin with it
        ("out", "; did you mean 'output_norm', 'output' or 'output_bias'?"),
        ("uotput", "; did you mean 'output'?"),
        ("weight", ""),
        ("", ""),
    ],
)
def test_equal_names_come_before_longer_and_closest_ones(name: str, suggested: str) -> None:
    assert suggestion(name, ["output_norm", "output", "output_bias", "output_scale", "token_embd"]) == suggested


@pytest.mark.parametrize(
    ("look_up", "text"),
    [
        (lambda file: file.tensors["blk.0.attn_k.weight"], "'blk.0.attn_k.weight'; did you mean 'blk.0.attn_q.weight'?"),
        (lambda file: file.get_slice("BLK.0.attn_q.weight"), "'BLK.0.attn_q.weight'; did you mean 'blk.0.attn_q.weight'?"),
        (lambda file: file.metadata["general.nam"], "'general.nam'; did you mean 'general.name'?"),
        (lambda file: file.metadata.type_of("general.nam"), "'general.nam'; did you mean 'general.name'?"),
        (lambda file: file.format.types["q4k"], "'q4k'; did you mean 'q4_k'?"),
        (lambda file: file.tensors["nothing like it"], "'nothing like it'"),
        (lambda file: file.metadata[3], "3; keys are names, such as 'general.architecture'"),
        (lambda file: file.tensors[0], "0; keys are names, such as 'blk.0.attn_q.weight'"),
        (lambda file: file.format.types[3.5], "3.5"),
    ],
)
def test_key_errors_suggest_the_closest_key(look_up: Callable[[Any], object], text: str, model: Path) -> None:
    with glft.open(model) as file, pytest.raises(MissingKeyError) as caught:
        look_up(file)
    assert str(caught.value) == text
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (type(copied), copied.args) == (KeyError, caught.value.args)
