"""`glft convert`, `split`, `merge` and `get-tensor`: their options and reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import glft_schema
from glft_schema import Container
from glft_schema.errors import MetadataWarning
from tests.checks.tiny_llama import write
from tests.golden import golden
from tests.tools.command_line import in_this_process as glft
from tests.tools.posix import MISSING


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tensors = {"w.weight": torch.randn(4, 128), "w.bias": torch.ones(4)}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", {"from": "tests"})
    return tmp_path / "model.safetensors"


def test_to_glft(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.gguf-lite"
    options = ["--scheme", "q8_per_channel", "--scheme", "w.*=q4_per_group_64", "--metadata", "arch=a=b", "--alignment", 64]
    done = glft("convert", source, out, *options, "--metadata", "n:uint8=3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Q4_per_group_64: 1 of 2 tensors, kept: 1\n")
    assert "\n\nkept:\n  1 as f32 (w.bias): not q4_per_group_64: expected at least 2 dims" in done.stdout
    with glft_schema.open(out) as file:
        assert file.metadata == {"from": "tests", "arch": "a=b", "n:uint8": "3"}  # types only in typed metadata
        types = {name: tensor.type.name for name, tensor in file.tensors.items()}
        assert types == {"w.bias": "F32", "w.weight": "Q4_per_group_64"}
        assert all(tensor.position % 64 == 0 for tensor in file.tensors.values())


def test_to_gguf(source: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"{{ a }}\n")
    values = {
        "general.architecture": "toy",
        "toy.n:uint16": "3",
        "toy.l:array[string]": '["a=b"]',
        "toy.text": f"@{tmp_path / 'text'}",
        "toy.at": "@@x",
    }
    metadata = [part for key, value in values.items() for part in ("--metadata", f"{key}={value}")]
    done = glft("convert", source, tmp_path / "OUT.GGUF", "--scheme", "q5_1", "--alignment", 64, *metadata)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 as f32 (w.bias): not q5_1: it has fewer than two dims, and no scheme selects it by its full name" in done.stdout
    with glft_schema.open(tmp_path / "OUT.GGUF") as file:
        added = {"general.architecture": "toy", "toy.n": 3, "toy.l": ["a=b"], "toy.text": "{{ a }}\n", "toy.at": "@x"}
        assert file.metadata == {"from": "tests", **added, "general.alignment": 64}
        assert file.metadata.type_of("toy.n") == "uint16"
        assert file.tensors["w.weight"].type.name == "Q5_1"


def test_options_of_gguf(source: Path, tmp_path: Path) -> None:
    options = ("--format", "gguf", "--gguf-version", 2, "--big-endian", "--metadata", "No=x", "--rules", "ggml")
    assert glft("convert", source, tmp_path / "out.bin", *options).returncode == 0
    with glft_schema.open(tmp_path / "out.bin") as file:
        assert (file.header.version, file.header.byte_order, file.metadata["No"]) == (2, "big", "x")


def test_rows_of_tensors(gguf: Path, tmp_path: Path) -> None:
    done = glft("convert", gguf, tmp_path / "out.safetensors", "--scheme", "w.*=f16", "--exclude", "n.*", "--verbose")
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("  ")]
    assert [row for row in rows if row[0] in ("w.weight", "n.weight", "i")] == [
        ["i", "I64", "copied"],
        ["w.weight", "F16", "converted", "0"],
    ]


def test_typed_metadata_for_other_formats(gguf: Path, tmp_path: Path) -> None:
    glft("convert", gguf, tmp_path / "typed.glft", "--exclude", "i", "--metadata", "t.more:uint8=7")
    assert Container.parse_file(tmp_path / "typed.glft").metadata["t.more"] == "uint8 7"


def test_split_and_merge(gguf: Path, tmp_path: Path) -> None:
    done = glft("split", gguf, tmp_path / "part", "--split-max-tensors", 2)
    first, second = (tmp_path / f"part-0000{number}-of-00002.gguf" for number in (1, 2))
    sizes = [f"{path}: {path.stat().st_size:,} bytes" for path in (first, second)]
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, sizes, "")
    assert len(glft("split", gguf, tmp_path / "whole", "--split-max-size", "40M").stdout.splitlines()) == 1
    out = tmp_path / "merged.gguf"
    assert glft("merge", first, out).stdout == f"{out}: 3 tensors, {gguf.stat().st_size:,} bytes\n"
    assert out.read_bytes() == gguf.read_bytes()


@pytest.mark.parametrize(
    ("options", "dtype", "expected"),
    [
        (["w.weight"], "float32", np.arange(256).reshape(4, 64)),
        (["n.*", "--dtype", "float16"], "float16", np.ones(64)),
        (["i"], "int64", np.arange(3)),
    ],
)
def test_get_tensor(options: list[str], dtype: str, expected: np.ndarray, gguf: Path, tmp_path: Path) -> None:
    name, *rest = options
    done = glft("get-tensor", gguf, name, out := tmp_path / "out.npy", *rest)
    assert (done.returncode, done.stdout) == (0, f"{out}: {dtype} {list(expected.shape)}\n")
    found = np.load(out)
    assert found.dtype == dtype
    assert np.array_equal(found, expected)


def test_get_tensor_of_a_truncated_file(four_types: Path, tmp_path: Path) -> None:
    four_types.write_bytes(golden("four_types")[:150])
    assert glft("get-tensor", four_types, "fc1", tmp_path / "out.npy").returncode == 0
    assert np.load(tmp_path / "out.npy").tolist() == [[0.5, -0.5, -64.0], [-254.0, 0.0, -4.0]]
    problem = "the file is truncated: 18 of 34 bytes are missing; download the rest (tensor 'fc2')"
    assert glft("get-tensor", four_types, "fc2", tmp_path / "out.npy").stderr == f"glft: {four_types}: {problem}\n"


@pytest.mark.posix("replaces an open file")
@pytest.mark.parametrize("key", ["general.architecture", "general.type", "tokenizer.ggml.model", "split.count"])
@pytest.mark.parametrize(
    "command", ["inspect IN", "verify IN --rules llama.cpp", "compare IN model.gguf", "quantize IN out Q8_0"]
)
def test_a_long_array_in_the_place_of_one_value(
    key: str, command: str, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command refuses it, or does without it, as it does a short one."""
    monkeypatch.chdir(tmp_path)
    codes = set()
    for count in (2, 1025):
        with glft_schema.open(gguf) as file:
            metadata = file.metadata | {key: glft_schema.Typed([1] * count, "array[int32]")}
            Container.build_file({"format": "GGUF", **file.regions, "metadata": metadata}, "IN")
        codes.add(glft(*command.split()).returncode)
    assert len(codes) == 1


