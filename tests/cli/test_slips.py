"""Slips of users: the error names what to do instead."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import glft_schema as glft
from tests.families.tiny_folders import make_folder
from tests.tools.command_line import assert_refused, in_this_process


@pytest.fixture
def model(tmp_path: Path) -> Path:
    metadata = {"general.architecture": "llama", "llama.block_count": 1, "tokenizer.chat_template": "{{ messages }}"}
    glft.save_file({"blk.0.attn_q.weight": torch.ones(2, 256)}, tmp_path / "model.gguf", metadata)
    return tmp_path / "model.gguf"


def test_split_with_the_options_of_llama_gguf_split(model: Path, tmp_path: Path) -> None:
    done = in_this_process("split", model, tmp_path / "one", "--split-max-size", "40M")
    assert (done.returncode, done.stdout.splitlines()[0].split(":")[0]) == (0, f"{tmp_path}/one-00001-of-00001.gguf")
    assert in_this_process("split", model, tmp_path / "each", "--split-max-tensors", 1).returncode == 0
    refused = in_this_process("split", model, tmp_path / "one", "--split-max-size", "1G")
    found = "expected no file at the output paths, found 'one-00001-of-00001.gguf': remove it, or choose other paths"
    assert refused.stderr == f"glft: {found}\n"


def test_a_model_is_no_manifest(model: Path) -> None:
    found = "expected the output of glft hash or sha256sum for --manifest, found a GGUF file"
    assert in_this_process("verify", model, "--manifest", model).stderr == f"glft: {found}\n"


def test_split_into_a_missing_folder(model: Path, tmp_path: Path) -> None:
    done = in_this_process("split", model, tmp_path / "none" / "part", "--max-tensors", 1)
    assert_refused(done, f"expected PREFIX in an existing folder, found '{tmp_path / 'none'}': create it first")


def test_a_missing_or_extra_output(model: Path) -> None:
    missing = in_this_process("quantize", model, "q4_k_m").stderr
    assert missing.endswith("Error: Missing argument 'OUT'.\n")
    assert in_this_process("quantize", model, "out.gguf").stderr.endswith("Error: Missing argument 'TYPE'.\n")
    extra = in_this_process("edit", model, "out.gguf").stderr
    assert extra.endswith("unexpected extra argument (out.gguf); the output is an option: -o OUT\n")
    for command, name in (("get-tensor", "OUT.npy"), ("convert", "OUT")):
        wrong = in_this_process(command, model, "x", "-o", "out").stderr
        assert "No such option" in wrong  # whose quotes differ between versions of click
        assert wrong.endswith(f"; the output is an argument: {name}\n")
    extra = in_this_process("merge", "part-1.gguf", "part-2.gguf", "out.gguf").stderr
    assert extra.endswith("unexpected extra argument (out.gguf); give only the first file of the set\n")
    assert "argument:" not in in_this_process("convert", model, "-q", "out").stderr
    for wrong in (["Q8_0"], ["--type", "q8_0"], ["--outtype", "q8_0"]):
        refused = in_this_process("convert", model, "out.gguf", *wrong).stderr
        assert refused.endswith("; types are chosen by --scheme TYPE, or by glft quantize IN OUT TYPE\n")


def test_folders_of_models(model: Path, tmp_path: Path) -> None:
    """As an output without its slash, and as an input by one of its files."""
    refused = in_this_process("convert", model, tmp_path / "back").stderr
    assert refused.endswith(f"found '{tmp_path}/back'; convert writes a Hugging Face folder to {tmp_path}/back/\n")
    assert "folder to" not in in_this_process("convert", model, tmp_path / "back.bin").stderr
    folder = make_folder(tmp_path, "tiny-bert")
    done = in_this_process("convert", folder / "config.json", tmp_path / "out.gguf")
    assert_refused(done, f"; give its folder, '{folder}' (at byte 0)\n")
    hint = f"names are kept, and no metadata are added; give the folder for those of GGUF: '{folder}'"
    with pytest.warns(glft.errors.MetadataWarning, match=re.escape(f"{folder}/model.safetensors: {hint}")):
        assert in_this_process("convert", folder / "model.safetensors", tmp_path / "out.gguf").returncode == 0
    assert in_this_process("convert", folder / "model.safetensors", tmp_path / "out.glft").stderr == ""


def test_prefixes_and_patterns_of_tensors(tmp_path: Path) -> None:
    names = [f"blk.0.attn_{letter}.weight" for letter in "qkvo"]
    glft.save_file({name: torch.ones(1) for name in names}, tmp_path / "model.gguf", {"general.architecture": "toy"})
    for name, found in (
        ("blk.0", f"found none; did you mean '{names[0]}', '{names[1]}' or '{names[2]}'?"),
        ("blk.*", f"found 4: '{names[0]}', '{names[1]}', '{names[2]}', ..."),
    ):
        assert_refused(in_this_process("get-tensor", tmp_path / "model.gguf", name, tmp_path / "o.npy"), found)


def test_a_folder_of_gguf_files(model: Path) -> None:
    assert_refused(in_this_process("inspect", model.parent), "found 0 files; give one of its GGUF files: model.gguf\n")


def test_types_that_need_an_importance_matrix(model: Path, tmp_path: Path) -> None:
    for arguments in (
        ("quantize", model, tmp_path / "o.gguf", "IQ2_XS"),
        ("convert", model, tmp_path / "o.gguf", "--scheme", "iq2_xs"),
    ):
        assert_refused(in_this_process(*arguments), "; to measure one: glft imatrix MODEL TEXT -o FILE\n")


def test_weights_of_an_adapter_without_its_folder(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    save_file({"w": torch.ones(1)}, folder / "adapter_model.safetensors")
    done = in_this_process("merge-lora", model, folder / "adapter_model.safetensors", tmp_path / "out.gguf")
    hint = f"; to merge it, give its folder, '{folder}'; to check it, convert it to GGUF\n"
    assert_refused(done, hint)
    assert_refused(in_this_process("verify", folder / "adapter_model.safetensors", "--fits", model), hint)


def test_a_value_that_names_a_file(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text("{{ bos_token }}")
    done = in_this_process("edit", model, "--set", f"tokenizer.chat_template={path}", "--dry-run")
    assert done.returncode == 0
    assert done.stderr == f"glft: warning: the value is '{path}' itself; @{path} is the text of the file\n"
    assert in_this_process("edit", model, "--set", f"tokenizer.chat_template=@{path}", "--dry-run").stderr == ""


def test_a_reader_that_closes_the_output(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    glft.save_file({}, path, {"general.architecture": "llama", "x": glft.Typed(["text"] * 50_000, "array[string]")})
    command = [sys.executable, "-m", "glft_schema", "inspect", str(path), "--key", "x"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"text\n"
        process.stdout.close()
        assert (process.wait(), process.stderr and process.stderr.read()) == (128 + signal.SIGPIPE, b"")
