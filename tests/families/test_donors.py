"""Checkpoints as GGUF models by the example of another: what the families' tables give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import glft_schema as glft
from tests.families.tiny_folders import CONFIGS, edit_json, edit_tensors, edited, make_folder
from tests.tools.command_line import assert_refused, in_this_process
from tests.tools.depth import some_by_default

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder beside donor.gguf."""
    folder = make_folder(tmp_path, "tiny-llama")
    glft.convert(folder, tmp_path / "donor.gguf")
    return folder


@pytest.mark.parametrize("name", some_by_default([*CONFIGS], 3))
def test_the_same_file(name: str, tmp_path: Path) -> None:
    """From the folder, and from the weights alone."""
    folder = make_folder(tmp_path, name)
    glft.convert(folder, tmp_path / "donor.gguf")
    for source in (folder, folder / WEIGHTS)[: 1 if "gpt-oss" in name else 2]:  # whose experts are several tensors each
        glft.convert(source, tmp_path / "out.gguf", like=tmp_path / "donor.gguf")
        assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "donor.gguf").read_bytes()


def test_schemes_and_metadata_take_precedence(folder: Path, tmp_path: Path) -> None:
    donor, out = tmp_path / "donor.gguf", tmp_path / "out.gguf"
    glft.convert(folder, donor, schemes={"*": "q4_0"}, metadata={"quantize.imatrix.file": "of the donor"})
    done = in_this_process(
        "convert", folder, out, "--like", donor, "--scheme", "*attn*=q8_0", "--metadata", "general.name=Tuned",
    )  # fmt: skip
    assert done.stdout.startswith(f"{folder}: mapped to GGUF as declared for the llama family, with the metadata of ")
    file = glft.open(out)
    types = [file.tensors[f"blk.0.{name}.weight"].type.name for name in ("attn_q", "ffn_up")]
    assert (types, file.metadata["general.name"]) == (["Q8_0", "Q4_0"], "Tuned")
    assert "quantize.imatrix.file" not in file.metadata


def test_quantize(tmp_path: Path) -> None:
    """The recipe gives the types; the donor may be quantized."""
    folder = make_folder(tmp_path, "tiny-gpt2")
    glft.convert(folder, tmp_path / "donor.gguf", schemes={"*": "q4_0"})
    glft.quantize(folder / WEIGHTS, tmp_path / "out.gguf", "Q8_0", like=tmp_path / "donor.gguf")
    glft.quantize(folder, tmp_path / "expected.gguf", "Q8_0")
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "expected.gguf").read_bytes()


