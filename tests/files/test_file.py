"""An open file: regions, tensors as views, and slices that read only the bytes they need."""

from __future__ import annotations

import copy
import os
import pickle
import re
from pathlib import Path

import construct
import numpy as np
import pytest
import torch

import glft_schema
from glft_schema import Container, FormatError, load_file, save_file
from glft_schema.files.parsing import parse_source
from glft_schema.formats.registry import format_named
from glft_schema.storage.source import BytesSource, Source
from tests.golden import golden

FOUR_TYPES = golden("four_types")


class RecordingSource(BytesSource):
    """Records the spans read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.asked: list[tuple[int, int]] = []

    def private(self, start: int, nbytes: int) -> memoryview:
        self.asked.append((start, nbytes))
        return super().private(start, nbytes)


def test_regions_are_attributes(four_types: Path) -> None:
    with glft_schema.open(four_types) as file:
        assert file.header.version == file.regions["header"]["version"] == 1
        assert (file.metadata["arch"], file.descriptors[2].name, file.tensors["fc2"].nbytes) == ("toy", "fc1", 34)
        assert list(file.regions) == ["header", "metadata", "descriptors", "data"]
        assert list(file.keys()) == ["a", "b", "fc1", "fc2"]
        assert {"header", "metadata", "n_tensors"} <= {*dir(file), *dir(file.header)}
        assert "n_tensors" not in file.header
        assert file.header["n_tensors"] == 4
        assert file.header.counts == {"n_tensors": 4, "metadata_len": 22}
        with pytest.raises(AttributeError, match="no field 'magics'; the fields are magic, version"):
            _ = file.header.magics
        with pytest.raises(AttributeError, match="no region 'headers'; the regions are header, metadata, descriptors, data"):
            _ = file.headers
        with pytest.raises(AttributeError, match=r"^no region 'tensor'; the regions .*; did you mean 'tensors'\?$"):
            _ = file.tensor
        hint = r"dequantize\(\) returns a torch.Tensor, numpy\(\) an array$"
        with pytest.raises(AttributeError, match=f"^a tensor in a file has no attribute 'float': {hint}"):
            file.tensors["fc1"].float()
        with pytest.raises(KeyError):
            file.get_tensor("fc3")
        assert file["header"] is file.header
        with pytest.raises(TypeError, match="not iterable"):
            iter(file)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="not a container"):
            _ = "header" in file  # type: ignore[misc]
        with pytest.raises(KeyError, match="0; keys are names, such as 'header'"):
            _ = file[0]  # type: ignore[index]


def test_files_compare_by_their_bytes(four_types: Path) -> None:
    mapped, read, parsed = (
        Container.parse_file(four_types),
        Container.parse_file(four_types, mmap=False),
        Container.parse(FOUR_TYPES),
    )
    assert mapped == read == parsed
    assert mapped != Container.parse(FOUR_TYPES[:-1] + b"\x00")
    assert mapped != "a file"


def test_writing_into_views_changes_neither_the_file_nor_its_builds(four_types: Path) -> None:
    with glft_schema.open(four_types, mmap=True) as file:
        first, second = file.get_tensor("b"), file.get_tensor("b")
        assert first.data_ptr() == second.data_ptr()
        assert file.tensors["b"][1:].data_ptr() == first[1:].data_ptr()
        first.zero_()
        file.tensors["fc1"].payload.codes[...] = 0
        assert Container.build(file) == FOUR_TYPES
        assert file == Container.parse(FOUR_TYPES)
        assert bytes(file.tensors["b"].raw) == bytes(Container.parse(FOUR_TYPES).tensors["b"].raw) != bytes(6)
    assert four_types.read_bytes() == FOUR_TYPES
    data = bytearray(FOUR_TYPES)
    Container.parse(data).get_tensor("a").zero_()
    assert data == FOUR_TYPES


def test_dtypes(four_types: Path) -> None:
    with glft_schema.open(four_types, device="cpu") as file:
        assert [file.get_tensor(name).dtype for name in file.keys()] == [torch.float32, torch.float16, *[torch.float32] * 2]
        exact = file.get_tensor("fc2")
        for dtype in (torch.float64, torch.float16, torch.bfloat16):
            assert torch.equal(file.get_tensor("fc2", dtype), exact.to(dtype))
        with pytest.raises(ValueError, match=r"expected a float dtype, found torch.int8"):
            file.get_tensor("fc2", torch.int8)
        file.device = "meta"
        assert file.get_tensor("a").is_meta
    assert {t.dtype for t in load_file(four_types, dtype=torch.bfloat16).values()} == {torch.bfloat16}


def test_slice_reads_only_its_bytes() -> None:
    q8 = torch.arange(6 * 64).reshape(6, 64).float()
    built = Container.build(
        {
            "descriptors": [
                {"name": "f32", "dims": [6, 2, 32], "dtype": "F32"},
                {"name": "q8", "dims": [6, 64], "dtype": "Q8_per_channel"},
                {"name": "q4", "dims": [6, 256], "dtype": "Q4_per_group_64"},
            ],
            "data": {"f32": {"weights": q8.view(6, 2, 32)}, "q8": bytes(12 + 384), "q4": bytes(48 + 768)},
        }
    )
    source = RecordingSource(built)
    file = parse_source(source)
    f32, q8_start, q4 = (file.tensors[name].position for name in ("f32", "q8", "q4"))
    for name, index, expected in (
        ("f32", (3,), [(f32 + 3 * 256, 256)]),
        ("f32", (3, 1, 30), [(f32 + 3 * 256 + 62 * 4, 4)]),
        ("f32", (slice(1, 3), 0), [(f32 + 256, 128), (f32 + 512, 128)]),
        ("f32", (slice(0, 6, 4),), [(f32, 256), (f32 + 4 * 256, 256)]),
        ("q8", (slice(3, 5),), [(q8_start + 6, 4), (q8_start + 12 + 3 * 64, 128)]),
        ("q4", (5, 100), [(q4 + 2 * (5 * 4 + 1), 2), (q4 + 48 + 5 * 128 + 32, 32)]),
        ("q4", (slice(0, 2), slice(0, 0)), []),
    ):
        source.asked.clear()
        file.get_slice(name)[index]
        assert source.asked == expected


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ((0, 0, 0), "too many indices for tensor 'fc1' of 2 dims"),
        ((2,), "index 2 is out of bounds for dim 0 of size 2"),
        ((0, -4), "index -4 is out of bounds for dim 1 of size 3"),
        ((..., ...), "an index can have at most one ellipsis ('...')"),
        *((part, f"expected an integer, a slice with a positive step, or ..., found {part}") for part in (True, [0])),
        *(
            (index, "new axes (None) are not supported in slices: index with integers, slices and ...")
            for index in (None, (..., None), (None, 0, 0), (0, None, 0, None))
        ),
        (slice(None, None, -1), "expected an integer, a slice with a positive step, or ..., found slice(None, None, -1)"),
        ("a", "expected an integer, a slice with a positive step, or ..., found 'a'"),
        (np.array([0, 1]), "expected an integer, a slice with a positive step, or ..., found array([0, 1])"),
    ],
)
def test_indices_that_are_refused(index: object, problem: str) -> None:
    with pytest.raises(IndexError, match=f"^{re.escape(problem)}$"):
        Container.parse(FOUR_TYPES).tensors["fc1"][index]


def test_errors_inside_other_constructs_have_the_whole_path() -> None:
    package = construct.Struct("weights" / Container)
    with pytest.raises(FormatError) as caught:
        package.parse(FOUR_TYPES[:20])
    assert caught.value.path == "weights -> metadata"
    with pytest.raises(FormatError) as caught:
        package.build({"weights": {"metadata": {"": ""}}})
    assert caught.value.path == "weights -> metadata"


def test_an_error_says_which_file(four_types: Path) -> None:
    four_types.write_bytes(FOUR_TYPES[:20])
    with pytest.raises(FormatError) as caught:
        glft_schema.open(four_types)
    assert caught.value.file == str(four_types)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.file, again.offset) == (str(caught.value), str(four_types), 16)


def test_numpy_integers_and_large_steps() -> None:
    tensor = Container.parse(FOUR_TYPES).tensors["fc1"]
    assert torch.equal(tensor[np.int64(1)], tensor[1])
    for step in (5, 2**62, 10**30):
        assert torch.equal(tensor[::step, ::step], tensor.dequantize()[:1, :1])


def test_a_file_over_a_source_of_ones_own_is_not_pickled() -> None:
    class Other(Source):
        def _view(self, start: int, nbytes: int) -> memoryview:
            return memoryview(FOUR_TYPES)[start : start + nbytes]

    file = parse_source(Other("elsewhere", len(FOUR_TYPES)))
    assert file.get_tensor("a").item() == -1.5
    with pytest.raises(TypeError, match="cannot pickle a file with a Other as its source"):
        pickle.dumps(file)
    assert copy.deepcopy(file) is copy.copy(file) is file


@pytest.mark.parametrize(
    ("tensor", "scheme", "dtype"),
    [
        (torch.linspace(-3, 3, 128), "f32", np.float32),
        (torch.linspace(-3, 3, 128).bfloat16(), "bf16", np.float32),
        (torch.linspace(-3, 3, 128), "q8_0", np.float32),
        (torch.arange(3, dtype=torch.int32), "i32", np.int32),
    ],
)
def test_tensors_are_arrays_for_numpy(tensor: torch.Tensor, scheme: str, dtype: type, tmp_path: Path) -> None:
    """Copied on request, or if the values are decoded."""
    save_file({"a": tensor}, tmp_path / "m.gguf", schemes={"a": scheme})
    with glft_schema.open(tmp_path / "m.gguf", mmap=True) as file:
        stored = file.tensors["a"]
        found = np.asarray(stored)
        assert (found.shape, found.dtype) == (stored.shape, dtype)
        assert np.array_equal(found, stored.dequantize().to(torch.float64).numpy())
        parts = [*stored.arrays(64)]
        assert len(parts) >= len(found) // 64
        assert (np.concatenate(parts).tolist(), {part.dtype for part in parts}) == (
            found.reshape(-1).tolist(),
            {np.dtype(dtype)},
        )
        assert np.asarray(stored, np.float16).dtype == np.float16
        assert not np.shares_memory(stored.__array__(copy=True), found)
        asked = dtype if scheme in ("f32", "i32") else None
        assert asked is None or np.shares_memory(stored.__array__(asked, copy=False), found)
        with pytest.raises(ValueError, match="tensor 'a': expected copy=None or copy=True, since values are decoded"):
            stored.__array__(asked and np.float16, copy=False)


@pytest.mark.parametrize(
    ("ending", "format"), [("gguf", "GGUF"), ("safetensors", "safetensors"), ("glft", "GLFT"), ("x", "GLFT")]
)
def test_regions_are_built_in_the_format_of_the_ending(ending: str, format: str, tmp_path: Path) -> None:
    first, again = tmp_path / f"first.{ending}", tmp_path / f"again.{ending}"
    glft_schema.save_file({"w": torch.ones(8)}, first, format=format)
    with glft_schema.open(first) as file:
        assert file.format.name == format
        Container.build_file({**file.regions}, again)
        Container.build_file({"format": format, **file.regions}, tmp_path / "of.another")
    assert first.read_bytes() == again.read_bytes() == (tmp_path / "of.another").read_bytes()


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("name", ["m.gguf", "m.glft", "m.safetensors"])
def test_complete_tensors_of_a_truncated_file(name: str, mmap: bool, tmp_path: Path) -> None:
    tensors = {"a": torch.arange(64.0), "b": torch.ones(64), "c": torch.ones(64)}
    path = tmp_path / name
    glft_schema.save_file(tensors, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-300])
    problem = rf"the file is truncated: {len(whole) - 300} of {len(whole)} bytes \(.* %\), 1 of 3 tensors complete; download"
    with pytest.raises(glft_schema.TruncatedError, match=problem):
        glft_schema.open(path, mmap=mmap)
    with glft_schema.open(path, mmap=mmap, allow_truncated=True) as file:
        for read in (file, pickle.loads(pickle.dumps(file))):
            assert [tensor.missing for tensor in read.tensors.values()] == [0, 44, 256]
            assert (read.nbytes, read.tensors.gaps, read.get_tensor("a").tolist()) == (len(whole), (), [*range(64)])
            with pytest.raises(glft_schema.TruncatedError, match="expected 256 bytes, found 212"):
                read.get_tensor("b")
        with pytest.raises(glft_schema.TruncatedError, match="expected 256 bytes, found 212"):
            Container.build_file(file, tmp_path / "again")
    short = path.with_stem("short")
    short.write_bytes(whole[:15])
    with pytest.raises(glft_schema.TruncatedError):
        glft_schema.open(short, allow_truncated=True)


def test_a_truncated_file_of_a_set(tmp_path: Path) -> None:
    glft_schema.save_file({"a": torch.ones(64), "b": torch.ones(64)}, tmp_path / "m.gguf", {"general.architecture": "toy"})
    first, second = glft_schema.split(tmp_path / "m.gguf", tmp_path / "m.gguf", max_tensors=1)
    os.truncate(second, os.path.getsize(second) - 1)
    with glft_schema.open(first, allow_truncated=True) as file:
        assert {name: tensor.missing for name, tensor in file.tensors.items()} == {"a": 0, "b": 1}


@pytest.mark.parametrize("format", ["gguf", "glft", "safetensors"])
@pytest.mark.parametrize("name", [None, ["a"]])
def test_rows_without_a_name_are_refused(format: str, name: object) -> None:
    declared = format_named(format)
    row = {"dims": [2], "dtype": declared.types["F32"], **({} if name is None else {"name": name})}
    with pytest.raises(FormatError, match=rf"^{declared.table} -> 0"):
        Container.build({"format": format, declared.table: [row], "data": {}})
