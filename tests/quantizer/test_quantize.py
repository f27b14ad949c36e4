"""Files equal those of llama.cpp's own quantizer, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import glft_schema as glft
from glft_schema import Typed, quantize
from glft_schema.formats.gguf import GGUF
from glft_schema.quantizer.recipes import RECIPES, recipe_named
from glft_schema.weights import ImportanceMatrix
from tests.oracles import llama_quantize
from tests.quantizer import models
from tests.quantizer.both import REFUSED, compare, importances
from tests.tools.depth import FULL, some_by_default

pytestmark = pytest.mark.network
NO_FALLBACK = "q1_0"  # llama.cpp refuses rows that its blocks do not divide; here they become F16


THREE = ["Q4_K_M", "Q3_K_M", "Q5_0"]


@pytest.mark.long
@pytest.mark.parametrize("experts", [0, pytest.param(8, marks=pytest.mark.full)])
def test_three_types(folder: Path, tmp_path: Path, experts: int) -> None:
    weights = models.tensors(9, experts=experts, tied=not experts)
    models.write(tmp_path / "in.gguf", models.keys(layers=9, experts=experts), weights)
    for importance, names in ((None, THREE), (importances(weights), THREE if FULL else THREE[:1])):
        assert compare(folder, tmp_path / "in.gguf", names, importance) == dict.fromkeys(names, "equal")


@pytest.mark.full
@settings(max_examples=max(settings.default.max_examples // 200, 5))
@given(models.models(), st.lists(st.sampled_from([recipe.name for recipe in RECIPES]), min_size=3, max_size=3, unique=True))
def test_any_model(folder: Path, tmp_path_factory: pytest.TempPathFactory, model: tuple[Any, Any], names: list[str]) -> None:
    metadata, weights = model
    source = tmp_path_factory.getbasetemp() / "any.gguf"
    models.write(source, metadata, weights)
    for importance in (None, importances(weights)):
        ended = compare(folder, source, names, importance)
        width = {tensor.shape[-1] for tensor in weights.values() if tensor.dim() > 1}
        unequal = {name: end for name, end in ended.items() if end not in ("equal", "refused")}
        if any(size % 128 for size in width):  # see NO_FALLBACK
            unequal = {name: end for name, end in unequal.items() if recipe_named(name).default != NO_FALLBACK}
        assert not unequal
        assert {name for name, end in ended.items() if end == "refused"} <= (REFUSED if importance is None else set())


def code(type_: str) -> int:
    """Returns ggml's number of a type."""
    found = GGUF.types[type_].code
    assert isinstance(found, int)
    return found


OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [  # llama.cpp's, ours
    ({"pure": True}, {"pure": True}),
    ({"quantize_output_tensor": False}, {"leave_output_tensor": True}),
    ({"output_tensor_type": code("q5_k")}, {"output_tensor_type": "q5_k"}),
    ({"token_embedding_type": code("q3_k")}, {"token_embedding_type": "q3_k"}),
    (
        {"token_embedding_type": code("q8_0"), "patterns": [["per_layer", code("q6_k")]]},
        {"token_embedding_type": "q8_0", "tensor_types": {"per_layer": "q6_k"}},
    ),
    (
        {"patterns": [["attn_[qk]", code("q8_0")], ["0.attn_q", code("f16")], ["^ffn", code("q8_0")]]},
        {"tensor_types": [("attn_[qk]", "q8_0"), ("0.attn_q", "f16"), ("^ffn", "q8_0")]},
    ),
    (
        {"patterns": [[r"\.[[:digit:]]\.attn_[[:alpha:]]\.w", code("q8_0")], [r"ffn_(up|down)\.(?!x)w.+t$", code("q6_k")]]},
        {"tensor_types": {r"\.[[:digit:]]\.attn_[[:alpha:]]\.w": "q8_0", r"ffn_(up|down)\.(?!x)w.+t$": "q6_k"}},
    ),
    (
        {"overrides": {"llama.block_count": 16, "general.file_type": -4, "a.b": 0.1, "a.c": True, "a.d": "x"}},
        {"override": {"llama.block_count": 16, "general.file_type": Typed(4, "uint32"), "a.b": 0.1, "a.c": True, "a.d": "x"}},
    ),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(OPTIONS)))
