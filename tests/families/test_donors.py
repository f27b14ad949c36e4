"""Checkpoints as GGUF models by the example of another: what the families' tables give."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import glft_schema as glft
from tests.families.test_folders import edit_config, edit_tensors
from tests.families.tiny_folders import CONFIGS, make_folder
from tests.tools.command_line import assert_refused, in_this_process
from tests.tools.depth import some_by_default

WEIGHTS = "model.safetensors"


@pytest.mark.parametrize("name", some_by_default([*CONFIGS], 3))
def test_the_same_file(name: str, tmp_path: Path) -> None:
    """From the folder, and from the weights alone."""
    folder = make_folder(tmp_path, name)
    glft.convert(folder, tmp_path / "donor.gguf")
    for source in (folder, folder / WEIGHTS)[: 1 if "gpt-oss" in name else 2]:  # whose experts are several tensors each
        glft.convert(source, tmp_path / "out.gguf", like=tmp_path / "donor.gguf")
        assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "donor.gguf").read_bytes()


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma3", "tiny-gpt2", "tiny-qwen3moe"])
def test_fine_tuned_weights(name: str, tmp_path: Path) -> None:
    """Weights that differ from the donor's, which are quantized, are mapped as by the table."""
    folder = make_folder(tmp_path, name)
    glft.convert(folder, tmp_path / "donor.gguf", schemes={"*": "q4_0"})
    noise = torch.Generator().manual_seed(1)
    tuned = {
        key: tensor + (0.02 * torch.randn(tensor.shape, generator=noise)).to(tensor.dtype)
        for key, tensor in load_file(folder / WEIGHTS).items()
    }
    save_file(tuned, folder / WEIGHTS)
    written = glft.convert(folder / WEIGHTS, tmp_path / "out.gguf", like=tmp_path / "donor.gguf")
    of_weights = (tmp_path / "out.gguf").read_bytes()
    glft.convert(folder, tmp_path / "out.gguf", like=tmp_path / "donor.gguf")
    assert of_weights == (tmp_path / "out.gguf").read_bytes() != (tmp_path / "donor.gguf").read_bytes()
    donor = glft.open(tmp_path / "donor.gguf")
    assert [(t.name, t.type.name) for t in written] == [(t.name, t.type.name) for t in donor.tensors.values()]


