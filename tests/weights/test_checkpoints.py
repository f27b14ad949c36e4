"""Checkpoints of every kind, and files that are not checkpoints."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch

from glft_schema import FormatError, TensorError, convert, save_file
from glft_schema.storage.dtypes import as_dtype
from glft_schema.storage.torch_tensors import as_tensor
from glft_schema.weights.checkpoints import open_checkpoint

STATE = {"b": torch.randn(3, 4), "a": torch.arange(3), "h": torch.randn(2).half(), "z": torch.zeros(0, 2).bfloat16()}


def assert_state(path: Path) -> None:
    stored = open_checkpoint(path)
    assert sorted(stored) == sorted(STATE)
    for name, tensor in STATE.items():
        kind = (tensor.shape, as_dtype(tensor.dtype), tensor.numel())
        assert (stored[name].shape, stored[name].dtype, stored[name].numel) == kind
        assert torch.equal(as_tensor(stored[name].values()), tensor)


def test_safetensors(tmp_path: Path) -> None:
    safetensors.torch.save_file(STATE, tmp_path / "model.safetensors")
    assert_state(tmp_path / "model.safetensors")
    assert_state(tmp_path)


def test_dtypes_that_torch_does_not_have(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\1\2\3")
    with pytest.raises(
        TensorError, match=r"^tensor 'w': cannot be converted: neither numpy nor torch has float6_e2m3fn: F6_E2M3 can be"
    ):
        convert(tmp_path, tmp_path / "out.gguf")
    convert(tmp_path, tmp_path / "out.safetensors", schemes={"*": "f16"})
    assert (tmp_path / "out.safetensors").read_bytes()[-3:] == b"\1\2\3"


def test_a_file_that_changes_after_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"w": torch.ones(1000)}, path)
    stored = open_checkpoint(path)
    os.truncate(path, 200)
    with pytest.raises(FormatError, match=r"expected 4000 bytes, found 128 \(tensor 'w', at byte 72\) in "):
        save_file(stored, tmp_path / "out.glft")


def test_pipes_for_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors.index.json")
    with pytest.raises(OSError, match="not a regular file"):
        open_checkpoint(tmp_path)


def write_shards(folder: Path, index: object) -> None:
    names = list(STATE)
    for shard, part in (("model-1.safetensors", names[:2]), ("model-2.safetensors", names[2:])):
        safetensors.torch.save_file({name: STATE[name] for name in part}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(index if isinstance(index, str) else json.dumps(index))


PLACES = {"b": "model-1.safetensors", "a": "model-1.safetensors", "h": "model-2.safetensors", "z": "model-2.safetensors"}


def test_sharded_folder(tmp_path: Path) -> None:
    write_shards(tmp_path, {"weight_map": PLACES})
    assert_state(tmp_path)
    assert list(open_checkpoint(tmp_path)) == list(open_checkpoint(tmp_path / "model.safetensors.index.json"))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": PLACES | {"z": "model-3.safetensors"}}))
    with pytest.raises(FileNotFoundError):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "expected JSON with a weight_map in "),
        ({"weight_map": [1]}, "expected JSON with a weight_map"),
        ({"metadata": {}}, "expected JSON with a weight_map"),
        ({"weight_map": {}}, "weight_map: expected at least one tensor, found none"),
        ('{"weight_map": ' + "[" * 200_000, "expected JSON with a weight_map"),
        *(
            ({"weight_map": {"a": name}}, f"expected the name of a file in the directory, found {name!r}")
            for name in ("../x", "/etc/passwd", "..", ".", "", "a/../b", "a\0b", "\ud800", "a/b", 3, None)
        ),
        ({"weight_map": {"a": ["x"]}}, "expected JSON with a weight_map"),
        (
            {"weight_map": {"h": "model-1.safetensors"}},
            "expected this tensor in model-1.safetensors, found none",
        ),
    ],
)
def test_indices_that_are_wrong(tmp_path: Path, index: object, message: str) -> None:
    write_shards(tmp_path, index)
    with pytest.raises(FormatError) as caught:
        open_checkpoint(tmp_path)
    assert message in str(caught.value)


def test_folders_without_one_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"or one safetensors file, found 0 files"):
        open_checkpoint(tmp_path)
    for name in ("a.safetensors.index.json", "b.safetensors.index.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(FormatError, match=r"expected one index in the directory, found a\.\S+, b\.\S+"):
        open_checkpoint(tmp_path)


def test_tied_tensors_of_a_torch_file_stay_tied(tmp_path: Path) -> None:
    torch.save({"a": STATE["b"], "b": STATE["b"]}, tmp_path / "model.pt")
    stored = open_checkpoint(tmp_path / "model.pt")
    assert stored["a"].identity == stored["b"].identity is not None


class Code:
    """An object whose unpickling runs code."""

    def __reduce__(self) -> tuple[object, ...]:
        return print, ("run",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Code(), "expected a torch file that holds only tensors, found: other Python objects"),
        (torch.ones(3), "expected a dict of tensors, found a tensor"),
        ({}, "expected a dict of tensors, found {}"),
        (b"PK\x03\x04", "expected a torch file"),
        (b"\x80\x02", " or a safetensors file"),
        (b"no weights at all", " or a safetensors file"),
    ],
)
def test_files_that_are_no_checkpoints(
    content: object, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(FormatError, match=message):
        open_checkpoint(path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("length", [0x0280, 0x8A80, 0x10280])
def test_a_safetensors_file_whose_length_looks_like_a_pickle(tmp_path: Path, length: int) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).ljust(length).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", length) + header + struct.pack("<f", 2.5))
    assert open_checkpoint(path)["w"].load().tolist() == [2.5]
