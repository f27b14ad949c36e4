"""Sets of safetensors files, opened by their index or folder, split and merged."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

import glft_schema
from glft_schema import FormatError, LimitError, OptionError, load_file, merge, save_file, split
from glft_schema.formats.safetensors import SAFETENSORS
from tests.tools.command_line import assert_refused, in_this_process

TENSORS = {
    "a.weight": torch.randn(4, 8),
    "b.weight": torch.randn(2, 3).bfloat16(),
    "c": torch.arange(5),
    "d": torch.tensor(True),
    "ü": torch.zeros(0, 3),
}
METADATA = {"format": "pt"}
Change = Callable[[dict[str, str], Path], Any]
INDEX = "part.safetensors.index.json"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "whole.safetensors"
    safetensors.torch.save_file(TENSORS, path, METADATA)
    return path


@pytest.fixture
def index(whole: Path, tmp_path: Path) -> Path:
    with glft_schema.open(whole) as file:
        return Path(split(file, tmp_path / "part", max_tensors=2)[-1])


def test_the_library_reads_what_split_writes(index: Path) -> None:
    listed = json.loads(index.read_text(encoding="utf-8"))
    assert listed["metadata"] == {"total_size": 4 * 32 + 2 * 6 + 8 * 5 + 1}
    assert sorted(set(listed["weight_map"].values())) == [f"part-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)]
    for name, tensor in TENSORS.items():
        with safetensors.safe_open(index.parent / listed["weight_map"][name], "pt") as shard:
            assert torch.equal(shard.get_tensor(name), tensor)
            assert shard.metadata() == METADATA


def test_a_set_is_one_file(index: Path, whole: Path) -> None:
    loaded = load_file(str(index))
    assert loaded.keys() == TENSORS.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in TENSORS.items())
    with glft_schema.open(index) as file:
        assert (file.name, len(file.shards), file.format, file.metadata) == (str(index), 3, SAFETENSORS, METADATA)
        assert torch.equal(file.get_slice("a.weight")[1:3], TENSORS["a.weight"][1:3])
    merge(index, whole.with_name("merged.safetensors"))
    assert whole.with_name("merged.safetensors").read_bytes() == whole.read_bytes()


def test_a_folder_stands_for_its_index_or_its_only_file(index: Path, whole: Path, tmp_path: Path) -> None:
    with glft_schema.open(tmp_path) as file:
        assert file.name == str(index)
    (tmp_path / "one").mkdir()
    save_file(TENSORS, tmp_path / "one" / "model.safetensors")
    assert load_file(tmp_path / "one").keys() == TENSORS.keys()


def without(name: str) -> Change:
    return lambda listed, folder: listed.pop(name)


def twice(listed: dict[str, str], folder: Path) -> None:
    """Puts a tensor of another file into the first, too."""
    path = folder / "part-00001-of-00003.safetensors"
    other = next(name for name, file in listed.items() if file != path.name)
    save_file({**load_file(path), other: TENSORS[other]}, path)


def fewer_files(listed: dict[str, str], folder: Path) -> None:
    for name in [name for name, file in listed.items() if file.startswith("part-00003")]:
        del listed[name]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (without("c"), r"expected 'part-0000\d-of-00003.safetensors' for this tensor, which it has, found none \(tensor 'c'\)"),
        (twice, r"expected 'part-00001-of-00003.safetensors' for this tensor, which it has, found part-0000[23]-of"),
        (fewer_files, "expected 3 files, as the name part-00001-of-00003.safetensors says, found 2"),
    ],
)
def test_an_index_lists_each_tensor_of_its_files(change: Change, problem: str, index: Path) -> None:
    content = json.loads(index.read_text(encoding="utf-8"))
    change(content["weight_map"], index.parent)
    index.write_text(json.dumps(content), encoding="utf-8")
    for use in (load_file, glft_schema.weights.open_checkpoint):
        with pytest.raises(FormatError, match=f"weight_map: {problem}"):
            use(index)


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_a_file_beside_an_index_is_not_ignored(ending: str, tmp_path: Path) -> None:
    """transformers takes ``model.safetensors``, whatever an index lists."""
    whole = tmp_path / {"safetensors": "model.safetensors", "bin": "pytorch_model.bin"}[ending]
    write = safetensors.torch.save_file if ending == "safetensors" else torch.save
    write({"new": torch.ones(2)}, whole)
    write({"old": torch.ones(2)}, whole.with_stem("other"))
    index = Path(f"{whole}.index.json")
    index.write_text(json.dumps({"weight_map": {"new": whole.name}}))
    assert list(glft_schema.weights.open_checkpoint(tmp_path)) == ["new"]
    index.write_text(json.dumps({"weight_map": {"old": f"other.{ending}"}}))
    problem = f"expected one model in the directory, found {whole.name}, which transformers loads, and {index.name}, which does"
    with pytest.raises(FormatError, match=re.escape(problem)):
        glft_schema.weights.open_checkpoint(tmp_path)


def test_files_of_another_format_are_refused(index: Path, tmp_path: Path) -> None:
    save_file({"a.weight": torch.ones(1)}, tmp_path / "a.gguf")
    (tmp_path / "x.safetensors.index.json").write_text('{"weight_map": {"a.weight": "a.gguf"}}')
    with pytest.raises(FormatError, match=r"expected a safetensors file, found GGUF in .*a\.gguf"):
        glft_schema.open(tmp_path / "x.safetensors.index.json")


def test_what_cannot_be_split_or_merged(index: Path, whole: Path) -> None:
    with pytest.raises(OptionError, match="file that is not part of a set"):
        split(index, index.with_name("x"), max_tensors=1)
    with pytest.raises(OptionError, match="a shard of safetensors does not name its set: give the index"):
        merge(whole, index.with_name("x.safetensors"))


def test_commands_take_a_set(index: Path, whole: Path, tmp_path: Path) -> None:
    for path in (index, tmp_path):
        shown = in_this_process("inspect", path).stdout
        assert shown.startswith(f"{index}: safetensors, ")
        assert f"\nsafetensors, {glft_schema.open(index).nbytes:,} bytes, 3 files\n" in shown
    assert json.loads(in_this_process("inspect", index, "--json").stdout)["header"] == {}
    assert "all rules hold (spec, rust)" in in_this_process("verify", index).stdout
    one, several = (in_this_process("hash", path).stdout.splitlines()[-1] for path in (whole, index))
    assert one == several


def test_an_index_beside_that_is_too_large(whole: Path, tmp_path: Path) -> None:
    """It is not read, so a file beside it is a model of its own."""
    (tmp_path / INDEX).touch()
    os.truncate(tmp_path / INDEX, 1 << 33)
    with pytest.raises(
        LimitError, match=r"expected at most 67108864 bytes \(.*\), found 8589934592 \(limit whole_file\) in .*index"
    ):
        glft_schema.open(tmp_path / INDEX)
    done = in_this_process("edit", whole, "--set", "a=b", "-o", tmp_path / "out.safetensors")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("verb", ["explain", "fuzz"])
def test_verbs_of_one_file_refuse_a_set(index: Path, verb: str) -> None:
    assert_refused(in_this_process(verb, index), "expected one file, found a set: give its files one by one")
