"""Tensors of one checkpoint in another: payloads, order, keys that count blocks, and refusals."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import glft_schema
from glft_schema import FormatError, SchemeError, Typed, convert, save_file
from glft_schema.errors import MetadataWarning, OptionError
from glft_schema.weights.checkpoints import open_with_metadata
from tests.checks import tiny_llama
from tests.oracles.llama_loader import Loader
from tests.oracles.llama_model import LlamaModel

TRUNK, MTP = 2, 2  # the number of the MTP block follows those of the trunk: blk.0, blk.1, blk.2
KEYS = {
    "general.architecture": "toy",
    "general.name": "one",
    "general.tags": ["a", "b"],  # as many as blocks
    "toy.block_count": TRUNK,
    "toy.embedding_length": 64,
    "toy.attention.head_count_kv": [2, 4],
    "toy.rope.dimension_sections": [1, 1],
}
WITH_MTP = KEYS | {
    "general.name": "other",
    "toy.block_count": TRUNK + 1,
    "toy.nextn_predict_layers": 1,
    "toy.attention.head_count_kv": [2, 4, 8],
    "toy.only_here": 1,
}


def weights(seed: int, blocks: int = TRUNK) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    names = ["token_embd.weight", *(f"blk.{i}.ffn_up.weight" for i in range(blocks)), "output.weight"]
    return {name: torch.randn(8, 64, generator=generator) for name in names}


def payloads(path: Path) -> dict[str, tuple[int, bytes]]:
    """Returns type and bytes of each tensor, as gguf-py reads them."""
    return {tensor.name: (int(tensor.tensor_type), tensor.data.tobytes()) for tensor in gguf.GGUFReader(path).tensors}


def keys(path: Path) -> dict[str, Any]:
    reader = gguf.GGUFReader(path)
    return {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}


@pytest.fixture
def one(tmp_path: Path) -> Path:
    save_file(weights(1), tmp_path / "one.gguf", KEYS, schemes={"*": "q4_0"})
    return tmp_path / "one.gguf"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A model with an MTP block, in other types."""
    tensors = weights(2, TRUNK + 1) | {f"blk.{MTP}.nextn.eh_proj.weight": torch.randn(8, 128)}
    save_file(tensors, tmp_path / "other.gguf", WITH_MTP, schemes={"*": "q8_0", "output.weight": "f16"})
    return tmp_path / "other.gguf"


def test_a_tensor_is_replaced_byte_for_byte_in_its_place(one: Path, other: Path, tmp_path: Path) -> None:
    written = convert(one, tmp_path / "out.gguf", add=[other], only=["output.weight"])
    assert all(tensor.copied for tensor in written)
    expected = payloads(one) | {"output.weight": payloads(other)["output.weight"]}
    assert payloads(tmp_path / "out.gguf") == expected
    assert [*payloads(tmp_path / "out.gguf")] == [*payloads(one)]
    assert keys(tmp_path / "out.gguf") == keys(one)


def test_new_tensors_follow_in_their_order(one: Path, other: Path, tmp_path: Path) -> None:
    """Blocks of the added file are counted, and nothing else of its metadata is taken."""
    convert(one, tmp_path / "out.gguf", add=other, only=f"blk.{MTP}.*")
    new = [f"blk.{MTP}.ffn_up.weight", f"blk.{MTP}.nextn.eh_proj.weight"]
    found = payloads(tmp_path / "out.gguf")
    assert [*found] == [*payloads(one), *new]
    assert found == payloads(one) | {name: payloads(other)[name] for name in new}
    taken = ("toy.block_count", "toy.nextn_predict_layers", "toy.attention.head_count_kv")
    assert keys(tmp_path / "out.gguf") == keys(one) | {key: WITH_MTP[key] for key in taken}
    with glft_schema.open(tmp_path / "out.gguf") as file:
        types = [file.metadata.type_of(key) for key in taken]
    assert types == ["uint32", "uint32", "array[int32]"]


def test_what_is_grafted_and_left_out_again_gives_the_file(one: Path, other: Path, tmp_path: Path) -> None:
    """Except for the count of MTP blocks, which is zero, as llama.cpp assumes without the key."""
    convert(one, tmp_path / "both.gguf", add=other, only=[f"blk.{MTP}.*"])
    convert(tmp_path / "both.gguf", tmp_path / "out.gguf", exclude=[f"blk.{MTP}.*"])
    assert payloads(tmp_path / "out.gguf") == payloads(one)
    assert keys(tmp_path / "out.gguf") == keys(one) | {"toy.nextn_predict_layers": 0}


