"""Pickling: files and their parts pickle as paths, and never load values of another file."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import glft_schema as glft
from glft_schema import Container, Typed
from glft_schema.codec.numbers import Number, u8
from glft_schema.codec.type_codes import TypeTable
from glft_schema.codec.typed_values import ValueType
from glft_schema.files.splitting import split
from glft_schema.formats.gguf import STRING, VALUE_TYPES
from tests.tools.forked import CONTEXT

METADATA = {
    "general.architecture": "toy",
    "toy.byte": Typed(3, "uint8"),
    "toy.names": [f"name {i}" for i in range(3000)],  # long enough to stay in the file
    "toy.numbers": list(range(3000)),
    "toy.floats": [0.5, 1.5],
}
PARTS: dict[str, Callable[[glft.File], Any]] = {
    "file": lambda file: file,
    "tensor": lambda file: file.tensors["w"],
    "tensors": lambda file: file.tensors,
    "metadata": lambda file: file.metadata,
    "regions": lambda file: file.regions,
}
CONTENT: dict[str, Callable[[Any], Any]] = {  # what is compared of a part
    "file": lambda file: file,
    "tensor": lambda tensor: (tensor.name, tensor.dims, tensor.type, tensor.position, bytes(tensor.raw)),
    "tensors": lambda tensors: ([CONTENT["tensor"](tensor) for tensor in tensors.values()], tensors.gaps),
    "metadata": lambda metadata: (metadata, list(map(metadata.type_of, metadata)), metadata.types["string"] is STRING),
    "regions": lambda regions: (regions.header, CONTENT["metadata"](regions.metadata), CONTENT["tensors"](regions.data)),
}


def assert_same(part: str, pickled: bytes, file: glft.File) -> None:
    """Compares a pickled part of a file with the file's."""
    assert CONTENT[part](pickle.loads(pickled)) == CONTENT[part](PARTS[part](file))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf", seed=0)


def write(path: Path, seed: int) -> Path:
    w = torch.randn(256, 1024, generator=torch.Generator().manual_seed(seed))
    glft.save_file({"w": w, "v": w[0]}, path, METADATA, schemes={"w": "q8_0"})
    return path


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_file_is_pickled_as_its_path(part: str, mmap: bool, path: Path) -> None:
    file = glft.open(path, mmap=mmap)
    pickled = pickle.dumps(PARTS[part](file))
    assert str(path).encode() in pickled
    assert len(pickled) < 2500 < os.path.getsize(path) // 100
    assert_same(part, pickled, file)


def test_tensors_pickled_together_share_one_open_file(path: Path) -> None:
    one, other = pickle.loads(pickle.dumps(list(glft.open(path).tensors.values())))
    assert one.identity[0] is other.identity[0]


@pytest.mark.parametrize("part", PARTS)
def test_a_file_without_a_path_is_pickled_as_its_bytes(part: str, path: Path) -> None:
    file = Container.parse(path.read_bytes())
    with path.open("rb") as stream:
        by_descriptor = Container.parse_stream(stream)
    for given in (file, by_descriptor):
        assert_same(part, pickle.dumps(PARTS[part](given)), file)


def cut(path: Path) -> None:
    os.truncate(path, os.path.getsize(path) - 1)


def overwrite(path: Path) -> None:
    """Changes a byte in place and updates the modification time."""
    with path.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\x01")
    os.utime(path)


def replace(path: Path) -> None:
    """Replaces the file by another of the same size and time."""
    status = path.stat()
    write(path, seed=1)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size


@pytest.mark.parametrize("change", [cut, overwrite, pytest.param(replace, marks=pytest.mark.posix("replaces an open file"))])
@pytest.mark.parametrize("part", PARTS)
def test_a_file_that_has_changed_is_not_unpickled(part: str, change: Callable[[Path], None], path: Path) -> None:
    file = glft.open(path)
    before = pickle.dumps(PARTS[part](file))
    change(path)
    for pickled in (before, pickle.dumps(PARTS[part](file))):  # the version at opening counts
        with pytest.raises(OSError, match=r"the file has changed since it was opened: '.*model\.gguf'") as caught:
            pickle.loads(pickled)
        assert caught.value.filename == str(path)


def test_a_file_of_a_set_that_has_changed(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.randn(64, generator=torch.Generator().manual_seed(i)) for i in range(3)}
    glft.save_file(tensors, tmp_path / "whole.gguf", {"general.architecture": "toy"})
    paths = split(glft.open(tmp_path / "whole.gguf"), tmp_path / "part", max_tensors=1)
    file = glft.open(paths[0])
    pickled = [pickle.dumps(part) for part in (file, file.tensors, file.tensors["t2"])]
    whole, parts, tensor = map(pickle.loads, pickled)
    for found in (whole.tensors["t2"], parts["t2"], tensor):
        assert torch.equal(found.dequantize(), tensors["t2"])
    overwrite(Path(paths[2]))
    for part in pickled:
        with pytest.raises(OSError, match=r"the file has changed since it was opened: '.*part-00003-of-00003\.gguf'"):
            pickle.loads(part)


def test_a_copy_of_a_tensor_reads_the_same_open_file(path: Path) -> None:
    tensor = glft.open(path).tensors["w"]
    for again in (copy.copy(tensor), copy.deepcopy(tensor)):
        assert again.identity == tensor.identity


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # where the number of processors is not known
@pytest.mark.parametrize("context", [CONTEXT, pytest.param("spawn", marks=pytest.mark.full)], ids=["forkserver", "spawn"])
def test_a_worker_reads_the_tensor(path: Path, context: Any) -> None:
    """Both contexts pickle the file. A spawned worker imports torch in addition."""
    tensor = glft.open(path).tensors["w"]
    rows = Subset(tensor, range(tensor.shape[0]))  # type: ignore[arg-type]
    batches = DataLoader(rows, batch_size=64, num_workers=1, multiprocessing_context=context)
    assert torch.equal(torch.cat(list(batches)), tensor.dequantize())


def test_value_types_pickle_by_name() -> None:
    for value in (*VALUE_TYPES, VALUE_TYPES, u8):
        assert pickle.loads(pickle.dumps(value)) is value
    with pytest.raises(TypeError, match="cannot pickle this table: it is not the first of GGUF value types"):
        pickle.dumps(TypeTable[ValueType]("GGUF value"))
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(Number("u24", np.dtype("u4").str))
