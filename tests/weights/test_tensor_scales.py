"""Scales of whole tensors in NVFP4, and files that are written with a search."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema as glft
from glft_schema.distributed.shares import tasks_of
from glft_schema.errors import TiedWarning
from glft_schema.families.registry import family_with
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.in_memory import in_memory
from glft_schema.weights.save import Writing, plan_file
from tests.families.tiny_folders import CONFIGS, edited, make_folder
from tests.oracles import llama_cpp
from tests.oracles.llama_model import LlamaModel
from tests.quantizer import models
from tests.tools import forked
from tests.tools.guarded_here import know_tokenizers

QWEN3 = {"general.architecture": "qwen3"}
ATTENTION = "blk.0.attn_q.weight"
LEAST, LARGEST = 1, 2  # times max |w| / 2688
TOKENS = [3, 17, 40, 5, 21, 8]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def saved(path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, Any] = QWEN3, **options: Any) -> dict[str, np.ndarray]:
    """Writes tensors in NVFP4 with a search. Returns each tensor as llama.cpp reads it: floats, or
    decoded weights."""
    glft.save_file(tensors, path, metadata, **{"schemes": {"*": "nvfp4"}, "search": True, "rules": [], **options})
    return read(path)


def read(path: Path) -> dict[str, np.ndarray]:
    with glft.open(path) as file:
        return {name: decoded(tensor) for name, tensor in file.tensors.items()}


def decoded(tensor: glft.Tensor) -> np.ndarray:
    """Returns the weights of blocks, without a scale of the tensor."""
    if tensor.type.name == "F32":
        return tensor.numpy().copy()
    blocks = np.frombuffer(bytes(tensor.raw), np.uint8).reshape(-1, tensor.type.block.sizeof())
    return llama_cpp.dequantize(tensor.type.name, blocks, tensor.type.least_row).reshape(tensor.shape)


def relative_error(found: np.ndarray, expected: Any) -> float:
    wanted = np.asarray(expected, np.float64)
    return float(((found - wanted) ** 2).sum() / (wanted**2).sum())


@pytest.mark.parametrize("size", [1e-30, 1e-4, 1.0, 1e30])
def test_a_scale_moves_weights_into_the_range_of_the_blocks(size: float, tmp_path: Path) -> None:
    """Without one, these weights would be zeros or too large, except for those of size 1."""
    weights = normal(96, 192) * size
    found = saved(tmp_path / "a.gguf", {ATTENTION: weights})
    scale = found["blk.0.attn_q.scale"]
    assert (scale.shape, scale.dtype) == ((1,), np.float32)
    assert LEAST - 1e-6 <= scale[0] / (float(weights.abs().max()) / 2688) < LARGEST
    assert relative_error(found[ATTENTION] * scale.astype(np.float64), weights) < 0.007


def test_scales_are_rounded_up_so_that_the_largest_weight_fits(tmp_path: Path) -> None:
    """Rounded to the nearest float32, half of these scales would make it larger than 2688."""
    weights = torch.stack([normal(2, 64, seed=seed) for seed in range(200)])
    found = saved(tmp_path / "a.gguf", {"blk.0.ffn_up_exps.weight": weights}, {"general.architecture": "qwen3moe"})
    scales = found["blk.0.ffn_up_exps.scale"].astype(np.float64)
    assert (weights.abs().amax((1, 2)).double().numpy() <= 2688 * scales).all()


def test_each_expert_has_a_scale(tmp_path: Path) -> None:
    stack = torch.stack([normal(64, 128, seed=n) * size for n, size in enumerate([1e-3, 1.0, 0.0, 1e3])])
    found = saved(tmp_path / "a.gguf", {"blk.0.ffn_down_exps.weight": stack}, {"general.architecture": "qwen3moe"})
    scales = found["blk.0.ffn_down_exps.scale"]
    assert scales.shape == (4,)
    assert scales[2] == 1  # of zeros
    for matrix, scale, expected in zip(found["blk.0.ffn_down_exps.weight"], scales, stack, strict=True):
        assert relative_error(matrix * scale, expected) < 0.007 if expected.any() else not matrix.any()
    for dtype in (torch.float16, torch.bfloat16):  # the same as their numbers in float32
        narrow = stack.to(dtype)
        one, other = (saved(tmp_path / "b.gguf", {"blk.0.ffn_up_exps.weight": given}, {"general.architecture": "qwen3moe"})
                      for given in (narrow, narrow.float()))  # fmt: skip
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_weights_of_a_grid_come_back(tmp_path: Path) -> None:
    """The smallest scale is the one that NVIDIA's libraries choose, max |w| / 2688."""
    random = np.random.default_rng(0)
    blocks = random.choice(np.arange(32, 127, dtype=np.uint8), (64, 12, 1)).view(np.uint8)
    scales = np.array([(1 + m % 8 / 8) * 2.0 ** (m // 8 - 7) for m in range(127)])[blocks]
    codes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[random.integers(0, 8, (64, 12, 16))] * random.choice([-1, 1], (64, 12, 16))
    codes[..., 0], scales[0, 0] = 6, 448
    weights = (codes * scales * np.float32(0.00037)).reshape(64, 192).astype(np.float32)
    found = saved(tmp_path / "a.gguf", {ATTENTION: torch.from_numpy(weights)})
    assert (
        np.abs(found[ATTENTION] * found["blk.0.attn_q.scale"] / np.where(weights == 0, 1, weights) - (weights != 0)).max()
        < 1e-6
    )


def test_errors_count_with_the_scale(tmp_path: Path) -> None:
    weights = {ATTENTION: normal(64, 128) * 1e-3, "blk.0.ffn_down_exps.weight": normal(3, 64, 64)}
    weights["blk.0.ffn_down_exps.weight"] *= torch.tensor([1e-3, 1, 1e3]).reshape(3, 1, 1)
    metadata = {"general.architecture": "qwen3moe"}
    glft.save_file(weights, tmp_path / "in.gguf", metadata, rules=[])
    options = {"schemes": {"*": "nvfp4"}, "search": True, "rules": [], "measure": True}
    found = {one.name: one for one in glft.convert(tmp_path / "in.gguf", tmp_path / "out.gguf", **options)}
    stored = read(tmp_path / "out.gguf")
    for name, expected in weights.items():
        scale = stored[name.replace(".weight", ".scale")]
        decoded = stored[name] * (scale.reshape(-1, 1, 1) if expected.dim() > 2 else scale)
        assert found[name].error == pytest.approx(np.abs(decoded - expected.numpy()).max(), rel=1e-6)
        assert found[name].source == "float32"
    assert found["blk.0.attn_q.scale"].error == 0


@pytest.mark.parametrize(
    ("metadata", "scaled"),
    [
        ({}, ""),
        ({"general.architecture": "qwen2"}, "attn_q"),
        ({"general.architecture": "qwen3"}, "attn_q ffn_up"),
        ({"general.architecture": "unknown"}, ""),
    ],
)
def test_only_tensors_get_a_scale_that_llama_cpp_multiplies_by(metadata: dict[str, str], scaled: str, tmp_path: Path) -> None:
    names = "token_embd.weight", ATTENTION, "blk.0.ffn_up.weight", "blk.0.ffn_gate_inp.weight", "other.weight"
    tensors = {name: normal(64, 64) for name in names}
    found = saved(tmp_path / "a.gguf", tensors, metadata)
    assert [name for name in found if name not in names] == [f"blk.0.{name}.scale" for name in scaled.split()]
    for name in names:
        assert relative_error(found[name] * found.get(name.replace(".weight", ".scale"), 1), tensors[name]) < 0.007
    others = saved(tmp_path / "b.gguf", tensors, QWEN3, schemes={"*": "mxfp4"})
    assert [*others] == [*names]
    plain = saved(tmp_path / "c.gguf", tensors, QWEN3, schemes={"*": "mxfp4"}, search=False)
    for name in names:
        assert relative_error(others[name], tensors[name]) < relative_error(plain[name], tensors[name])


def test_a_copy_and_a_tensor_with_a_scale_get_none(tmp_path: Path) -> None:
    saved(tmp_path / "plain.gguf", {ATTENTION: normal(64, 64), "blk.0.ffn_up.weight": normal(64, 64)}, search=False)
    glft.convert(tmp_path / "plain.gguf", tmp_path / "copy.gguf", schemes={"*": "nvfp4"}, search=True, rules=[])
    assert read(tmp_path / "copy.gguf").keys() == {ATTENTION, "blk.0.ffn_up.weight"}
    given = {ATTENTION: normal(64, 64), "blk.0.attn_q.scale": torch.tensor([3.0])}
    found = saved(tmp_path / "a.gguf", given)
    assert found["blk.0.attn_q.scale"] == 3
    assert relative_error(found[ATTENTION], given[ATTENTION]) < 0.01


def test_an_output_that_is_tied_to_the_embedding_is_stored_with_its_scale(tmp_path: Path) -> None:
    """llama.cpp multiplies the output, but not the embedding."""
    weights = normal(64, 64)
    with pytest.warns(TiedWarning, match="tied to 'token_embd.weight', which has a different scale"):
        found = saved(tmp_path / "a.gguf", {"token_embd.weight": weights, "output.weight": weights})
    assert [*found] == ["token_embd.weight", "output.weight", "output.scale"]
    assert relative_error(found["output.weight"] * found["output.scale"], weights) < 0.007
    tied = saved(tmp_path / "b.gguf", {"blk.0.attn_q.weight": weights, "blk.1.attn_q.weight": weights})
    assert tied["blk.0.attn_q.scale"] == tied["blk.1.attn_q.scale"]
    with glft.open(tmp_path / "b.gguf") as file:
        assert file.tensors["blk.0.attn_q.weight"].raw == file.tensors["blk.1.attn_q.weight"].raw


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_infinities_are_refused(bad: float, tmp_path: Path) -> None:
    weights = normal(200, 64)
    weights[148, 3] = bad  # one of the rows that scales are tried on
    problem = r"tensor 'blk.0.attn_q.weight' at \[148, 3\]: NaN and infinities cannot be quantized"
    with pytest.raises(glft.TensorError, match=problem):
        saved(tmp_path / "a.gguf", {ATTENTION: weights})
    assert not (tmp_path / "a.gguf").exists()


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64)])
def test_tensors_without_weights(shape: tuple[int, ...], tmp_path: Path) -> None:
    name = "blk.0.ffn_up_exps.weight" if len(shape) > 2 else ATTENTION
    found = saved(tmp_path / "a.gguf", {name: torch.empty(shape)}, {"general.architecture": "qwen3moe"})
    assert found[name.replace(".weight", ".scale")].tolist() == [1] * (shape[0] if len(shape) > 2 else 1)