def test_a_draft_keeps_the_count_of_all_blocks(other: Path, tmp_path: Path) -> None:
    """As the files of convert_hf_to_gguf.py --mtp have it; ``only`` selects of the file itself."""
    convert(other, tmp_path / "draft.gguf", only=["token_embd.weight", f"blk.{MTP}.*"])
    kept = ["token_embd.weight", f"blk.{MTP}.ffn_up.weight", f"blk.{MTP}.nextn.eh_proj.weight"]
    assert payloads(tmp_path / "draft.gguf") == {name: payloads(other)[name] for name in kept}
    assert keys(tmp_path / "draft.gguf") == keys(other)


def test_a_block_left_out_in_the_middle_is_counted(other: Path, tmp_path: Path) -> None:
    """llama.cpp finds blocks by their numbers."""
    convert(other, tmp_path / "out.gguf", exclude="blk.0.*")
    assert keys(tmp_path / "out.gguf") == keys(other)


@pytest.mark.parametrize(
    ("value", "type_"), [(7, "uint32"), (Typed(2, "uint64"), "uint64"), (Typed("two", "string"), "uint32")]
)
def test_counts_that_the_names_do_not_change_are_kept(value: object, type_: str, tmp_path: Path) -> None:
    """Also wrong ones. A changed count has the key's type, unless a count cannot have it."""
    save_file(weights(1), tmp_path / "one.gguf", KEYS | {"toy.block_count": value}, rules=[])
    convert(tmp_path / "one.gguf", tmp_path / "out.gguf", exclude=["output.weight"], rules=[])
    assert keys(tmp_path / "out.gguf") == keys(tmp_path / "one.gguf")
    convert(tmp_path / "one.gguf", tmp_path / "out.gguf", exclude=["blk.1.*"], rules=[])
    with glft_schema.open(tmp_path / "out.gguf") as file:
        assert file.metadata["toy.block_count"] == 1
        assert file.metadata.type_of("toy.block_count") == type_


def test_values_for_each_block_follow_the_blocks(tmp_path: Path) -> None:
    """Of bools and floats, too; without values in the added file, the array is as it was."""
    per_block: dict[str, list[Any]] = {
        "toy.attention.sliding_window_pattern": [True, False, True],
        "toy.swiglu_clamp_exp": [0.5, 1.5, 2.5],
    }
    own = {key: value[:TRUNK] for key, value in per_block.items()}
    save_file(weights(1), tmp_path / "one.gguf", KEYS | own)
    save_file(weights(2, 3), tmp_path / "other.gguf", WITH_MTP | per_block)
    convert(tmp_path / "one.gguf", tmp_path / "out.gguf", add=tmp_path / "other.gguf", only=["blk.2.*"])
    found = keys(tmp_path / "out.gguf")
    assert {key: found[key] for key in per_block} == per_block
    convert(tmp_path / "out.gguf", tmp_path / "back.gguf", exclude="blk.2.*")
    assert (tmp_path / "back.gguf").read_bytes() == (tmp_path / "one.gguf").read_bytes()
    save_file(weights(2, 3), tmp_path / "plain.gguf", {"general.architecture": "toy", "toy.attention.head_count_kv": 4})
    convert(tmp_path / "one.gguf", tmp_path / "out.gguf", add=tmp_path / "plain.gguf", only=["blk.2.*"])
    assert keys(tmp_path / "out.gguf")["toy.attention.head_count_kv"] == [2, 4]


def test_of_several_files_the_last_has_precedence(one: Path, other: Path, tmp_path: Path) -> None:
    """A pattern may match in one of them only."""
    third = tmp_path / "third.gguf"
    save_file({"output.weight": torch.ones(8, 64), "extra": torch.ones(2)}, third)
    convert(one, tmp_path / "out.gguf", add=[other, third], only=["output.weight", "extra", "token_embd.weight"])
    found = payloads(tmp_path / "out.gguf")
    assert found["token_embd.weight"] == payloads(other)["token_embd.weight"]
    assert found["output.weight"] == payloads(third)["output.weight"]
    assert [*found][-1] == "extra"
    convert(one, tmp_path / "out.gguf", add=[third, other])
    assert payloads(tmp_path / "out.gguf") == payloads(one) | payloads(third) | payloads(other)


