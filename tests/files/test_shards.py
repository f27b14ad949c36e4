"""Sets of GGUF files: opening, splitting, merging, and files that do not belong together."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema
from glft_schema import ClosedError, Container, FormatError, TruncatedError, Typed, load_file, save_file
from glft_schema.errors import OptionError
from glft_schema.files import splitting
from glft_schema.files.byte_counts import byte_counts
from glft_schema.files.file import File
from glft_schema.files.parsing import check_rules
from glft_schema.files.shards import shard_info
from glft_schema.files.splitting import merge, split
from glft_schema.tensors.tensor import Tensor
from tests.golden import golden

TENSORS = {f"t.{i}": torch.full((i + 1, 8), float(i)) for i in range(5)}


@pytest.fixture(params=[32, 64])
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "whole.gguf"
    metadata = {"general.architecture": "toy", "t": ["a", "b"]}
    alignment = None if request.param == 32 else request.param
    save_file(TENSORS, path, metadata, schemes={"t.4": "f16"}, alignment=alignment, format="gguf")
    return path


@pytest.fixture
def first(whole: Path) -> Path:
    with glft_schema.open(whole) as file:
        return Path(split(file, whole.with_name("part"), max_tensors=2)[0])


@pytest.fixture
def second(first: Path) -> Path:
    return first.with_name("part-00002-of-00003.gguf")


def test_split_and_open_as_one(whole: Path, first: Path) -> None:
    parts = sorted(first.parent.glob("part*"))
    assert [path.name for path in parts] == [f"part-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    with glft_schema.open(first) as file, glft_schema.open(whole) as original:
        assert [len(shard.tensors) for shard in file.shards] == [2, 2, 1]
        assert [shard_info(shard) for shard in file.shards] == [(0, 3, 5), (1, 3, 5), (2, 3, 5)]
        assert {shard.alignment for shard in file.shards} == {original.alignment}
        assert not any(check_rules(shard, ["spec", "ggml"]) for shard in file.shards)
        assert {name: bytes(tensor.raw) for name, tensor in file.tensors.items()} == {
            name: bytes(tensor.raw) for name, tensor in original.tensors.items()
        }
        keys = ("split.no", "split.count", "split.tensors.count")
        assert [file.metadata.type_of(key) for key in keys] == ["uint16", "uint16", "int32"]
        assert file.metadata.without(*keys) == original.metadata
        assert file.nbytes == sum(path.stat().st_size for path in parts) == sum(byte_counts(file).values())
        file.device = "meta"
        assert all(tensor.dequantize().is_meta for tensor in file.tensors.values())
        with pytest.raises(FormatError, match="expected one file, found a set of 3: merge it first"):
            Container.build(file)
    for closed in (lambda: file.tensors, lambda: file.shards[2].get_tensor("t.4")):
        with pytest.raises(ClosedError):
            closed()


def test_load(first: Path) -> None:
    loaded = load_file(first, mmap=False)
    assert list(loaded) == list(TENSORS)
    assert all(torch.equal(loaded[name].float(), tensor) for name, tensor in TENSORS.items())


def test_merging_undoes_splitting(whole: Path, first: Path) -> None:
    merge(first, whole.with_name("merged.gguf"))
    assert whole.with_name("merged.gguf").read_bytes() == whole.read_bytes()


def test_split_by_bytes(whole: Path) -> None:
    with glft_schema.open(whole) as file:
        first, *_ = split(file, whole.with_name("bytes"), max_bytes=128)
    with glft_schema.open(first) as file:
        assert [list(shard.tensors) for shard in file.shards] == [["t.0", "t.1"], ["t.2"], ["t.3"], ["t.4"]]


def test_a_file_of_a_set_stands_for_itself(first: Path, second: Path) -> None:
    with glft_schema.open(second) as file, glft_schema.open(first, whole_set=False) as alone:
        assert list(file.tensors) == ["t.2", "t.3"]
        assert list(alone.tensors) == ["t.0", "t.1"]
        assert Container.build(alone) == first.read_bytes()
        assert pickle.loads(pickle.dumps(alone)) == alone == Container.parse_file(first, size=first.stat().st_size)


def test_a_missing_file(first: Path, second: Path) -> None:
    second.unlink()
    with pytest.raises(FileNotFoundError, match="file 2 of 3 is missing") as caught:
        glft_schema.open(first)
    assert caught.value.filename == str(second)


@pytest.mark.parametrize("name", ["other.gguf", "part-00002-of-00003.gguf", "part-00001-of-00004.gguf"])
def test_a_wrong_name(first: Path, tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    path = shutil.copy(first, tmp_path_factory.mktemp("other") / name)
    with pytest.raises(FormatError, match=r"expected file 1 of 3 to be named NAME-00001-of-00003\.gguf"):
        glft_schema.open(path)


@pytest.mark.parametrize("numbers", [(1, 0, 2), (2, 1, 0), (7, 1, 2)])
def test_numbers_that_names_contradict(numbers: tuple[int, ...], first: Path) -> None:
    """llama.cpp refuses the set. Only a file with its own name stands for itself."""
    paths = sorted(first.parent.glob("part*"))
    for path, number in zip(paths, numbers, strict=True):
        rewritten(path, {"split.no": number})
    for path, number, own in zip(paths, numbers, range(3), strict=True):
        if number != own:
            with pytest.raises(FormatError, match=rf"file {number + 1} of 3 to be named NAME-0000{number + 1}-of-00003"):
                glft_schema.open(path)


def test_a_set_of_one_file(whole: Path, tmp_path: Path) -> None:
    """Its keys are removed; it may lack some."""
    with glft_schema.open(whole) as file:
        entries = {key: Typed(value, file.metadata.type_of(key)) for key, value in file.metadata.items()}
    save_file(TENSORS, tmp_path / "one.gguf", entries | {"split.count": 1}, schemes={"t.4": "f16"})
    merge(tmp_path / "one.gguf", tmp_path / "merged.gguf")
    assert (tmp_path / "merged.gguf").read_bytes() == whole.read_bytes()


def rewritten(path: Path, changes: dict[str, object], **regions: object) -> None:
    file = Container.parse(path.read_bytes())
    Container.build_file({"format": "GGUF", **file.regions, "metadata": file.metadata | changes, **regions}, path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split.no": 2}, "-> split: expected file 2 of 3 with 5 tensors in all, found file 3 of 3 with 5 tensors in all"),
        ({"split.count": 4}, "found file 2 of 4 with 5 tensors in all"),
        ({"split.count": 1}, "found a single file"),
        ({"split.tensors.count": 6}, "found file 2 of 3 with 6 tensors in all"),
        ({"split.no": Typed("1", "string")}, "metadata -> split.no: expected a non-negative integer, found '1'"),
        (
            {"split.count": Typed([1] * 1025, "array[int32]")},
            "metadata -> split.count: expected a non-negative integer, found array",
        ),
        ({"split.count": Typed(-3, "int16")}, "metadata -> split.count: expected a non-negative integer, found -3"),
    ],
)
def test_files_that_do_not_belong_together(first: Path, second: Path, changes: dict[str, object], message: str) -> None:
    rewritten(second, changes)
    with pytest.raises(FormatError) as caught:
        glft_schema.open(first)
    assert message in str(caught.value)
    assert caught.value.file == str(second)


def test_wrong_numbers_of_tensors(first: Path) -> None:
    for path in first.parent.glob("part*"):
        rewritten(path, {"split.tensors.count": 6})
    with pytest.raises(FormatError, match=r"metadata -> split.tensors.count: expected 6 tensors in the whole set, found 5"):
        glft_schema.open(first)


def test_what_only_other_files_say_is_kept(first: Path, whole: Path) -> None:
    rewritten(first.with_name("part-00003-of-00003.gguf"), {"t.more": 5, "general.architecture": "other"})
    merge(first, whole.with_name("merged.gguf"))
    with glft_schema.open(whole.with_name("merged.gguf")) as merged:
        assert (merged.metadata["t.more"], merged.metadata["general.architecture"]) == (5, "toy")


def test_a_split_that_fails_leaves_nothing(whole: Path) -> None:
    with glft_schema.open(whole) as file:
        os.truncate(whole, file.tensors["t.3"].position)
        with pytest.raises(TruncatedError):
            split(file, whole.with_name("part"), max_tensors=1)
    assert [path.name for path in whole.parent.iterdir()] == ["whole.gguf"]


def test_a_split_that_fails_removes_only_its_own(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a file that another process wrote in the meantime."""
    write = splitting._write

    def fail_at_second(file: File, metadata: Mapping[str, Any], tensors: list[Tensor], path: str) -> None:
        if "00002-of" in path:
            Path(path).write_bytes(b"another's")
            raise OSError("the disk fell off")
        write(file, metadata, tensors, path)

    monkeypatch.setattr(splitting, "_write", fail_at_second)
    with glft_schema.open(whole) as file, pytest.raises(OSError, match="the disk fell off"):
        split(file, whole.with_name("part"), max_tensors=2)
    assert {entry.name for entry in whole.parent.iterdir()} == {whole.name, "part-00002-of-00003.gguf"}


