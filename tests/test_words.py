"""Suggestions for misspelled names; see cli/test_refusals.py for those of commands."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glft_schema as glft
from glft_schema.words import MissingKeyError, suggestion


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
def test_key_errors_suggest_the_closest_key(look_up: Callable[[Any], object], text: str, path: Path) -> None:
    metadata = {"general.architecture": "toy", "general.name": "a"}
    glft.save_file({"blk.0.attn_q.weight": np.ones(2, "f4")}, path, metadata, format="gguf")
    with glft.open(path) as file, pytest.raises(MissingKeyError) as caught:
        look_up(file)
    assert str(caught.value) == text
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (type(copied), copied.args) == (KeyError, caught.value.args)
