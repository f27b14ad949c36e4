"""Weights files that ranks write from their shards: the bytes of one process, and faults."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Shard

import glft_schema as glft
from glft_schema.distributed import StorageWriter
from glft_schema.models.from_gguf import load_model
from tests.distributed import models, tensors
from tests.distributed.test_loading import MESHES, TYPES
from tests.docs.test_docs import ROOT, blocks
from tests.families.tiny_folders import make_folder
from tests.tools import launch
from tests.tools.depth import FULL, some_by_default
from tests.tools.launch import left_in
from tests.tools.ranks import RankError, run

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "gguf": ("gguf", {"schemes": TYPES["gguf"], "metadata": {"general.name": "x"}}),
    "big-endian": ("gguf", {"schemes": TYPES["gguf"], "header": {"byte_order": "big"}, "alignment": 64}),
    "glft": ("glft", {"schemes": TYPES["glft"]}),
    "safetensors": ("safetensors", {}),
    "importance": ("gguf", {"schemes": {"big": "q4_k"}, "importance": {"big": torch.arange(1.0, 2561.0)}}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", some_by_default(list(OPTIONS), 2))
def test_any_mesh_writes_the_bytes_of_one_process(name: str, tmp_path: Path) -> None:
    ending, options = OPTIONS[name]
    alone, out = tmp_path / f"alone.{ending}", tmp_path / f"out.{ending}"
    glft.save_file(tensors.example(), alone, **options)
    expected = hashlib.sha256(alone.read_bytes()).hexdigest()
    meshes = [((1,), (Shard(0),)), *(MESHES if FULL and name == "gguf" else MESHES[1:5:3])]
    for mesh, placements in meshes if FULL or name == "gguf" else meshes[1:2]:
        count = torch.Size(mesh).numel()
        assert run(count, tensors.save, out, mesh, placements, options) == [expected] * count
        assert left_in(tmp_path) == set()


def test_weights_that_change_while_they_are_written(tmp_path: Path) -> None:
    """async_save copies the shards first."""
    alone, out = tmp_path / "alone.gguf", tmp_path / "out.gguf"
    glft.save_file(tensors.example(), alone, schemes={"big": "q8_0"})
    expected = hashlib.sha256(alone.read_bytes()).hexdigest()
    assert run(2, tensors.save_async, out, (2,), (Shard(0),), {"big": "q8_0"}) == [expected] * 2
    assert left_in(tmp_path) == set()


def test_an_asynchronous_save_that_fails(tmp_path: Path) -> None:
    """The error comes with the result, and the old file stays."""
    out = tmp_path / "out.gguf"
    out.write_bytes(b"old")
    with pytest.raises(RankError) as raised:
        run(2, tensors.save_async, out, (2,), (Shard(0),), {"none": "q8_0"})
    assert str(raised.value).count("'none'") >= 2
    assert out.read_bytes() == b"old"
    assert left_in(tmp_path) == set()


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "ranks"), [("fsdp", 2), *(pytest.param(*pair, marks=pytest.mark.full) for pair in (("tensor", 2), ("both", 4)))]
)
def test_models_of_transformers(how: str, ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path, same, out = (tmp_path / name for name in ("model.gguf", "same.gguf", "out.gguf"))
    glft.quantize(make_folder(tmp_path, "tiny-llama"), path, "F32")
    run(ranks, models.save, path, same, out, how, ranks, "Q8_0")
    assert same.read_bytes() == path.read_bytes()
    glft.quantize(path, tmp_path / "alone.gguf", "Q8_0")
    with glft.open(out) as found, glft.open(tmp_path / "alone.gguf") as expected:
        assert all(found.tensors[name].raw == tensor.raw for name, tensor in expected.tensors.items())
        assert dict(found.metadata) == dict(expected.metadata)


@pytest.mark.long
def test_the_program_of_the_page(tmp_path: Path) -> None:
    """A model with a tied output, of which the state dict has two tensors with equal values."""
    pytest.importorskip("transformers")
    glft.quantize(make_folder(tmp_path, "tiny-qwen2"), tmp_path / "model.gguf", "F32")
    (program,) = (block for block in blocks(ROOT / "docs" / "guides" / "scale.md", "python") if block.startswith("# shards.py"))
    for code, _, error in launch.run(2, [program], module="-c", folder=tmp_path):
        assert code == 0, error
    assert (tmp_path / "saved.gguf").read_bytes() == (tmp_path / "model.gguf").read_bytes()
    glft.quantize(tmp_path / "model.gguf", tmp_path / "alone.gguf", "Q8_0")
    with glft.open(tmp_path / "q8_0.gguf") as found, glft.open(tmp_path / "alone.gguf") as expected:
        assert {name: t.raw for name, t in found.tensors.items()} == {name: t.raw for name, t in expected.tensors.items()}


def test_a_tied_output_that_ranks_have_changed(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path, out = tmp_path / "model.gguf", tmp_path / "out.gguf"
    glft.quantize(make_folder(tmp_path, "tiny-qwen2"), path, "F32")
    state = dict(load_model(path).state_dict())
    state["lm_head.weight"] = state["lm_head.weight"] * 2
    with pytest.raises(RankError) as raised:
        run(2, tensors.save_state, out, state, {"like": path})
    assert str(raised.value).count("'output.weight': expected the values of the token embedding, to which it is tied") >= 2
    assert not out.exists()


@pytest.mark.parametrize("rows", [8, 1, 0])  # of one row, a rank has an empty shard
def test_tied_tensors_are_stored_once(rows: int, tmp_path: Path) -> None:
    weight = torch.randn(rows, 64)
    state = {"a": weight, "b": weight, "c": weight.clone()}
    for ending in ("glft", "safetensors"):
        glft.save_file(state, tmp_path / f"alone.{ending}")
        run(2, tensors.save_state, tmp_path / f"out.{ending}", state)
        assert (tmp_path / f"out.{ending}").read_bytes() == (tmp_path / f"alone.{ending}").read_bytes()


def test_what_cannot_be_stored_is_refused_on_all_ranks(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"old")
    with pytest.raises(RankError) as raised:
        run(2, tensors.save_state, out, {"step": 3, "w": torch.zeros(3)})
    assert str(raised.value).count("tensor 'step': expected a tensor, found another object") >= 2
    assert out.read_bytes() == b"old"
    assert left_in(tmp_path) == set()


def test_ranks_with_other_schemes(tmp_path: Path) -> None:
    with pytest.raises(RankError, match="rank 1: expected the plans of rank 0"):
        run(2, tensors.save_state, tmp_path / "out.gguf", {"w": torch.zeros(2, 64)}, {}, {1: {"schemes": {"w": "q8_0"}}})
    assert [*tmp_path.iterdir()] == []


def test_a_rank_that_fails(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"old")
    with pytest.raises(RankError) as raised:
        run(3, tensors.save_and_fail, out, "numbers")
    assert str(raised.value).count("tensor 'big' at [") >= 3
    assert out.read_bytes() == b"old"
    assert left_in(tmp_path) == set()


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"old")
    with pytest.raises(RankError, match="rank 1: ended without a result"):
        run(3, tensors.save_and_fail, out, "killed")
    assert out.read_bytes() == b"old"


def test_options_that_exclude_each_other() -> None:
    with pytest.raises(glft.OptionError, match="expected like with recipe: recipes need a model's metadata"):
        StorageWriter("out.gguf", recipe="Q4_K_M")
    with pytest.raises(glft.OptionError, match="expected no schemes with recipe"):
        StorageWriter("out.gguf", like="model.gguf", recipe="Q4_K_M", schemes={"*": "q8_0"})
    StorageWriter("out.gguf", like="model.gguf", recipe="Q4_K_M", strict=False, alignment=None)
    assert not StorageWriter.validate_checkpoint_id("/")
    writer = StorageWriter("out.gguf")
    writer.reset("other.gguf")
    assert writer.path == "other.gguf"


def test_shards_are_no_tensors_of_save_file(tmp_path: Path) -> None:
    hint = r"save its full_tensor\(\), or use StorageWriter \(docs/guides/scale.md\)"
    with pytest.raises(RankError, match=rf"'w': .*, found a DTensor \(torch.strided\): {hint}"):
        run(1, tensors.save_file_of_shards, tmp_path / "out.gguf")
