"""Refusals of the quantizer: what is missing and what to do, and nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema as glft
from glft_schema import OptionError, SchemeError, Typed, quantize
from tests.quantizer import models


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A llama of two layers, in F32."""
    path = tmp_path / "in.gguf"
    models.write(path, models.keys(), models.tensors())
    return path


@pytest.mark.parametrize(
    ("recipe", "options", "error", "message"),
    [
        ("Q4_K_X", {}, OptionError, "expected a file type or the path of a recipe file, found 'Q4_K_X'; did you mean 'Q4_K_"),
        (99, {}, OptionError, "a recipe file, found 99; file types are"),
        ("NVFP4", {}, OptionError, "found 'NVFP4'"),  # llama-quantize has no such file type
        ("IQ2_M", {}, SchemeError, "iq2_s, for tensor 'blk.0.attn_k.weight', requires an importance matrix, found none"),
        ("Q8_0", {"prune_layers": [1, 2, 9]}, OptionError, "expected layers of the model to prune, of 2 layers, found 2"),
        ("Q8_0", {"tensor_types": {"attn_q": "i32"}}, SchemeError, "'blk.0.attn_q.weight' cannot be stored as i32: "),
        ("Q8_0", {"importance": 5}, OptionError, "expected an importance matrix, its file, or importance by tensor, found 5"),
        ("Q8_0", {"importance": {"blk.0.attn_q.weight": torch.ones(64)}}, OptionError,
         "the importance matrix is not of this model: tensor 'blk.0.attn_q.weight': "),
        ("Q8_0", {"importance": {"a": torch.ones(1)}, "include_weights": "b"}, OptionError,
         "expected names with 'b' in the importance matrix: none of 1 would be used"),
        ("Q8_0", {"importance": {"a": torch.ones(1)}, "exclude_weights": ["b"]}, OptionError,
         "expected names with 'b' in the importance matrix: all of 1 would be used"),
        ("Q8_0", {"tensor_types": [("ffn", "q9")]}, SchemeError, "ggml has no type 'q9': expected"),
        ("Q8_0", {"include_weights": ["a"], "exclude_weights": ["b"]}, OptionError,
         "expected include_weights or exclude_weights .*, found both"),
        ("Q8_0", {"include_weights": ["a"]}, OptionError, "include_weights and exclude_weights require an importance matrix"),
        ("o.gguf", {}, OptionError, "expected a file type or a recipe file after the output, found the weights file 'o.gguf'"),
        ("Q8_0", {"keep_split": True}, OptionError, "keep_split .* requires a set of GGUF files as the source"),
    ],
)  # fmt: skip
def test_refused(source: Path, recipe: str | int, options: dict[str, Any], error: type[Exception], message: str) -> None:
    out = source.with_name("out.gguf")
    with pytest.raises(error, match=message):
        quantize(source, out, recipe, **options)
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": None}, "expected the key general.architecture, found none: a recipe needs"),
        ({"llama.block_count": None}, "expected an integer at the key llama.block_count, found None"),
        ({"llama.block_count": Typed(True, "bool")}, "expected an integer at the key llama.block_count, found True"),
        ({"llama.attention.head_count": Typed([], "array[uint32]")}, r"the key llama.attention.head_count, found \[\]"),
    ],
)
def test_a_key_that_recipes_need(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    metadata = {key: value for key, value in (models.keys() | changes).items() if value is not None}
    models.write(tmp_path / "in.gguf", metadata, models.tensors(width=64))
    with pytest.raises(SchemeError, match=message):
        quantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "Q4_K_M")


@pytest.mark.parametrize("name", ["ffn_down.weight", "blk.2.ffn_down_exps.weight", f"blk.{'9' * 50}.ffn_down_exps.weight"])
def test_a_layer_of_experts_without_its_number(tmp_path: Path, name: str) -> None:
    models.write(tmp_path / "in.gguf", models.keys(experts=4), {name: torch.zeros(4, 2, 256)})
    with pytest.raises(SchemeError, match=f"expected a name that begins with blk.N. with N below 2, found '{name}'"):
        quantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "Q4_K_M")


def test_a_number_too_long_for_python(tmp_path: Path) -> None:
    """Of a layer, in a name of more digits than Python converts."""
    models.write(tmp_path / "in.gguf", models.keys(), {f"blk.{'9' * 5000}.ffn_up.weight": torch.zeros(4, 256)})
    (tensor,) = quantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "q4_k_m", dry_run=True)
    assert tensor.type.name == "Q4_K"


def test_a_model_without_metadata(tmp_path: Path) -> None:
    glft.save_file({"blk.0.attn_q.weight": torch.ones(2, 64)}, tmp_path / "in.safetensors")
    with pytest.raises(SchemeError, match="glft convert --scheme needs none"):
        quantize(tmp_path / "in.safetensors", tmp_path / "out.gguf", "Q8_0")