def test_the_importance_counts(tmp_path: Path) -> None:
    """Of columns that do not count, the weights are clipped."""
    weights = normal(64, 128)
    weights[:, ::16] *= 3
    importance = torch.ones(128)
    importance[::16] = 0
    counts = importance.numpy()
    plain = saved(tmp_path / "a.gguf", {ATTENTION: weights})
    found = saved(tmp_path / "b.gguf", {ATTENTION: weights}, importance={ATTENTION: importance})
    wrong = [one[ATTENTION] * one["blk.0.attn_q.scale"] - weights.numpy() for one in (plain, found)]
    errors = [float((counts * one**2).sum()) for one in wrong]
    assert errors[1] < 0.8 * errors[0]


def test_any_part_of_a_payload_has_the_bytes_of_the_whole(tmp_path: Path) -> None:
    """As processes write them that share a file. Tensors are read once for the scale, by rows."""
    reads = []

    def lazy(weights: torch.Tensor) -> StoredTensor:
        (one,) = in_memory({"w": weights}).values()

        def part(index: tuple[slice, ...]) -> torch.Tensor:
            reads.append(int(torch.empty(weights.shape, device="meta")[index].numel()))
            return weights[index]

        return StoredTensor(one.shape, one.dtype, lambda: weights, read=part)

    tensors = {ATTENTION: lazy(normal(3000, 1024)), "blk.0.ffn_down_exps.weight": lazy(normal(3, 700, 1024, seed=1))}
    metadata = {"general.architecture": "qwen3moe"}
    plan = plan_file(tensors, WITH_TYPES, metadata, Writing({"*": "nvfp4"}, rules=[], search=True))
    plan.write(tmp_path / "whole.gguf")
    assert max(reads) <= 1 << 22
    for ranks in (2, 3):
        parts = bytearray((tmp_path / "whole.gguf").read_bytes())
        again = plan_file(tensors, WITH_TYPES, metadata, Writing({"*": "nvfp4"}, rules=[], search=True))
        for tasks in tasks_of(again.layout, ranks):
            for task in tasks:
                for start, piece in task.pieces(again.layout.order):
                    parts[start : start + len(piece)] = piece
        assert bytes(parts) == (tmp_path / "whole.gguf").read_bytes()


