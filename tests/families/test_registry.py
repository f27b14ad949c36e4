"""Pages of one's own: registered, announced by packages, and checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import glft_schema as glft
from glft_schema.architectures import T, families, register_family
from glft_schema.families import registry
from glft_schema.families.pages import FAMILIES
from glft_schema.families.pages.llama import LLAMA
from tests.families.test_folders import there_and_back
from tests.families.tiny_folders import edit_json, make_folder
from tests.formats.test_plugins import package, run

__all__ = ["package"]
OWN = replace(LLAMA, architectures=("OwnForCausalLM",), model_type="own")
SOURCE = """
from dataclasses import replace
from glft_schema.families.pages.llama import LLAMA

OWN = replace(LLAMA, architectures=("OwnForCausalLM",), model_type="own")
"""


@pytest.fixture(autouse=True)
def registered_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets families that a test registers."""
    monkeypatch.setattr(registry, "REGISTERED", [*FAMILIES])


def own_folder(parent: Path) -> Path:
    folder = make_folder(parent, "tiny-llama")
    edit_json(folder / "config.json", architectures=["OwnForCausalLM"], model_type="own")
    return folder


def test_a_registered_page_converts_its_folders(tmp_path: Path) -> None:
    assert register_family(OWN) is register_family(OWN) is OWN
    assert [*families()][-1] is OWN
    folder = own_folder(tmp_path)
    back = there_and_back(folder)
    first, again = (load_file(path / "model.safetensors") for path in (folder, back))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_page_of_a_package(package: Any, tmp_path: Path) -> None:
    site = package("own", SOURCE, families="OWN")
    code = (
        "import sys; from glft_schema.architectures import families; print([family.architectures for family in families()][-1])"
    )
    assert run(site, code).stdout == "('OwnForCausalLM',)\n"
    code = "import glft_schema as glft, sys; glft.convert(*sys.argv[1:])"
    folder, out = own_folder(tmp_path), tmp_path / "out.gguf"
    assert run(site, code, folder, out).stderr == ""
    assert glft.open(out).metadata["general.architecture"] == OWN.arch
    assert "architectures: expected a declared architecture" in run(tmp_path / "nothing", code, folder, out).stderr


def test_known_classes_load_no_plugin(package: Any, tmp_path: Path) -> None:
    site = package("broken", "print('loaded')", families="OWN")
    code = "from glft_schema.families.folders import declared_family as of; from pathlib import Path; import sys; "
    done = run(site, f"{code}print(of(Path(sys.argv[1])).arch)", make_folder(tmp_path, "tiny-llama"))
    assert (done.stdout, done.stderr) == ("llama\n", "")


def test_known_gguf_models_load_no_plugin(package: Any) -> None:
    site = package("broken", "print('loaded')", families="OWN")
    code = "from glft_schema.families.export import family_in_gguf as of; print(of({'general.architecture': 'llama'}).arch)"
    assert run(site, code).stdout == "llama\n"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
def test_pages_of_this_package_pass_the_checks(family: glft.architectures.Family) -> None:
    assert registry.first_fault(family) == ""


# fmt: off
NORM = LLAMA.tensors[1]
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a class of another page": ({"architectures": ("OwnForCausalLM", "LlamaForCausalLM")},
                                "expected classes without a page, found 'LlamaForCausalLM'"),
    "no class":           ({"architectures": ()}, "architectures: expected a class of config.json, found none"),
    "a vocabulary":       ({"vocabularies": ("unknown",)}, "vocabularies: expected one of sentencepiece, "),
    "two tensors":        ({"tensors": (*LLAMA.tensors, NORM)},
                           "tensors: expected one row for 'output_norm.weight', found several"),
    "no block count":     ({"keys": LLAMA.keys[1:]}, "keys: expected a row for block_count, found none"),
    "no embedding":       ({"tensors": LLAMA.tensors[1:]}, "tensors: expected a row for token_embd.weight, found none"),
    "a placeholder":      ({"tensors": (*LLAMA.tensors, T("x.{n}", "blk.{i}.x", "embd"))},
                           "tensors -> x.{n}: expected the placeholders {i} and {part}, found {n}"),
    "a block":            ({"tensors": (*LLAMA.tensors, T("x.{i}", "x", "embd"))},
                           "tensors -> x.{i}: expected {i} in both names, found 'x'"),
    "no dims":            ({"tensors": (*LLAMA.tensors, T("x.{i}", "blk.{i}.x"))},
                           "tensors -> x.{i}: expected a row with the dims of 'blk.{i}.x', found none"),
    "a size":             ({"tensors": (*LLAMA.tensors, T("x.{i}", "blk.{i}.x", "embed ff"))},
                           "tensors -> blk.{i}.x: expected a size as dim, found 'embed'; did you mean 'embd'?"),
    "a condition":        ({"tensors": (*LLAMA.tensors, T("x.{i}", "blk.{i}.x", "embd", when="no expert"))},
                           "tensors -> blk.{i}.x: expected a size or a tensor of the block as condition, found 'expert'"),
}
# fmt: on


@pytest.mark.parametrize("case", FAULTS)
def test_a_page_that_cannot_work_is_refused(case: str) -> None:
    parts, problem = FAULTS[case]
    with pytest.raises(ValueError, match=r"^llama: ") as caught:
        register_family(replace(OWN, **parts))
    assert str(caught.value).startswith(f"llama: {problem}")
    assert len(registry.REGISTERED) == len(FAMILIES)


def test_other_values_are_refused() -> None:
    with pytest.raises(TypeError, match="expected a Family, found 5"):
        register_family(5)  # type: ignore[arg-type]