@pytest.mark.parametrize("tied", some_by_default([True, False], 2))
def test_options(folder: Path, tmp_path: Path, number: int, tied: bool) -> None:
    theirs, ours = OPTIONS[number]
    weights = models.tensors(layers := 9 if FULL else 5, tied=tied)
    weights["per_layer_token_embd.weight"] = torch.randn(2, 256)
    models.write(tmp_path / "in.gguf", models.keys(layers=layers), weights)
    ended = compare(folder, tmp_path / "in.gguf", ["Q4_K_M", "F16"], **theirs, ours=ours)
    assert ended == {"Q4_K_M": "equal", "F16": "equal"}


@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize("pruned", some_by_default([[0], [3, 1], [4], [0, 1, 2, 3, 4]], 2))
def test_pruned_layers(folder: Path, tmp_path: Path, pruned: list[int], experts: int) -> None:
    """Names, types by layer and importance by the old names; a copy, too."""
    weights = models.tensors(5, experts, tied=False)
    weights |= {"a.blk.1.weight": torch.ones(2, 256), "blk.x.weight": torch.ones(2, 256)}
    models.write(tmp_path / "in.gguf", models.keys(layers=5, experts=experts), weights)
    given, ours = {"pruned": sorted(pruned)}, {"prune_layers": pruned}
    patterns, types = [["blk.1.ffn_up", code("q8_0")]], {"blk.1.ffn_up": "q8_0"}
    for importance in (None, importances(weights)):
        ended = compare(folder, tmp_path / "in.gguf", ["Q4_K_M", "IQ4_XS"], importance, **given, patterns=patterns,
                        ours=ours | {"tensor_types": types})  # fmt: skip
        assert ended == {"Q4_K_M": "equal", "IQ4_XS": "equal"}
    assert compare(folder, tmp_path / "in.gguf", ["COPY"], **given, ours=ours) == {"COPY": "equal"}


@pytest.mark.parametrize("type_", ["f16", "q8_0", "q3_k", "tq1_0"])
@pytest.mark.parametrize("stated", [True, False])
def test_a_copy(folder: Path, tmp_path: Path, type_: str, stated: bool) -> None:
    """A file type that is not stated is guessed; a tie of types is decided by the order."""
    weights = models.tensors(down=256)
    weights |= {"one.weight": torch.ones(1, 2, 256), **{f"bias.{i}": torch.ones(2) for i in range(5)}}
    keys = models.keys() | {"general.file_type": Typed(99, "uint32")}
    models.write(
        tmp_path / "in.gguf", {key: value for key, value in keys.items() if stated or "file" not in key}, weights, type_
    )
    assert compare(folder, tmp_path / "in.gguf", ["COPY"]) == {"COPY": "equal"}
    assert all(tensor.copied for tensor in quantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "copy"))


@pytest.mark.parametrize("type_", ["f16", "bf16", "q8_0", "q4_k"])
def test_other_sources(folder: Path, tmp_path: Path, type_: str) -> None:
    weights = models.tensors(fused=True, down=256)
    models.write(tmp_path / "in.gguf", models.keys(), weights, type_)
    again = {"allow_requantize": True}
    assert compare(folder, tmp_path / "in.gguf", ["Q4_K_S", "BF16"], **again, ours=again) == dict.fromkeys(
        ["Q4_K_S", "BF16"], "equal"
    )