def test_the_number_of_threads_changes_no_byte(tmp_path: Path) -> None:
    tensors = {ATTENTION: normal(3000, 1024), "blk.0.ffn_up.weight": normal(3000, 1024, seed=1)}
    glft.save_file(tensors, tmp_path / "in.gguf", QWEN3, rules=[])
    schemes = {ATTENTION: "nvfp4", "blk.0.ffn_up.weight": "mxfp4"}
    scheme = [part for name, type_ in schemes.items() for part in ("--scheme", f"{name}={type_}")]
    for threads in "12":
        arguments = "convert", tmp_path / "in.gguf", tmp_path / f"{threads}.gguf", *scheme, "--search", "--rules", "spec"
        done = forked.run("glft_schema", *arguments, environment={"OMP_NUM_THREADS": threads})
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "2.gguf").read_bytes()
    in_python = saved(tmp_path / "c.gguf", tensors, schemes=schemes)
    assert all(np.array_equal(numbers, in_python[name]) for name, numbers in read(tmp_path / "1.gguf").items())


def test_a_set_counts_the_scales(tmp_path: Path) -> None:
    models.write(tmp_path / "in.gguf", models.keys(layers=3), models.tensors(3, tied=False))
    first, *_ = glft.split(tmp_path / "in.gguf", tmp_path / "part", max_tensors=13)
    options: dict[str, Any] = {"tensor_types": [("attn|ffn", "nvfp4")], "search": True}
    glft.quantize(first, tmp_path / "set", "Q4_0", keep_split=True, **options)
    glft.quantize(tmp_path / "in.gguf", tmp_path / "one.gguf", "Q4_0", **options)
    dry = glft.quantize(tmp_path / "in.gguf", tmp_path / "dry.gguf", "Q4_0", dry_run=True, **options)
    paths = sorted(tmp_path.glob("set-*.gguf"))
    with glft.open(paths[0]) as files, glft.open(tmp_path / "one.gguf") as file:
        count = file.metadata.get("split.tensors.count", len(file.tensors))
        assert {one.metadata["split.tensors.count"] for one in files.shards} == {count}
        assert {name: bytes(tensor.raw) for name, tensor in files.tensors.items()} == {
            name: bytes(tensor.raw) for name, tensor in file.tensors.items()
        }
        assert {one.name: one.nbytes for one in dry} == {name: tensor.nbytes for name, tensor in file.tensors.items()}
        scales = [name for name in file.tensors if name.endswith(".scale")]
        assert len(scales) == 3 * 7
        for one in files.shards:
            held = set(one.tensors)
            assert all(re.sub("scale$", "weight", name) in held for name in held)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "tiny-bert"])