def test_tied_output_and_dropped_buffers(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-llama")
    edit_tensors(folder, {"lm_head.weight": load_file(folder / WEIGHTS)["model.embed_tokens.weight"].clone()})
    glft.convert(folder, tmp_path / "donor.gguf")
    edit_tensors(folder, {"lm_head.weight": None, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    glft.convert(folder / WEIGHTS, tmp_path / "out.gguf", like=tmp_path / "donor.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "donor.gguf").read_bytes()


def test_of_names_in_gguf(folder: Path, tmp_path: Path) -> None:
    """Tensors with the donor's names have its layout: their values are not compared."""
    donor = glft.open(tmp_path / "donor.gguf")
    glft.save_file({name: torch.zeros(tensor.shape) for name, tensor in donor.tensors.items()}, tmp_path / "zeros.glft")
    glft.convert(tmp_path / "zeros.glft", tmp_path / "out.gguf", like=tmp_path / "donor.gguf")
    out = glft.open(tmp_path / "out.gguf")
    assert out.metadata == donor.metadata
    assert not any(tensor.dequantize().any() for tensor in out.tensors.values())


def test_prefix_of_names(tmp_path: Path) -> None:
    """Weights of a BertForMaskedLM begin with ``bert.``, and have a head that GGUF lacks."""
    folder = make_folder(tmp_path, "tiny-bert")
    glft.convert(folder, tmp_path / "donor.gguf")
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors | {"cls.predictions.bias": torch.ones(3)}, folder / WEIGHTS)
    glft.convert(folder / WEIGHTS, tmp_path / "out.gguf", like=tmp_path / "donor.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "donor.gguf").read_bytes()


def test_config_without_architecture(folder: Path, tmp_path: Path) -> None:
    expected = (tmp_path / "donor.gguf").read_bytes()
    (folder / "config.json").write_text('{"rope_scaling": [1]}')
    glft.convert(folder, tmp_path / "out.gguf", like=tmp_path / "donor.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == expected


def test_the_donor_is_not_overwritten(folder: Path) -> None:
    donor = folder.with_name("donor.gguf")
    assert_refused(in_this_process("convert", folder, donor, "--like", donor), "the output would overwrite the input")


def test_config_that_says_otherwise(folder: Path, tmp_path: Path) -> None:
    edit_json(folder / "config.json", rope_theta=7e5)
    with pytest.warns(
        glft.errors.MetadataWarning, match=r"llama.rope.freq_base is 700000.0 by config.json, and 50000.0 in donor.gguf, wh"
    ):
        glft.convert(folder, tmp_path / "out.gguf", like=tmp_path / "donor.gguf")


Q = "blk.1.attn_q.weight"
# fmt: off
OF_DONORS: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], object], str]] = {
    "shape":        (lambda t, m: t.update({Q: torch.ones(1, 64)}),
                     f"(embedding_length, head_count * key_length) of '{Q}', found [64, 1]"),
    "lacks":        (lambda t, m: t.pop(Q), f"tensor '{Q}': edited.gguf has no such tensor"),
    "more":         (lambda t, m: t.update(more=torch.ones(1)),
                     "'more': expected values for all tensors of edited.gguf, found none"),
    "blocks":       (lambda t, m: m.update({"llama.block_count": 10**6}),
                     "edited.gguf: metadata -> 4 -> value: expected 1 to 512 for llama.block_count, found 1000000"),
    "type":         (lambda t, m: m.update({"llama.block_count": glft.Typed(True, "bool")}),
                     "expected uint32 for llama.block_count, found bool"),
    "counts":       (lambda t, m: m.update({"llama.attention.head_count": glft.Typed([4, 4], "array[uint32]")}),
                     "expected uint32 for llama.attention.head_count, found [4, 4]"),
    "architecture": (lambda t, m: m.update({"general.architecture": "other"}),
                     "as the donor, found 'other': use --converter instead of --like"),
}
OF_WEIGHTS = {
    "shape": ("model.norm.weight", "tensor 'output_norm.weight': expected the shape [64], as in donor.gguf, found [3]"),
    "name":  ("output.weight", "donor.gguf has no such tensor; glft convert --exclude leaves it out"),
}
# fmt: on


def assert_not_converted(source: Path, message: str, donor: str = "donor.gguf", out: str = "out.gguf") -> None:
    parent = source.parent if source.is_dir() else source.parents[1]
    assert_refused(in_this_process("convert", source, parent / out, "--like", parent / donor), message)
    assert not (parent / out).exists()


@pytest.mark.parametrize("fault", OF_DONORS)
def test_faults_of_donors(fault: str, folder: Path) -> None:
    change, message = OF_DONORS[fault]
    edited(folder.with_name("donor.gguf"), change)
    assert_not_converted(folder / WEIGHTS, message, "edited.gguf")


@pytest.mark.parametrize("fault", OF_WEIGHTS)
def test_faults_of_weights(fault: str, folder: Path) -> None:
    name, message = OF_WEIGHTS[fault]
    edit_tensors(folder, {name: torch.zeros(3)})
    assert_not_converted(folder / WEIGHTS, message)


def test_other_donors_and_outputs(folder: Path, tmp_path: Path) -> None:
    assert_not_converted(folder, "expected GGUF as the output for like (--like), found another format", out="out.glft")
    assert_not_converted(folder, "expected a GGUF model as the donor, found 'safetensors'", f"tiny-llama/{WEIGHTS}")
    glft.split(tmp_path / "donor.gguf", tmp_path / "part", max_tensors=12)
    problem = "expected a whole model, found file 2 of 2: open part-00001-of-00002.gguf"
    assert_not_converted(folder, problem, "part-00002-of-00002.gguf")


def test_a_quantized_source(tmp_path: Path) -> None:
    """Its tensors are mapped by operations that keep no bytes, and are known to be quantized."""
    folder, donor, source = make_folder(tmp_path, "tiny-llama"), tmp_path / "donor.gguf", tmp_path / "in.glft"
    glft.quantize(folder, donor, "Q8_0")
    glft.save_file(glft.weights.open_checkpoint(folder), source, schemes={"*_proj.weight": "q8_per_channel"})
    with pytest.raises(glft.SchemeError, match=r"^14 tensors \(Q8_per_channel\) are quantized already"):
        glft.convert(source, tmp_path / "out.gguf", like=donor)
    done = in_this_process("convert", source, tmp_path / "out.gguf", "--like", donor, "--allow-requantize")
    assert "quantized already: 14 tensors (Q8_per_channel); the new type adds its own error" in done.stdout