def test_types_without_an_encoder_and_files_of_other_kinds_are_added(one: Path, tmp_path: Path) -> None:
    """From safetensors, torch files, sets and folders; open checkpoints stay open."""
    type_ = next(t for t in glft_schema.formats.gguf.GGUF.types if t.name == "IQ1_M")
    raw = np.random.default_rng(0).integers(0, 255, type_.nbytes((2, 256)), np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "iq.gguf", "toy")
    writer.add_tensor("iq", raw.reshape(2, -1), raw_dtype=gguf.GGMLQuantizationType.IQ1_M)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    convert(one, tmp_path / "out.gguf", add=tmp_path / "iq.gguf")
    assert payloads(tmp_path / "out.gguf")["iq"][1] == raw.tobytes()

    tensors = {"output.weight": torch.randn(8, 64).bfloat16(), "x": torch.arange(3)}
    expected = {name: tensor.contiguous().view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()}
    torch.save(tensors, tmp_path / "b.pt")
    save_file(tensors, tmp_path / "b.safetensors")
    (tmp_path / "parts").mkdir()
    glft_schema.split(tmp_path / "b.safetensors", tmp_path / "parts" / "b", max_tensors=1)
    with open_with_metadata(tmp_path / "b.safetensors") as opened:
        for added in (tmp_path / "b.pt", tmp_path / "b.safetensors", tmp_path / "parts", opened):
            convert(one, tmp_path / "out.gguf", add=added)
            found = payloads(tmp_path / "out.gguf")
            assert {name: found[name][1] for name in tensors} == expected
        assert opened.tensors["x"].values().tolist() == [0, 1, 2]


def test_sets_take_grafts_and_give_them(one: Path, other: Path, tmp_path: Path) -> None:
    for path in (one, other):
        glft_schema.split(path, tmp_path / f"set-{path.stem}", max_tensors=1)
    first, second = (next(tmp_path.glob(f"set-{path.stem}-00001-of-*.gguf")) for path in (one, other))
    convert(first, tmp_path / "out.gguf", add=second, only="blk.*")
    convert(one, tmp_path / "expected.gguf", add=other, only="blk.*")
    assert payloads(tmp_path / "out.gguf") == payloads(tmp_path / "expected.gguf")
    assert keys(tmp_path / "out.gguf") == keys(tmp_path / "expected.gguf")


def test_schemes_apply_to_grafts(one: Path, other: Path, tmp_path: Path) -> None:
    schemes = {"output.weight": "q5_0"}
    written = convert(one, tmp_path / "out.gguf", add=other, only="output.weight", schemes=schemes)
    assert {tensor.name: tensor.type.name for tensor in written if not tensor.copied} == {"output.weight": "Q5_0"}


@pytest.mark.linux("lists a process's descriptors in /proc")
def test_files_of_grafts_are_closed(one: Path, other: Path, tmp_path: Path) -> None:
    gc.collect()  # files that other tests have dropped
    before = len(os.listdir("/proc/self/fd"))
    convert(one, tmp_path / "out.gguf", add=[other, one])
    with pytest.raises(SchemeError):
        convert(one, tmp_path / "out.gguf", add=[other, one], only="none")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_scale_that_is_none_of_nvfp4_stays(tmp_path: Path) -> None:
    """It is a tensor like others."""
    own, new = (
        {"x.weight": torch.ones(2, 3), "x.scale": torch.ones(1)},
        {"x.weight": torch.zeros(2, 3), "x.scale": torch.zeros(1)},
    )
    save_file(own, tmp_path / "own.safetensors")
    save_file(new, tmp_path / "new.safetensors")
    convert(
        tmp_path / "own.safetensors", out := tmp_path / "out.safetensors", add=tmp_path / "new.safetensors", only=["x.weight"]
    )
    found = glft_schema.load_file(out)
    assert {name: float(tensor.sum()) for name, tensor in found.items()} == {"x.weight": 0, "x.scale": 1}


def test_another_shape_is_a_warning(one: Path, tmp_path: Path) -> None:
    save_file({"output.weight": torch.ones(9, 64)}, tmp_path / "b.safetensors")
    text = r"tensor 'output.weight' of shape \[8, 64\] is replaced by one of \[9, 64\]"
    with pytest.warns(MetadataWarning, match=text):
        convert(one, tmp_path / "out.gguf", add=tmp_path / "b.safetensors")
    assert keys(tmp_path / "out.gguf") == keys(one)


