"""Weights files loaded by ranks: shards of every kind, names of models, and errors."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import checkpoint
from torch.distributed.tensor import Replicate, Shard

import glft_schema as glft
from glft_schema.distributed import StorageReader
from glft_schema.tensor_types.chunks import CHUNK
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensors.stored_tensor import of_file
from glft_schema.weights.in_memory import packed_tensor
from tests.distributed import models, tensors
from tests.families.tiny_folders import make_folder
from tests.tools.depth import FULL
from tests.tools.ranks import RankError, run

MESHES = [
    ((2,), (Shard(0),)),
    ((2,), (Shard(1),)),
    ((3,), (Shard(1),)),  # cut inside blocks
    ((4,), (Shard(2),)),
    ((2, 2), (Shard(0), Shard(1))),
    ((2, 2), (Shard(1), Shard(0))),
    ((2, 2), (Shard(0), Shard(0))),
    ((2,), (Replicate(),)),
]
TYPES = {
    "gguf": {"big": "q4_k", "narrow": "iq4_nl", "stack": "q6_k"},
    "glft": {"big": "q8_per_channel", "narrow": "q4_per_group_64"},
    "safetensors": {},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for ending, schemes in TYPES.items():
        glft.save_file(tensors.example(), folder / f"one.{ending}", schemes=schemes)
    for ending in ("gguf", "safetensors"):
        with glft.open(folder / f"one.{ending}") as file:
            (folder / f"set-{ending}").mkdir()
            glft.split(file, folder / f"set-{ending}" / "part", max_tensors=2)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["one.gguf", "one.glft", "one.safetensors", "set-gguf/part-00001-of-00003.gguf", "set-safetensors"]
)
def test_all_ranks_get_their_shards(folder: Path, name: str) -> None:
    with glft.open(folder / name) as file:
        expected = {name: tensor.dequantize(torch.float32).clone() for name, tensor in file.tensors.items()}
    meshes = MESHES if FULL and name == "one.gguf" else MESHES[:5:2]
    for mesh, placements in meshes if FULL or name == "one.gguf" else meshes[1:2]:
        for found in run(torch.Size(mesh).numel(), tensors.load, folder / name, mesh, placements):
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("dim", [0, 1])
def test_a_rank_reads_its_share_and_a_block_for_each_row_that_is_cut(tmp_path: Path, dim: int) -> None:
    path, (rows, columns), ranks = tmp_path / "m.gguf", (512, 256 * 9), 4
    glft.save_file({"weight": torch.randn(rows, columns), "other": torch.randn(2000, 2560)}, path, schemes={"*": "q4_k"})
    with glft.open(path) as file:
        share = file.tensors["weight"].nbytes / ranks
    block, cuts, others = 144, 2 * rows * dim, 4096  # others: what torch tells the other ranks
    for read in run(ranks, tensors.bytes_read, path, "weight", (rows, columns), ranks, dim):
        assert share <= read <= share + block * cuts + others


@pytest.mark.parametrize("packed", [False, True])
def test_memory_is_the_share_and_two_chunks(tmp_path: Path, packed: bool) -> None:
    path, type_ = tmp_path / "m.gguf", GGML_TYPES["Q4_K"]
    rows = np.tile(type_.pack(type_.encode(torch.randn(64, 8192), "w")), (128, 1))  # 256 MiB as float32
    glft.save_file({"w": of_file(packed_tensor("w", type_, (8192, 8192), rows))}, path)
    shape = (8192, rows.shape[1] if packed else 8192)
    for peak in run(4, tensors.memory_for, path, "w", shape, 4, packed):
        assert peak <= 2 * 4 * CHUNK


@pytest.mark.parametrize(
    ("name", "dims", "inside"),
    [
        ("one.gguf", (0, 1), "expected bytes 0 to 480 of a row to begin and end at multiples of 144, the size of a block"),
        ("one.glft", (0,), "to begin and end at multiples of 2562"),  # several fields have whole rows
    ],
)
def test_packed_bytes_are_cut_between_blocks(folder: Path, name: str, dims: tuple[int, ...], inside: str) -> None:
    with glft.open(folder / name) as file:
        packed = torch.tensor(file.tensors["big"].packed_rows())
    target = {"big": torch.zeros_like(packed)}
    for dim in dims:
        for found in run(2, tensors.load, folder / name, (2,), (Shard(dim),), target):
            assert torch.equal(found["big"], packed)
    with pytest.raises(RankError, match=inside):
        run(3, tensors.load, folder / name, (3,), (Shard(1),), target)


def test_a_target_that_is_refused_on_all_ranks(folder: Path) -> None:
    with pytest.raises(RankError) as raised:
        run(2, tensors.load_into, folder / "one.gguf", {"vector": torch.zeros(50, dtype=torch.int32)})
    assert (
        str(raised.value).count("tensor 'vector': expected a target of a float dtype or torch.float32, found torch.int32") >= 2
    )


def test_nothing_is_written_before_all_targets_are_checked(folder: Path) -> None:
    state = {"big": torch.zeros(640, 2560), "vector": torch.zeros(50, dtype=torch.int64)}
    with (
        pytest.warns(UserWarning, match="torch.distributed"),
        pytest.raises(checkpoint.api.CheckpointException, match="vector"),
    ):
        checkpoint.load(state, storage_reader=StorageReader(folder / "one.gguf"))
    assert not state["big"].any()


def test_ranks_that_open_other_files(folder: Path, tmp_path: Path) -> None:
    paths = (folder / "one.gguf", tmp_path / "one.gguf")
    state = {"vector": torch.zeros(50)}
    shutil.copyfile(*paths)
    assert torch.equal(run(2, tensors.load_into, None, state, (), paths)[1]["vector"], tensors.example()["vector"])
    os.truncate(paths[1], 100)
    with pytest.raises(RankError, match=r"(?s)rank 1: .*TruncatedError"):
        run(2, tensors.load_into, None, state, (), paths)
    glft.save_file(state, paths[1])
    file = r"one\.gguf of [0-9]+ bytes, content [0-9a-f]{16}"
    with pytest.raises(RankError, match=f"rank 1: expected the files of rank 0, {file}, found {file}"):
        run(2, tensors.load_into, None, state, (), paths)


def test_a_reader_can_be_used_again(folder: Path) -> None:
    reader, state = StorageReader(folder / "one.gguf"), {"vector": torch.zeros(50)}
    for checkpoint_id in (None, folder / "one.glft"):
        with pytest.warns(UserWarning, match="torch.distributed"):
            checkpoint.load(state, checkpoint_id=checkpoint_id, storage_reader=reader)
        assert torch.equal(state["vector"], tensors.example()["vector"])
    assert reader.path == folder / "one.glft"
    assert not StorageReader.validate_checkpoint_id(folder / "none")


def test_names_and_the_targets_dtype(folder: Path) -> None:
    with glft.open(folder / "one.gguf") as file:
        expected = file.tensors["big"].dequantize(torch.bfloat16)
    for names in ({"big": "layer.big"}, lambda name: f"layer.{name}" if name == "big" else None):
        state = {"layer.big": torch.zeros(640, 2560, dtype=torch.bfloat16)}
        with pytest.warns(UserWarning, match="torch.distributed"):
            checkpoint.load(state, storage_reader=StorageReader(folder / "one.gguf", names=names))
        assert torch.equal(state["layer.big"], expected)


@pytest.mark.full
def test_packed_models_of_transformers(tmp_path: Path) -> None:
    """Other models are saved, too."""
    pytest.importorskip("transformers")
    glft.quantize(make_folder(tmp_path, "tiny-gemma3"), tmp_path / "m.gguf", "Q8_0")
    assert max(run(3, models.load_and_compare, tmp_path / "m.gguf", 3)) < 1e-5