def test_a_split_replaces_nothing(whole: Path) -> None:
    path = whole.rename(whole.with_name("part-00001-of-00003.gguf"))
    before = path.read_bytes()
    with glft_schema.open(path) as file, pytest.raises(OptionError, match="expected no file at the output paths, found 'part"):
        split(file, path.with_name("part"), max_tensors=2)
    assert path.read_bytes() == before


def test_a_tensor_twice(first: Path, second: Path) -> None:
    file = Container.parse(second.read_bytes())
    rows = [{**file.tensor_infos[0], "name": "t.0"}, file.tensor_infos[1]]
    rewritten(second, {}, tensor_infos=rows, data={"t.0": file.tensors["t.2"], "t.3": file.tensors["t.3"]})
    with pytest.raises(FormatError, match="expected unique tensor names across the files, found this name twice") as caught:
        glft_schema.open(first)
    assert caught.value.tensor == "t.0"


def test_a_broken_file_of_a_set_is_blamed_itself(first: Path, second: Path) -> None:
    second.write_bytes(second.read_bytes()[:40])
    with pytest.raises(FormatError) as caught:
        glft_schema.open(first)
    assert caught.value.file == str(second)


def test_what_cannot_be_split_or_merged(whole: Path, first: Path, tmp_path: Path) -> None:
    with glft_schema.open(whole) as file, glft_schema.open(first) as parts, Container.parse(golden("four_types")) as glft:
        needed = r"expected max_tensors or max_bytes \(--max-tensors or --max-bytes\), found neither"
        with pytest.raises(OptionError, match=needed):
            split(file, tmp_path / "x")
        for other in (parts, glft):
            with pytest.raises(OptionError, match="expected a GGUF or safetensors file that is not part of a set, found"):
                split(other, tmp_path / "x", max_tensors=1)
        with pytest.raises(OptionError, match="expected the first file or the index of a split model, found"):
            merge(file, tmp_path / "x")
    assert shard_info(glft) is None