def test_a_dry_run_says_what_would_be_refused(source: Path, tmp_path: Path) -> None:
    plan = quantize(source, tmp_path / "out.gguf", "IQ2_M", dry_run=True, tensor_types={"nothing": "q8_0"})
    assert plan.notes == (
        "would be refused: iq2_s, for tensor 'blk.0.attn_k.weight', requires an importance matrix, found none"
        "; to measure one: glft imatrix MODEL TEXT -o FILE",
        "no tensor gets its type by the pattern 'nothing'",
    )
    quantize(source, tmp_path / "q8_0.gguf", "Q8_0")
    again = quantize(tmp_path / "q8_0.gguf", tmp_path / "out.gguf", "Q6_K", dry_run=True)
    (note,) = again.notes  # the fallback type of ffn_down is its own
    refusal = "13 tensors (Q8_0) are quantized already, such as 'token_embd.weight': requantizing adds error"
    assert note.startswith(f"would be refused: {refusal}")


@pytest.mark.parametrize("in_a_file", [True, False])
def test_a_matrix_that_lacks_tensors(in_a_file: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named, and so is a way out. Types that need none say which tensors went without."""
    monkeypatch.chdir(tmp_path)  # a short path
    sums = glft.weights.ColumnSums(torch.ones(1, 256), torch.tensor([1]))
    given = glft.weights.ImportanceMatrix({f"blk.{i}.attn_q.weight": sums for i in range(2)})
    given.save("some.gguf")
    importance = "some.gguf" if in_a_file else given.importance()
    lacks = f"which the importance matrix{' ' + repr(importance) if in_a_file else ''} lacks"
    with pytest.raises(SchemeError) as refused:
        quantize(source, tmp_path / "out.gguf", "IQ2_M", importance=importance)
    way_out = "measure it, or give it another type (--tensor-type)"
    assert str(refused.value) == f"iq2_s, for tensor 'blk.0.attn_k.weight', requires its importance, {lacks}: {way_out}"
    done = quantize(source, tmp_path / "out.gguf", "Q4_K_M", importance=importance, tensor_types={"ffn_up": "q8_0"})
    names = "'blk.0.attn_k.weight', 'blk.0.attn_output.weight', 'blk.0.attn_v.weight', ..."
    assert done.notes == (f"without importance, {lacks}: 9 tensors: {names}",)
    assert quantize(tmp_path / "out.gguf", tmp_path / "again.gguf", "COPY", importance=importance).notes == ()


def test_options_without_effect(source: Path, tmp_path: Path) -> None:
    done = quantize(source, tmp_path / "out.gguf", "F16", tensor_types=[("attn_q", "q8_0")])
    assert done.notes == ("no tensor gets its type by the pattern 'attn_q'",)


def test_a_dry_run_foretells_the_file(tmp_path: Path) -> None:
    weights = models.tensors(tied=False, width=64, down=24)
    models.write(tmp_path / "in.gguf", models.keys(), weights)
    plan = quantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "Q4_K_M", dry_run=True)
    assert not (tmp_path / "out.gguf").exists()
    done = quantize(tmp_path / "in.gguf", tmp_path / "out.gguf", 15)
    planned, written = ([(t.name, t.type, t.nbytes, t.note) for t in result] for result in (plan, done))
    assert planned == written
    assert [*done] == done.tensors == done[:]
    assert repr(done[0]).startswith(f"<WrittenTensor: name {done[0].name}, source float32, type ")
    assert plan.bits_per_weight == 8 * done.nbytes / sum(tensor.numel() for tensor in weights.values())
    with glft.open(tmp_path / "out.gguf") as file:
        assert sum(tensor.nbytes for tensor in file.tensors.values()) == plan.nbytes


def in_two_files(folder: Path, weights: dict[str, torch.Tensor]) -> list[str]:
    models.write(folder / "in.gguf", models.keys(), weights)
    return glft.split(folder / "in.gguf", folder / "part", max_tensors=13)


def test_a_set_is_never_written_over(tmp_path: Path) -> None:
    paths = in_two_files(tmp_path, models.tensors(width=64))
    before = [Path(path).read_bytes() for path in paths]
    with pytest.raises(OptionError, match=r"expected no file at the output paths, found 'part-00001-of-00002\.gguf'"):
        quantize(paths[0], tmp_path / "part.gguf", "Q8_0", keep_split=True)
    assert [Path(path).read_bytes() for path in paths] == before


def test_a_set_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    weights = models.tensors(width=64)
    weights["blk.0.ffn_up.weight"][0, 0] = torch.inf  # in the second file
    first, _ = in_two_files(tmp_path, weights)
    with pytest.raises(glft.TensorError, match=r"blk\.0\.ffn_up\.weight"):
        quantize(first, tmp_path / "out", "Q8_0", keep_split=True)
    assert not [*tmp_path.glob("out*")]


def test_a_type_without_fallback_becomes_f16_if_rows_fit_no_block(tmp_path: Path) -> None:
    """llama.cpp lists no fallback for q8_k, as for types of other packages."""
    name = "blk.0.ffn_gate.weight"
    models.write(tmp_path / "in.gguf", models.keys(), {**models.tensors(), name: torch.ones(8, 64)})
    quantized = quantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "Q8_0", tensor_types={name: "q8_k"})
    (written,) = [tensor for tensor in quantized if tensor.name == name]
    assert (str(written.type), written.note) == ("F16", "not q8_k: expected a row length that is a multiple of 256, found 64")