def test_what_is_refused(one: Path, other: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    with pytest.raises(SchemeError, match=r"expected a tensor that matches 'outptu.weight', found none; did you mean 'output"):
        convert(one, out, add=other, only=["blk.*", "outptu.weight"])
    with pytest.raises(SchemeError, match=r"expected a tensor that matches 'blk\.2\.\*', found none"):
        convert(one, out, exclude="blk.2.*", add=other)  # of the first file only
    with pytest.raises(SchemeError, match=r"expected a tensor that matches 'x', found none"):
        convert(one, out, only="x")
    with pytest.raises(OptionError, match=r"expected add and only \(--add, --only\) without like \(--like\)"):
        convert(one, out, like=one, add=other)
    with pytest.raises(FileNotFoundError):
        convert(one, out, add=tmp_path / "missing.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(FormatError):
        convert(one, out, add=tmp_path / "broken.gguf")
    assert not out.exists()


def llama(path: Path, seed: int, scheme: str) -> Path:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator)
        for name, shape in tiny_llama.SHAPES.items()
    }
    save_file(tensors, path, tiny_llama.KEYS, schemes={"*": scheme, "*norm.weight": "f32"})
    return path


def test_llama_cpp_computes_with_a_grafted_output(tmp_path: Path) -> None:
    """The logits are those of a file that was written with the matrix, bit for bit."""
    pytest.importorskip("xllamacpp")
    small, full, out = llama(tmp_path / "q.gguf", 1, "q8_0"), llama(tmp_path / "f.gguf", 1, "f16"), tmp_path / "out.gguf"
    convert(small, out, add=full, only="output.weight")
    with glft_schema.open(small) as quantized, glft_schema.open(full) as exact:
        tensors = {**quantized.tensors, "output.weight": exact.tensors["output.weight"]}
        save_file(tensors, tmp_path / "expected.gguf", quantized.metadata)
    logits = []
    for path in (small, out, tmp_path / "expected.gguf"):
        with LlamaModel(path) as model:
            logits.append(model.logits([1, 2, 3]))
    assert np.array_equal(logits[1], logits[2])
    assert not np.array_equal(logits[0], logits[1])
    assert np.isfinite(logits[1]).all()


def glm4(path: Path, mtp: int) -> Path:
    """Writes a GLM-4 of two blocks, and blocks that predict further tokens."""
    generator, blocks = torch.Generator().manual_seed(3), TRUNK + mtp
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (8, 64), "output_norm.weight": (64,), "output.weight": (8, 64)}
    block: dict[str, tuple[int, ...]] = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
    block |= {"ffn_up": (192, 64), "ffn_down": (64, 96)}
    block |= dict.fromkeys(("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"), (64,))
    shapes |= {f"blk.{i}.{name}.weight": shape for i in range(blocks) for name, shape in block.items()}
    nextn = {"eh_proj": (64, 128), "enorm": (64,), "hnorm": (64,)}
    shapes |= {f"blk.{i}.nextn.{name}.weight": shape for i in range(TRUNK, blocks) for name, shape in nextn.items()}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    entries = {key.replace("llama.", "glm4."): value for key, value in tiny_llama.KEYS.items()} | {
        "general.architecture": "glm4",
        "glm4.embedding_length": 64,
        "glm4.feed_forward_length": 96,
        "glm4.attention.head_count": 4,
        "glm4.attention.head_count_kv": [2] * blocks,
        "glm4.block_count": blocks,
        "glm4.nextn_predict_layers": mtp,
    }
    save_file(tensors, path, entries, schemes={"*.attn_*.weight": "q8_0"})
    return path


def test_llama_cpp_loads_a_model_without_its_mtp_block_and_with_it_again(tmp_path: Path) -> None:
    """With the old counts it refuses the model. The logits are those of the trunk."""
    pytest.importorskip("xllamacpp")
    full, out, again = glm4(tmp_path / "full.gguf", 1), tmp_path / "out.gguf", tmp_path / "again.gguf"
    convert(full, out, exclude="blk.2.*")
    convert(out, again, add=full, only="blk.2.*")
    stale = {"glm4.block_count": 3, "glm4.nextn_predict_layers": 1}
    glft_schema.edit(out, tmp_path / "stale.gguf", set=stale | {"glm4.attention.head_count_kv": [2] * 3})
    glft_schema.edit(again, tmp_path / "unread.gguf", set={"glm4.nextn_predict_layers": 0})
    with Loader() as loader:
        assert [loader.refusal(path) for path in (full, out, again)] == ["", "", ""]
        assert "tensor 'blk.2.attn_norm.weight' not found" in loader.refusal(tmp_path / "stale.gguf")
        assert "wrong number of tensors" in loader.refusal(tmp_path / "unread.gguf")
    logits = []
    for path in (full, out, again):
        with LlamaModel(path) as model:
            logits.append(model.logits([1, 2, 3]).tobytes())
    assert logits[0] == logits[1] == logits[2]
    assert payloads(again) == payloads(full)
    assert keys(again) == keys(full)