def test_schemes_and_metadata_take_precedence(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-llama")
    glft.convert(folder, tmp_path / "donor.gguf", schemes={"*": "q4_0"}, metadata={"quantize.imatrix.file": "of the donor"})
    done = in_this_process(
        "convert", folder, tmp_path / "out.gguf", "--like", tmp_path / "donor.gguf", "--scheme", "*attn*=q8_0",
        "--metadata", "general.name=Tuned",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{folder}: mapped to GGUF as declared for the llama family, with the metadata of ")
    out = glft.open(tmp_path / "out.gguf")
    assert out.tensors["blk.0.attn_q.weight"].type.name == "Q8_0"
    assert out.tensors["blk.0.ffn_up.weight"].type.name == "Q4_0"
    assert out.metadata["general.name"] == "Tuned"
    assert "quantize.imatrix.file" not in out.metadata


def test_quantize(tmp_path: Path) -> None:
    """The recipe gives the types; the donor may be quantized."""
    folder = make_folder(tmp_path, "tiny-gpt2")
    glft.convert(folder, tmp_path / "donor.gguf", schemes={"*": "q4_0"})
    done = in_this_process("quantize", folder / WEIGHTS, tmp_path / "out.gguf", "Q8_0", "--like", tmp_path / "donor.gguf")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{folder / WEIGHTS}: mapped to GGUF as declared for the gpt2 family, with the metadata of ")
    glft.quantize(folder, tmp_path / "expected.gguf", "Q8_0")
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "expected.gguf").read_bytes()


def test_tied_output_and_dropped_buffers(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-llama")
    edit_tensors(lm_head__weight=None)(folder)
    edit_tensors(lm_head__weight=load_file(folder / WEIGHTS)["model.embed_tokens.weight"].clone())(folder)
    glft.convert(folder, tmp_path / "donor.gguf")
    edit_tensors(lm_head__weight=None, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8))(folder)
    glft.convert(folder / WEIGHTS, tmp_path / "out.gguf", like=tmp_path / "donor.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "donor.gguf").read_bytes()


def test_of_names_in_gguf(tmp_path: Path) -> None:
    """Tensors with the donor's names have its layout: their values are not compared."""
    glft.convert(make_folder(tmp_path, "tiny-llama"), tmp_path / "donor.gguf")
    donor = glft.open(tmp_path / "donor.gguf")
    zeros = {name: torch.zeros(tensor.shape) for name, tensor in donor.tensors.items()}
    glft.save_file(zeros, tmp_path / "zeros.glft")
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


def test_config_without_architecture(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-llama")
    glft.convert(folder, tmp_path / "donor.gguf")
    (folder / "config.json").write_text('{"rope_scaling": [1]}')
    done = in_this_process("convert", folder, tmp_path / "out.gguf", "--like", tmp_path / "donor.gguf")
    assert done.stdout.startswith(f"{folder}: mapped to GGUF as declared for the llama family, with the metadata of ")


def test_the_donor_is_not_overwritten(tmp_path: Path) -> None:
    folder, donor = make_folder(tmp_path, "tiny-llama"), tmp_path / "donor.gguf"
    glft.convert(folder, donor)
    for verb, *rest in (("convert",), ("quantize", "Q8_0")):
        done = in_this_process(verb, folder, donor, *rest, "--like", donor)
        assert_refused(done, "the output would overwrite the input")


def test_config_that_says_otherwise(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-llama")
    glft.convert(folder, tmp_path / "donor.gguf")
    edit_config(rope_theta=7e5)(folder)
    with pytest.warns(
        glft.errors.MetadataWarning, match=r"llama.rope.freq_base is 700000.0 by config.json, and 50000.0 in donor.gguf, wh"
    ):
        glft.convert(folder, tmp_path / "out.gguf", like=tmp_path / "donor.gguf")


def changed(path: Path, tensors: Mapping[str, torch.Tensor | None], metadata: Mapping[str, Any] | None = None) -> None:
    """Replaces tensors and metadata of a GGUF file."""
    file = glft.open(path)
    stored = {name: tensor.dequantize() for name, tensor in file.tensors.items()} | dict(tensors)
    kept = {name: tensor for name, tensor in stored.items() if tensor is not None}
    glft.save_file(kept, path, file.metadata | (metadata or {}), rules=[])


def test_faults(tmp_path: Path) -> None:
    folder, donor = make_folder(tmp_path, "tiny-llama"), tmp_path / "donor.gguf"
    weights, whole = folder / WEIGHTS, load_file(folder / WEIGHTS)
    glft.convert(folder, donor)
    original = donor.read_bytes()
    q = "blk.1.attn_q.weight"
    faults: list[tuple[Path, dict[str, Any], dict[str, Any], str]] = [
        (weights, {q: torch.ones(1, 64)}, {}, f"(embedding_length, head_count * key_length) of '{q}', found [64, 1]"),
        (weights, {q: None}, {}, f"tensor '{q}': donor.gguf has no such tensor"),
        (weights, {"more": torch.ones(1)}, {}, "'more': expected values for all tensors of donor.gguf, found none"),
        (weights, {}, {"llama.block_count": 10**6},
         "donor.gguf: metadata -> 4 -> value: expected 1 to 512 for llama.block_count, found 1000000"),
        (weights, {}, {"llama.block_count": glft.Typed(True, "bool")}, "expected uint32 for llama.block_count, found bool"),
        (weights, {}, {"general.architecture": "other"}, "as the donor, found 'other': use --converter instead of --like"),
    ]  # fmt: skip
    for source, tensors, metadata, message in faults:
        donor.write_bytes(original)
        changed(donor, tensors, metadata)
        done = in_this_process("convert", source, tmp_path / "out.gguf", "--like", donor)
        assert_refused(done, message)
        assert not (tmp_path / "out.gguf").exists()
    donor.write_bytes(original)
    save_file(whole | {"model.norm.weight": torch.zeros(3)}, weights)
    done = in_this_process("convert", weights, tmp_path / "out.gguf", "--like", donor)
    assert_refused(done, "tensor 'output_norm.weight': expected the shape [64], as in donor.gguf, found [3]")
    save_file(whole | {"output.weight": torch.zeros(3)}, weights)
    done = in_this_process("convert", weights, tmp_path / "out.gguf", "--like", donor)
    assert_refused(done, "donor.gguf has no such tensor; glft convert --exclude leaves it out")
    done = in_this_process("convert", folder, tmp_path / "out.glft", "--like", donor)
    assert_refused(done, "expected GGUF as the output for like (--like), found another format")
    done = in_this_process("convert", folder, tmp_path / "out.gguf", "--like", weights)
    assert_refused(done, "expected a GGUF model as the donor, found 'safetensors'")
    *_, last = glft.split(donor, tmp_path / "part", max_tensors=12)
    done = in_this_process("convert", folder, tmp_path / "out.gguf", "--like", last)
    assert_refused(done, "expected a whole model, found file 2 of 2: open part-00001-of-00002.gguf")
    (folder / "config.json").write_text(json.dumps([]))
    assert_refused(in_this_process("convert", folder, tmp_path / "out.gguf", "--like", donor), "expected JSON with an object")


def test_a_quantized_source(tmp_path: Path) -> None:
    """Its tensors are mapped by operations that keep no bytes, and are known to be quantized."""
    folder, donor, source = make_folder(tmp_path, "tiny-llama"), tmp_path / "donor.gguf", tmp_path / "in.glft"
    glft.quantize(folder, donor, "Q8_0")
    glft.save_file(glft.weights.open_checkpoint(folder), source, schemes={"*_proj.weight": "q8_per_channel"})
    with pytest.raises(glft.SchemeError, match=r"^14 tensors \(Q8_per_channel\) are quantized already"):
        glft.convert(source, tmp_path / "out.gguf", like=donor)
    done = in_this_process("convert", source, tmp_path / "out.gguf", "--like", donor, "--allow-requantize")
    assert (done.returncode, done.stderr) == (0, "")
    assert "quantized already: 14 tensors (Q8_per_channel); the new type adds its own error" in done.stdout


def test_counts_of_another_kind(tmp_path: Path) -> None:
    folder, donor = make_folder(tmp_path, "tiny-llama"), tmp_path / "donor.gguf"
    glft.convert(folder, donor)
    changed(donor, {}, {"llama.attention.head_count": glft.Typed([4, 4], "array[uint32]")})
    with pytest.raises(glft.FormatError, match=r"expected uint32 for llama.attention.head_count, found \[4, 4\]"):
        glft.convert(folder / WEIGHTS, tmp_path / "out.gguf", like=donor)
