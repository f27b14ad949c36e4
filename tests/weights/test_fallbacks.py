"""Ordered schemes, fallback types, and what `strict` refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema as glft
from glft_schema import SchemeError, convert, save_file
from glft_schema.errors import SimilarKeyWarning
from glft_schema.formats.file_types import MOSTLY
from glft_schema.formats.gguf import GGUF
from glft_schema.weights.fallback_types import FALLBACKS, fallback

WIDTHS = {"a.weight": 256, "b.weight": 64, "c.weight": 33}
STATE = {**{name: torch.randn(2, width) for name, width in WIDTHS.items()}, "norm.weight": torch.ones(256)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.gguf"
    save_file(STATE, path, {"general.architecture": "toy"})
    return path


def types(path: Path) -> list[str]:
    with glft.open(path) as file:
        return [tensor.type.scheme for tensor in file.tensors.values()]


@pytest.mark.parametrize(
    ("schemes", "expected"),
    [
        ({"*": "q4_k"}, ["q4_k", "q5_0", "f16", "f32"]),
        ({"*": "iq4_xs"}, ["iq4_xs", "iq4_nl", "f16", "f32"]),
        ([("*", "q8_0"), ("*", "q4_k")], ["q4_k", "q8_0", "f16", "f32"]),
        ([("*", "q4_k"), ("*", "q8_0")], ["q8_0", "q8_0", "f16", "f32"]),
        ([("*", "f32"), ("*", "q8_0"), ["*", "q6_k"]], ["q6_k", "q8_0", "f32", "f32"]),
        ([("norm.weight", "f16"), ("c.*", "bf16"), ("*", "q2_k")], ["q2_k", "q4_0", "bf16", "f16"]),
    ],
)
def test_fallbacks_apply_only_if_no_pattern_fits(source: Path, tmp_path: Path, schemes: Any, expected: list[str]) -> None:
    convert(source, tmp_path / "out.gguf", schemes=schemes)
    assert types(tmp_path / "out.gguf") == expected


def test_the_report_says_what_was_asked_for(source: Path, tmp_path: Path) -> None:
    written = {tensor.name: tensor for tensor in convert(source, tmp_path / "out.gguf", schemes={"*": "q4_k"})}
    assert [str(tensor.asked) for tensor in written.values()] == ["Q4_K"] * 4
    assert written["b.weight"].note == "not q4_k: expected a row length that is a multiple of 256, found 64"
    assert written["norm.weight"].note.startswith("not q4_k: it has fewer than two dims")


@pytest.mark.parametrize(
    ("schemes", "message"),
    [
        (
            {"*": "q4_k"},
            r"2 tensors have none of the types asked for: 'b.weight' \(not q4_k: expected .*\); 'c.weight' \(not q4",
        ),
        ({"*": "q8_0"}, r"1 tensor has none of the types asked for: 'c.weight' \(not q8_0: expected a row length"),
    ],
)
def test_strict(source: Path, tmp_path: Path, schemes: Any, message: str) -> None:
    with pytest.raises(SchemeError, match=message):
        convert(source, tmp_path / "out.gguf", schemes=schemes, strict=True)
    assert not (tmp_path / "out.gguf").exists()
    convert(source, tmp_path / "out.gguf", schemes=[("*", "f16"), ("*", "q8_0"), ("*", "q4_k")], strict=True)
    assert types(tmp_path / "out.gguf") == ["q4_k", "q8_0", "f16", "f32"]


def test_more_than_three_that_strict_refuses(tmp_path: Path) -> None:
    state = {f"{number}.weight": torch.zeros(2, 3) for number in range(5)}
    with pytest.raises(SchemeError, match=r"^5 tensors have .*'2.weight' \([^)]*\) and 2 more$"):
        save_file(state, tmp_path / "out.gguf", schemes={"*": "q8_0"}, strict=True)


def test_a_new_key_that_resembles_a_known_one(source: Path, tmp_path: Path) -> None:
    with pytest.warns(SimilarKeyWarning, match="'general.nmae' resembles the well-known key 'general.name'") as warned:
        convert(source, tmp_path / "out.gguf", metadata={"general.nmae": "x", "general.name": "x", "own.key": "x"})
    assert [warning.filename for warning in warned] == [__file__]  # the caller's line, not one of the package


def test_tied_tensors_keep_what_was_asked(tmp_path: Path) -> None:
    tied = torch.randn(2, 64)
    with pytest.warns(glft.errors.TiedWarning):
        written = save_file({"a": tied, "b": tied}, tmp_path / "out.glft", schemes={"a": "f16", "b": "q8_per_channel"})
    assert [tensor.asked.scheme for tensor in written] == ["f16", "q8_per_channel"]


def test_every_encoder_has_a_way_out() -> None:
    for type_ in GGUF.types:
        if type_.has_encoder and type_.refusal((1, 33)) and type_.scheme not in ("q8_1", "q8_k"):
            assert fallback(type_, (2, 33), GGUF.types) == GGUF.types["f16"], type_
    assert {*FALLBACKS} <= {*MOSTLY}