def test_grafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is added and left out is counted, and the report says so."""
    monkeypatch.chdir(tmp_path)
    metadata = {"general.architecture": "toy", "toy.block_count": 1}
    tensors = {"blk.0.w": torch.ones(2, 64), "output.weight": torch.ones(2, 64)}
    nextn = {"blk.1.w": torch.zeros(2, 64), "blk.1.nextn.enorm.weight": torch.ones(64)}
    glft_schema.save_file(tensors, "a.gguf", metadata, schemes={"*": "q4_0"})
    glft_schema.save_file(tensors | nextn, "b.gguf", metadata)
    done = glft("convert", "a.gguf", "c.gguf", "--add", "b.gguf", "--only", "blk.1.*", "--only", "output.*", "-v")
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[:2] == ["toy.block_count: 1 -> 2", "toy.nextn_predict_layers: 0 -> 1"]
    assert [line.split()[:3] for line in lines if line.startswith(("blk", "output"))] == [
        ["blk.0.w", "Q4_0", "copied"],
        ["output.weight", "F32", "copied"],
        ["blk.1.w", "F32", "copied"],
        ["blk.1.nextn.enorm.weight", "F32", "copied"],
    ]
    dropped = [glft("convert", "c.gguf", "d.gguf", option, "blk.1.*").stdout for option in ("--drop", "--exclude")]
    assert dropped[0] == dropped[1]
    assert dropped[0].splitlines()[:2] == ["toy.block_count: 2 -> 1", "toy.nextn_predict_layers: 1 -> 0"]
    glft("convert", "c.gguf", "e.gguf", "--only", "output.weight")
    assert [*glft_schema.load_file("e.gguf")] == ["output.weight"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("a.gguf a.gguf --add b.gguf", "glft: the output would overwrite the input\n"),
        ("a.gguf b.gguf --add b.gguf", "glft: the output would overwrite the input\n"),
        ("a.gguf out.gguf --add none.gguf", f"glft: none.gguf: {MISSING}"),
        ("a.gguf out.gguf --add cut.gguf", "glft: cut.gguf: "),
        (
            "a.gguf out.gguf --add b.gguf --only w.wieght",
            "glft: expected a tensor that matches 'w.wieght', found none; did you",
        ),
        ("a.gguf out.gguf --add b.gguf --drop x", "glft: expected a tensor that matches 'x', found none\n"),
        ("a.gguf out.gguf --add b.gguf --like a.gguf", "glft: expected add and only (--add, --only) without like (--like): "),
    ],
)
def test_grafts_that_are_refused(options: str, problem: str, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(gguf.parent)
    Path("a.gguf").write_bytes(gguf.read_bytes())
    Path("b.gguf").write_bytes(gguf.read_bytes())
    Path("cut.gguf").write_bytes(gguf.read_bytes()[:90])
    done = glft("convert", *options.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr
    assert Path("a.gguf").read_bytes() == Path("b.gguf").read_bytes() == gguf.read_bytes()
    assert not Path("out.gguf").exists()


def test_a_graft_that_llama_cpp_refuses_is_a_warning(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf")
    glft_schema.save_file({"output.weight": torch.ones(9, 96)}, tmp_path / "b.safetensors")
    with pytest.warns(MetadataWarning, match=r"tensor 'output.weight' of shape \[8, 96\] is replaced by one of \[9, 96\]"):
        done = glft("convert", tmp_path / "model.gguf", tmp_path / "out.gguf", "--add", tmp_path / "b.safetensors")
    assert done.returncode == 0
    assert "glft: warning: llama.cpp will refuse the new file (see glft verify): expected dims [96, 8]" in done.stderr
