"""Suggestions for names and keys with a typo: the closest one, found with bounded work."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import pytest

from glft_schema import SchemeError
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.weights import similar_keys
from glft_schema.weights.patterns import names_matching
from glft_schema.weights.similar_keys import KEYS, LONGEST, similar_key, warn_of_typos
from glft_schema.words import COMPARED, closest

NAMES = [
    f"model.layers.{layer}.mlp.experts.{expert}.{part}.weight"
    for layer in range(8)
    for expert in range(16)
    for part in ("up_proj", "down_proj", "gate_proj")
] + [f"model.layers.{layer}.self_attn.{part}_proj.weight" for layer in range(8) for part in "qkvo"]
TYPOS = {
    "model.layers.5.mlp.experts.13.up_prj.weight": "model.layers.5.mlp.experts.13.up_proj.weight",
    "model.layer.5.mlp.experts.13.gate_proj.weight": "model.layers.5.mlp.experts.13.gate_proj.weight",
    "model.layers.7.self_attn.oproj.weight": "model.layers.7.self_attn.o_proj.weight",
    "layers.7.self_attn.v_proj.weight": "model.layers.7.self_attn.v_proj.weight",
    "model.layers.6.self_attn.q_proj": "model.layers.6.self_attn.q_proj.weight",
    "*.layers.6.self_atn.k_proj.weight": "model.layers.6.self_attn.k_proj.weight",
    "XYZ": None,
    "": None,
}


@pytest.mark.parametrize("typo", TYPOS)
def test_suggests_what_difflib_finds_among_all(typo: str) -> None:
    assert difflib.get_close_matches(typo, NAMES, n=1) == [name for name in (closest(typo, NAMES),) if name is not None]
    if typo:
        hint = f"; did you mean '{TYPOS[typo]}'?" if TYPOS[typo] else ""
        with pytest.raises(SchemeError) as caught:
            names_matching(typo, dict.fromkeys(NAMES))
        assert str(caught.value) == f"expected a tensor that matches '{typo}', found none{hint}"


def test_names_that_contain_a_short_text_are_listed() -> None:
    for text, names in (
        ("q_p", "'model.layers.0.self_attn.q_proj.weight', 'model.layers.1.self_attn.q_proj.weight'"),
        ("6.self_attn.V", "'model.layers.6.self_attn.v_proj.weight'"),
    ):
        with pytest.raises(SchemeError) as caught:
            names_matching(text, dict.fromkeys(NAMES))
        assert str(caught.value).startswith(
            f"expected a tensor that matches '{text}', found none; names that contain it: {names}"
        )


def test_few_names_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """difflib takes a third of a millisecond for each, and there may be 200,000."""
    compared, original = list[int](), difflib.get_close_matches

    def counting(text: str, names: Sequence[str], **options: Any) -> list[str]:
        compared.append(len(names))
        return original(text, names, **options)

    monkeypatch.setattr(difflib, "get_close_matches", counting)
    assert closest("name.1234.wieght", [f"name.{number}.weight" for number in range(5000)]) == "name.1234.weight"
    assert closest("short", ["long" * 100_000] * (COMPARED + 1)) is None
    assert compared == [COMPARED, 0]


def test_few_keys_are_checked_for_typos(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typo of each letter is tried, and metadata of a file may have long keys, and many."""
    metadata = WITH_TYPES.metadata.metadata({"general.architecture": "llama"})
    architecture = "a" * (LONGEST - len(".block_cuont"))
    assert similar_key(f"{architecture}.block_cuont", metadata) == f"{architecture}.block_count"
    assert similar_key(f"{architecture}a.block_cuont", metadata) is None
    assert similar_key("General.Name", metadata) == "general.name"
    checked = list[str]()
    monkeypatch.setattr(similar_keys, "similar_key", lambda key, metadata: checked.append(key))
    warn_of_typos((f"key.{number}" for number in range(2 * KEYS)), metadata)
    assert len(checked) == KEYS
