"""Names of tensors in folders: any prefix, or none."""

from __future__ import annotations

import pytest

from glft_schema.families.page import Family
from glft_schema.families.pages import FAMILIES
from glft_schema.families.tensor_names import endings, family_with_names, names_on_page

VISION = (
    "visual.blocks.0.attn.qkv.weight",
    "model.vision_tower.layers.0.mlp.fc1.weight",
    "multi_modal_projector.linear_1.bias",
)
ALIKE = {  # classes whose names are those of an earlier page, which has more tensors, or another prefix
    "ArceeForCausalLM": "LlamaForCausalLM",
    "Cohere2ForCausalLM": "CohereForCausalLM",
    "GemmaForCausalLM": "LlamaForCausalLM",
    "Gemma3TextModel": "Gemma3ForCausalLM",
    "GPTBigCodeForCausalLM": "GPT2LMHeadModel",
}


def names_of(family: Family) -> list[str]:
    """Returns the names of a folder: one for each row, without parts of experts."""
    rows = [row for row in family.tensors if row.name and row.written]
    return [row.name.format(i=0, part=0) + next(iter(endings(row).values())) for row in rows]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
@pytest.mark.parametrize("prefix", ["", "model.", "language_model.", "language_model.model.", "model.language_model.", "own"])
def test_any_prefix_of_any_family(family: Family, prefix: str) -> None:
    prefix = family.prefix or family.body if prefix == "own" else prefix
    expected = [name for name in names_of(family) if not family.drops(name)]
    head = {name for name in expected if family.body and not name.startswith(family.body)}
    stored = {name: name if name in head else prefix + name.removeprefix(family.body) for name in expected}
    found = names_on_page(stored.values(), family)
    assert [found[stored[name]] for name in expected] == expected
    assert names_on_page([*stored.values(), *VISION], family) == found


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
def test_a_family_is_found_by_names(family: Family) -> None:
    found = family_with_names(names_of(family), FAMILIES)
    assert found is not None
    expected = ALIKE.get(family.architectures[0])
    assert expected == found.architectures[0] if expected else {*names_of(found)} == {*names_of(family)}


def test_a_dropped_head_has_no_prefix() -> None:
    (gemma2,) = (family for family in FAMILIES if family.arch == "gemma2")
    assert names_on_page(["model.norm.weight", "lm_head.weight"], gemma2) == {"model.norm.weight": "model.norm.weight"}


def test_no_family_has_these_names() -> None:
    assert family_with_names(["model.layers.0.time_mix.key.weight"], FAMILIES) is None