def test_llama_cpp_multiplies_by_the_scales_of_an_architecture(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matrix with a scale of 0 is a matrix of zeros, if its scale is not ignored."""
    know_tokenizers(monkeypatch)
    glft.convert(make_folder(tmp_path, name), tmp_path / "in.gguf", schemes={"*": "f32"})
    with glft.open(tmp_path / "in.gguf") as file:
        tensors = {name: tensor.dequantize() for name, tensor in file.tensors.items()}
        metadata = {key: glft.Typed(value, file.metadata.type_of(key)) for key, value in file.metadata.items()}
        page = family_with(file.metadata["general.architecture"])
        assert page is not None

    def logits(changed: dict[str, torch.Tensor]) -> np.ndarray:
        types = {"output.weight": "nvfp4"} if "output.weight" in tensors else {}
        glft.save_file(tensors | changed, tmp_path / "out.gguf", metadata, rules=[], schemes=types)
        with LlamaModel(tmp_path / "out.gguf") as model:
            return model.all_logits(TOKENS)

    unchanged, loaded = logits({}), [row.name.replace("{i}", "0") for row in page.loader_tensors if row.name.endswith(".scale")]
    for scale in loaded:
        weight = scale.replace(".scale", ".weight")
        if weight in tensors and tensors[weight].dim() > 1:
            count = tensors[weight].shape[0] if tensors[weight].dim() > 2 else 1
            found, zeros = logits({scale: torch.zeros(count)}), logits({weight: tensors[weight] * 0})
            assert not np.array_equal(zeros, unchanged)
            assert np.array_equal(found, zeros if page.multiplies(scale) else unchanged), scale


@pytest.mark.filterwarnings("ignore::glft_schema.errors.QuantizationWarning")
@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-qwen3moe", "tiny-gemma2"])
def test_logits_of_llama_cpp_are_nearer_with_a_search(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights as small as those of large models, which ggml's encoder stores as zeros. Other
    matrices are as much larger, so that the model computes the same."""
    know_tokenizers(monkeypatch)
    glft.convert(make_folder(tmp_path, name), tmp_path / "folder.gguf", schemes={"*": "f32"})
    factors = {"attn_v": 64, "attn_output": 1 / 64, "ffn_up": 64, "ffn_down": 1 / 64}
    if name == "tiny-gemma2":  # whose norms after them undo factors
        del factors["ffn_up"], factors["ffn_down"]

    def change(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> None:
        for tensor in tensors:
            tensors[tensor] *= next((factor for part, factor in factors.items() if part in tensor), 1)

    source, logits = edited(tmp_path / "folder.gguf", change), {}
    schemes = {f"*{part}*.weight": "nvfp4" for part, factor in factors.items() if factor < 1}
    for search in (None, False, True):
        options = {} if search is None else {"schemes": schemes, "search": search}
        glft.convert(source, tmp_path / "out.gguf", **options)
        with LlamaModel(tmp_path / "out.gguf") as model:
            logits[search] = model.all_logits(TOKENS).astype(np.float64)
    wrong = {search: float(((found - logits[None]) ** 2).sum()) for search, found in logits.items()}
    assert wrong[True] < 0.2 * wrong[False]