def test_keys_of_the_matrix(folder: Path, tmp_path: Path) -> None:
    """The tool llama-quantize adds four keys, by overrides that it passes to the function."""
    source, out, file = tmp_path / "in.gguf", tmp_path / "out.gguf", str(tmp_path / "imatrix.gguf")
    weights = models.tensors(tied=False, down=256)
    models.write(source, models.keys(), weights)
    count, long = torch.tensor([3]), "d" * 200
    columns = {name: glft.weights.ColumnSums(column[None] * 3, count) for name, column in importances(weights).items()}
    ImportanceMatrix(columns, (long, "other"), 5).save(file)
    overrides = {"file": file[:127], "dataset": long[:127], "entries_count": len(columns), "chunks_count": 5}
    given = {"overrides": {f"quantize.imatrix.{key}": value for key, value in overrides.items()}}
    assert compare(folder, source, ["Q4_K_M"], glft.read_importance(file), **given, ours={"importance": file}) == {
        "Q4_K_M": "equal"
    }
    quantize(source, out, "Q4_K_M", importance=file, imatrix_keys=False)
    with glft.open(out) as bare:
        assert not any(key.startswith("quantize.") for key in bare.metadata)


def test_a_set(folder: Path, tmp_path: Path) -> None:
    """Quantized as a set, as one file, and without a layer."""
    weights = models.tensors(3, tied=False)
    models.write(tmp_path / "in.gguf", models.keys(layers=3), weights)
    first, *_ = glft.split(tmp_path / "in.gguf", tmp_path / "part", max_tensors=13)
    ways: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # llama.cpp's options, ours
        "set": ({"keep_split": True}, {"keep_split": True}),
        "one.gguf": ({}, {}),
        "a.pruned": ({"keep_split": True, "pruned": [0]}, {"keep_split": True, "prune_layers": [0]}),
    }
    written = {}
    for side in ("theirs", "ours"):
        (tmp_path / side).mkdir()
    jobs = [{"source": first, "out": f"{tmp_path}/theirs/{out}", "ftype": 15, **theirs} for out, (theirs, _) in ways.items()]
    assert llama_quantize.quantize(folder, jobs) == [0, 0, 0]
    for out, (_, options) in ways.items():
        quantize(first, tmp_path / "ours" / out, "Q4_K_M", **options)
    for side in ("theirs", "ours"):
        written[side] = {path.name: path.read_bytes() for path in (tmp_path / side).iterdir()}
    assert len(written["ours"]) == 6
    assert written["ours"] == written["theirs"]


def test_dims_of_one_and_what_is_kept(folder: Path, tmp_path: Path) -> None:
    """llama.cpp drops leading dims of one; small and odd tensors keep their types."""
    weights = models.tensors(1, down=256)
    numbers = torch.Generator().manual_seed(3)
    for name, shape in {
        "blk.0.odd.weight": (1, 1, 256), "blk.0.two.weight": (1, 2, 256), "blk.0.ssm_conv1d.weight": (2, 256),
        "position_embd.weight": (2, 256), "v.patch_embd.weight": (2, 256), "blk.0.ids": (2, 256), "a.weight": (2, 3, 256),
    }.items():  # fmt: skip
        weights[name] = torch.randn(shape, generator=numbers)
    models.write(tmp_path / "in.gguf", models.keys(layers=1), weights)
    assert compare(folder, tmp_path / "in.gguf", ["Q4_K_M", "MXFP4_MOE"]) == {"Q4_K_M": "equal", "MXFP4_MOE": "equal"}


@pytest.mark.full
def test_a_part_of_the_importance(folder: Path, tmp_path: Path) -> None:
    """An embedding's entry of another width counts as an entry, but is not used."""
    weights = models.tensors(9, down=256)
    models.write(tmp_path / "in.gguf", models.keys(layers=9), weights)
    every = importances(weights) | {"token_embd.weight": torch.ones(64)}
    some = {name: column for name, column in every.items() if "attn" not in name}
    for options in ({"exclude_weights": "attn"}, {"include_weights": ["token_embd", "ffn"]}):
        ended = compare(folder, tmp_path / "in.gguf", ["Q4_0", "Q4_K_M"], some, ours={"importance": every, **options})
        assert ended == {"Q4_0": "equal", "Q4_K_M": "equal"}
    sums = {name: glft.weights.ColumnSums(column[None], torch.tensor([1])) for name, column in every.items()}
    quantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "Q4_K_M", importance=ImportanceMatrix(sums))
    with glft.open(tmp_path / "out.gguf") as file:
        assert file.metadata["quantize.imatrix.entries_count"] == len(every)
