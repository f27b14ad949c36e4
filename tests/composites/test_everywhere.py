"""Composite weights in all that reads weights: sets, torch files, modules, ranks, commands."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file as load_stored
from safetensors.torch import save_file as save_stored
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.tensor import Shard

import glft_schema as glft
import glft_schema.distributed
import glft_schema.nn
import glft_schema.transformers
import glft_schema.weights
from glft_schema.errors import OptionError, SchemeError
from tests.composites import packers
from tests.composites.packers import Tensors, write
from tests.composites.test_bad_input import SCHEMES
from tests.distributed.tensors import load
from tests.families.tiny_folders import edit_json, make_folder
from tests.tools import forked, launch
from tests.tools.command_line import in_this_process
from tests.tools.guarded_here import know_tokenizers
from tests.tools.ranks import run as run_ranks
from tests.tools.unmeasured import unmeasured

NAMES = {scheme: "X" if scheme == "gpt-oss" else "X.weight" for scheme in SCHEMES}
LINEARS = [scheme for scheme, name in NAMES.items() if name == "X.weight"]


def written(folder: Path, scheme: str) -> tuple[Path, torch.Tensor]:
    """Writes a checkpoint of a weight and a norm; returns its file and the weight's values."""
    tensors, config = copy.deepcopy(SCHEMES[scheme])
    path = write(folder, tensors | {"norm.weight": torch.ones(8)}, config)
    return path, glft.load_file(path)[NAMES[scheme]]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_parts_in_different_shards(scheme: str, tmp_path: Path) -> None:
    path, expected = written(tmp_path / "whole", scheme)
    folder, tensors = tmp_path / "set", load_stored(path)
    folder.mkdir()
    files = {f"model-{number + 1:05d}-of-{len(tensors):05d}.safetensors": name for number, name in enumerate(tensors)}
    for file, name in files.items():
        save_stored({name: tensors[name]}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, name in files.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text((path.parent / "config.json").read_text())
    assert torch.equal(glft.load_file(folder / "model.safetensors.index.json")[NAMES[scheme]], expected)
    with glft.open(folder / "model.safetensors.index.json") as file:
        assert torch.equal(file.get_slice(NAMES[scheme])[1:3], expected[1:3])
        assert len(file.tensors) == len(tensors)
        assert len(file.weights) == 2
    opened = glft.weights.open_checkpoint(folder)
    assert {*opened} == {NAMES[scheme], "norm.weight"}
    assert torch.equal(torch.from_numpy(opened[NAMES[scheme]].values()), expected)


@pytest.mark.parametrize("exceptions", [{"dynamic": {"+:.*X.*": {"bits": 4, "group_size": 32}}}, {"extra_config": {"X": {}}}])
def test_modules_may_be_exceptions_of_the_config(exceptions: dict[str, Any], tmp_path: Path) -> None:
    """Then shapes alone show bits and groups."""
    path, expected = written(tmp_path, "gptq")
    config = {"quant_method": "gptq", "bits": 8, "group_size": 64, "checkpoint_format": "gptq"}
    edit_json(tmp_path / "config.json", quantization_config=config | exceptions)
    assert torch.equal(glft.load_file(path)["X.weight"], expected)


@pytest.mark.parametrize("file", ["quantize_config.json", "quant_config.json"])
@pytest.mark.parametrize("key", ["checkpoint_format", "format"])
def test_the_version_of_gptq_in_a_file_of_its_own(file: str, key: str, tmp_path: Path) -> None:
    tensors, _ = copy.deepcopy(SCHEMES["gptq"])
    path = write(tmp_path, tensors, {})
    first = glft.load_file(path)["X.weight"]
    (tmp_path / file).write_text(json.dumps({"bits": 4, "group_size": 32, key: "gptq_v2"}))
    second = glft.load_file(path)["X.weight"]
    scales = tensors["X.scales"].float().T.repeat_interleave(32, 1)
    assert torch.allclose(second - first, scales)  # zero points are one less


def test_the_group_of_a_config_that_targets_a_module(tmp_path: Path) -> None:
    """FP8 in blocks beside integers in groups, and a group without weights."""
    tensors = {"X.weight": SCHEMES["fp8"][0]["X.weight"], "X.weight_scale": torch.linspace(1, 2, 4).reshape(2, 2)}
    floats = {"strategy": "block", "block_structure": [16, 32], "num_bits": 8, "type": "float"}
    groups = {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32}},
        "group_1": {"targets": ["X"], "weights": floats},
        "group_2": {"targets": ["re:.*attn"], "weights": None},
    }
    config = {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}}
    found = glft.load_file(write(tmp_path, Tensors(tensors), config))["X.weight"]
    scales = tensors["X.weight_scale"].repeat_interleave(16, 0).repeat_interleave(32, 1)
    assert torch.equal(found, tensors["X.weight"].float() * scales)


def test_a_scale_per_row_beside_groups(tmp_path: Path) -> None:
    """In mixed precision, the config's groups are those of other weights."""
    path, expected = written(tmp_path, "fp8 rows")
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "MIXED_PRECISION", "group_size": 16}}')
    assert torch.equal(glft.load_file(path)["X.weight"], expected)


@pytest.mark.parametrize("content", ["[]", "null", "{"])
def test_a_config_that_is_none(content: str, tmp_path: Path) -> None:
    path, expected = written(tmp_path, "fp8 rows")
    (tmp_path / "config.json").write_text(content)
    assert torch.equal(glft.load_file(path)["X.weight"], expected)


def test_settings_of_comfyui_belong_to_the_weight(tmp_path: Path) -> None:
    path, expected = written(tmp_path, "fp8 rows")
    settings = torch.tensor(list(b'{"format": "float8_e4m3fn"}'), dtype=torch.uint8)
    write(tmp_path, Tensors(load_stored(path)) | {"X.comfy_quant": settings}, {})
    assert {*(found := glft.load_file(path))} == {"X.weight", "norm.weight"}
    assert torch.equal(found["X.weight"], expected)


def test_an_order_that_no_column_has_is_none(tmp_path: Path) -> None:
    """compressed-tensors fills the groups with -1 at first, and takes this as no order."""
    path, expected = written(tmp_path, "w4a16 asym")
    tensors = load_stored(path)
    tensors["X.weight_g_idx"] = torch.full((expected.shape[1],), -1, dtype=torch.int32)
    write(tmp_path, tensors, SCHEMES["w4a16 asym"][1])
    assert torch.equal(glft.load_file(path)["X.weight"], expected)


@pytest.mark.parametrize("scheme", ["gptq", "awq", "w4a16 asym", "fp8", "nf4", "nested", "torchao"])
def test_torch_files(scheme: str, tmp_path: Path) -> None:
    path, expected = written(tmp_path, scheme)
    torch.save(load_stored(path), own := tmp_path / "pytorch_model.bin")
    opened = glft.weights.open_checkpoint(own)
    assert {*opened} == {NAMES[scheme], "norm.weight"}
    assert torch.equal(torch.from_numpy(opened[NAMES[scheme]].values()), expected)
    assert {*glft.weights.open_checkpoint(own, as_stored=True)} == {*load_stored(path)}
    glft.convert(own, out := tmp_path / "out.glft")
    assert torch.equal(glft.load_file(out)[NAMES[scheme]], expected)


@pytest.mark.parametrize("scheme", LINEARS)
def test_packed_layers(scheme: str, tmp_path: Path) -> None:
    """A layer keeps the composite type's bytes, and computes what a layer of the values does."""
    path, expected = written(tmp_path, scheme)
    rows, columns = expected.shape
    module = nn.ModuleDict({"X": nn.Linear(columns, rows, bias=False), "norm": nn.LayerNorm(8, bias=False)})
    glft.load_into(module, path, packed=True)
    with glft.open(path) as file:
        assert module["X"].weight.numel() == file.weights["X.weight"].nbytes
    assert torch.equal(module["X"].dequantize(), expected)
    dense = nn.Linear(columns, rows, bias=False)
    glft.load_into(nn.ModuleDict({"X": dense, "norm": nn.LayerNorm(8, bias=False)}), path)
    assert torch.equal(dense.weight, expected)
    inputs = torch.linspace(-1, 1, 3 * columns).reshape(3, columns)
    scale = inputs.abs() @ expected.abs().T  # of the rounding of sums
    assert ((module["X"](inputs) - dense(inputs)).abs() <= 4e-7 * columns**0.5 * scale).all()


def test_layers_that_float32_makes_smaller_are_not_packed(tmp_path: Path) -> None:
    """Columns of a group that are not neighbours have a scale and a zero point each."""
    path, _ = written(tmp_path, "gptq")
    tensors = load_stored(path)
    tensors["X.g_idx"] = tensors["X.g_idx"].flip(0).contiguous()
    write(tmp_path, tensors, SCHEMES["gptq"][1])
    expected = glft.load_file(path)["X.weight"]
    module = nn.ModuleDict({"X": nn.Linear(*expected.shape[::-1], bias=False), "norm": nn.LayerNorm(8, bias=False)})
    glft.load_into(module, path, packed=True)
    assert type(module["X"]) is nn.Linear
    assert torch.equal(module["X"].weight, expected)


FRESH = """
import sys, torch, glft_schema as glft
from torch import nn
module = nn.ModuleDict({"X": glft.nn.Linear(96, 8, sys.argv[2], bias=False)})
module.load_state_dict(torch.load(sys.argv[1]))
torch.save(module["X"].dequantize(), sys.argv[1])
"""


@pytest.mark.parametrize(
    ("group", "type_"), [(32, "UINT4"), (16, "UINT4_16"), (48, "UINT4_16"), (8, "UINT4_8"), (2, "UINT4_2")]
)
def test_packed_layers_are_saved_with_types_of_smaller_units(group: int, type_: str, tmp_path: Path) -> None:
    """A process that has seen no such weight finds the type by its name."""
    codes, scales = np.arange(8 * 96).reshape(8, 96) % 16, torch.linspace(0.5, 1, 96 // group).half().repeat(8, 1)
    path = write(tmp_path, packers.packed(codes, None, scales), {})
    module = nn.ModuleDict({"X": nn.Linear(96, 8, bias=False)})
    glft.load_into(module, path, packed=True)
    assert module["X"].type_name == type_
    torch.save(module.state_dict(), state := tmp_path / "state.pt")
    forked.run("-c", FRESH, state, type_)
    assert torch.equal(torch.load(state), torch.from_numpy(packers.values(codes, 8, scales)))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_distributed_checkpoints(scheme: str, tmp_path: Path) -> None:
    path, expected = written(tmp_path, scheme)
    state = {NAMES[scheme]: torch.zeros_like(expected)}
    with pytest.warns(UserWarning, match="single process"):
        checkpoint.load(state, storage_reader=glft.distributed.StorageReader(path))
    assert torch.equal(state[NAMES[scheme]], expected)


MIXED = ["w4a16 asym", "fp8 rows", "nvfp4", "mxfp4", "nf4", "nested", "int8", "torchao"]  # that need no config


def mixed(folder: Path) -> Path:
    """Writes a checkpoint with a weight of each scheme."""
    tensors = Tensors()
    for number, scheme in enumerate(MIXED):
        tensors |= {name.replace("X", f"layers.{number}", 1): part.clone() for name, part in SCHEMES[scheme][0].items()}
    return write(folder, tensors, {})


@pytest.mark.parametrize(("ranks", "dim"), [(2, 0), (3, 1)])
def test_ranks_load_their_shards(ranks: int, dim: int, tmp_path: Path) -> None:
    expected = glft.load_file(path := mixed(tmp_path))
    targets = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    for found in run_ranks(ranks, load, path, (ranks,), (Shard(dim),), targets):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::glft_schema.errors.MetadataWarning")
def test_processes_convert_together(tmp_path: Path) -> None:
    path, scheme = mixed(tmp_path), "layers.[4-6].weight=q4_0"
    alone, out = tmp_path / "alone.gguf", tmp_path / "out.gguf"
    report = in_this_process("convert", path, alone, "--scheme", scheme).stdout
    first, second = launch.run(2, ("convert", path, out, "--scheme", scheme))
    assert (first.code, first.out) == (0, report.replace("alone", "out"))
    assert (second.code, second.out) == (0, "")
    assert out.read_bytes() == alone.read_bytes()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_commands(scheme: str, tmp_path: Path) -> None:
    path, expected = written(tmp_path, scheme)
    name = NAMES[scheme]
    shown = in_this_process("inspect", path)
    assert shown.returncode == 0
    with glft.open(path) as file:
        text = file.weights.composed[name].origin
    assert f"1 weight: {text}" in shown.stdout
    assert json.loads(in_this_process("inspect", path, "--json").stdout)["composite_weights"] == [f"1 weight: {text}"]
    done = in_this_process("get-tensor", path, name, out := tmp_path / "x.npy")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(out), expected.numpy())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_written_as_values_and_as_stored(scheme: str, tmp_path: Path) -> None:
    path, expected = written(tmp_path, scheme)
    for out in (tmp_path / "out.glft", tmp_path / "out.safetensors"):
        glft.convert(path, out)
        assert torch.equal(glft.load_file(out)[NAMES[scheme]], expected)
        assert "equal" in in_this_process("compare", path, out).stdout
    done = in_this_process("convert", path, stored := tmp_path / "stored.safetensors", "--as-stored")
    assert done.returncode == 0, done.stderr
    with glft.open(path) as file, glft.open(stored) as copied:
        assert {*copied.tensors} == {*file.tensors}
        for name, tensor in file.tensors.items():
            assert bytes(copied.tensors[name].array()) == bytes(tensor.array())
        assert torch.equal(copied.get_tensor(NAMES[scheme]), expected)  # beside the same config


@pytest.mark.parametrize("scheme", ["awq", "mlx", "fp8", "nvfp4"])
def test_values_of_a_file_cut_off(scheme: str, tmp_path: Path) -> None:
    """Weights of which a part is missing are not checked; others are."""
    path, _ = written(tmp_path, scheme)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    with glft.open(path, allow_truncated=True) as cut:
        missing = {name for name, tensor in cut.tensors.items() if tensor.missing}
        kinds = {tensor.name: {finding.kind for finding in found} for tensor, found in glft.check_values(cut)}
    assert len(missing) == 1
    lost = "norm.weight" if missing == {"norm.weight"} else NAMES[scheme]
    assert kinds.pop(lost) == {"incomplete"}
    assert all("incomplete" not in found for found in kinds.values())


def test_comparisons_find_one_code(tmp_path: Path) -> None:
    path, expected = written(tmp_path / "one", "gptq")
    same = glft.convert(path, dense := tmp_path / "dense.safetensors")
    assert {tensor.name for tensor in same} == {"X.weight", "norm.weight"}
    assert re.search(r"X\.weight +retyped +UINT4 to F32 +equal", in_this_process("compare", path, dense).stdout)
    tensors = load_stored(path)
    tensors["X.qweight"][0, 0] ^= 1
    other = write(tmp_path / "other", tensors, json.loads((path.parent / "config.json").read_text()))
    assert (glft.load_file(other)["X.weight"] != expected).sum() == 1
    done = in_this_process("compare", path, other)
    assert done.returncode == 1
    assert re.search(r"X\.weight +changed", done.stdout)
    assert {tensor.name for tensor, found in glft.check_values(path) if not found} == {"X.weight", "norm.weight"}


@pytest.mark.filterwarnings("ignore::glft_schema.errors.MetadataWarning")
def test_exact_refuses_what_is_rounded(tmp_path: Path) -> None:
    path, _ = written(tmp_path, "w4a16")
    glft.convert(path, tmp_path / "a.gguf", exact=True)
    with pytest.raises(SchemeError, match=r"^exact \(--exact\): 1 tensor would be rounded, such as 'X.weight' as q4_1$"):
        glft.convert(path, tmp_path / "b.gguf", schemes={"X.*": "q4_1"}, exact=True)
    assert in_this_process("convert", path, tmp_path / "b.gguf", "--scheme", "X.*=q4_1", "--exact").returncode == 2
    assert not (tmp_path / "b.gguf").exists()


@pytest.mark.filterwarnings("ignore::glft_schema.errors.MetadataWarning")
@pytest.mark.parametrize(("exact", "type_"), [(False, "NVFP4"), (True, "F32")])
def test_a_reciprocal_that_is_rounded_is_not_exact(exact: bool, type_: str, tmp_path: Path) -> None:
    path, _ = written(tmp_path / "halves", "nvfp4 packed")
    path = write(tmp_path, load_stored(path) | {"X.weight_global_scale": torch.tensor([3.0])})
    tensors = {tensor.name: tensor for tensor in glft.convert(path, tmp_path / "out.gguf", exact=exact)}
    assert str(tensors["X.weight"].type) == type_
    ending = "" if exact else ", with rounded products"
    assert tensors["X.weight"].source == f"compressed-tensors NVFP4, 4 bits, groups of 16{ending}"
    done = in_this_process("convert", path, tmp_path / "by-command.gguf", *["--exact"] * exact)
    assert f"groups of 16{ending}: 1 tensor {'exact in F32' if exact else 'kept in NVFP4'}" in done.stdout


@pytest.mark.filterwarnings("ignore::glft_schema.errors.MetadataWarning")
def test_converted_types_are_reported(tmp_path: Path) -> None:
    path, _ = written(tmp_path, "w4a16")
    done = in_this_process("convert", path, tmp_path / "out.gguf")
    assert "compressed-tensors W4A16, 4 bits, groups of 32: 1 tensor exact in Q4_0" in done.stdout


# A model


def quantized_folder(parent: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """Writes a tiny llama of W4A16 in groups of 32; returns its dense weights, too."""
    folder = make_folder(parent, "tiny-llama")
    tensors = load_stored(folder / "model.safetensors")
    dense, stored = dict(tensors), Tensors(tensors)
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            grouped = tensor.float().reshape(len(tensor), -1, 32)
            scales = (grouped.abs().amax(-1) / 7).bfloat16()
            codes = (grouped / scales.float()[..., None]).round().clamp(-8, 7).int().reshape(tensor.shape).numpy() + 8
            dense[name] = torch.from_numpy(packers.values(codes, 8, scales))
            del stored[name]
            module = name.removesuffix(".weight")
            stored |= {part.replace("X", module, 1): made for part, made in packers.packed(codes, None, scales).items()}
    save_stored(stored, folder / "model.safetensors")
    weights = {"num_bits": 4, "group_size": 32, "symmetric": True, "strategy": "group", "type": "int"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    edit_json(folder / "config.json", quantization_config={"quant_method": "compressed-tensors", "config_groups": groups})
    return folder, dense


def test_a_folder_becomes_a_model_of_gguf(tmp_path: Path) -> None:
    """The same as the folder of dense weights, with rows of q and k in another order, in Q4_0."""
    folder, dense = quantized_folder(tmp_path / "codes")
    plain = make_folder(tmp_path / "dense", "tiny-llama")
    save_stored(dense, plain / "model.safetensors")
    done = in_this_process("convert", folder, tmp_path / "codes.gguf")
    assert done.returncode == 0, done.stderr
    assert "compressed-tensors W4A16, 4 bits, groups of 32: 14 tensors exact in Q4_0" in done.stdout
    glft.convert(plain, tmp_path / "dense.gguf")
    assert in_this_process("verify", tmp_path / "codes.gguf").returncode == 0
    with glft.open(tmp_path / "codes.gguf") as codes, glft.open(tmp_path / "dense.gguf") as other:
        assert {*codes.tensors} == {*other.tensors}
        for name, tensor in codes.tensors.items():
            assert torch.equal(tensor.dequantize(torch.float32), other.tensors[name].dequantize(torch.float32)), name
            is_matrix = re.search(r"blk\.\d\.(attn|ffn)_(q|k|v|output|up|down|gate)\.", name)
            assert tensor.type.name == "Q4_0" if is_matrix else tensor.type.name in ("F32", "BF16")


def test_a_folder_is_quantized_as_its_values(tmp_path: Path) -> None:
    """To what its dense weights get; but weights that the recipe's type holds already are kept."""
    folder, dense = quantized_folder(tmp_path / "codes")
    plain = make_folder(tmp_path / "dense", "tiny-llama")
    save_stored(dense, plain / "model.safetensors")
    made = {}
    for source, recipe in ((folder, "Q8_0"), (plain, "Q8_0"), (folder, "Q4_0"), (plain, "F32")):
        glft.quantize(source, out := tmp_path / "out.gguf", recipe)
        with glft.open(out) as file:
            tensors = {name: (tensor.type.name, tensor.dequantize(torch.float32)) for name, tensor in file.tensors.items()}
        made[source, recipe] = tensors
    for name, (type_, values) in made[folder, "Q8_0"].items():
        assert type_ == made[plain, "Q8_0"][name][0]
        assert torch.equal(values, made[plain, "Q8_0"][name][1])
        if re.search(r"(ffn_up|attn_q)\.weight", name):
            assert made[folder, "Q4_0"][name][0] == "Q4_0"
            assert torch.equal(made[folder, "Q4_0"][name][1], made[plain, "F32"][name][1])


@pytest.mark.filterwarnings("ignore::glft_schema.errors.MetadataWarning", "ignore::glft_schema.errors.QuantizationWarning")
def test_a_donor_with_scales_gives_its_types(tmp_path: Path) -> None:
    """Its scales belong to its weights, and are not those of others."""
    path = write(tmp_path, SCHEMES["nvfp4"][0], {})
    glft.convert(path, donor := tmp_path / "donor.gguf", metadata={"general.architecture": "toy"})
    with glft.open(donor) as file:
        assert {*file.tensors} == {"X.weight", "X.scale"}
    glft.convert(path, again := tmp_path / "again.gguf", like=donor)
    assert again.read_bytes() == donor.read_bytes()
    floats = glft.load_file(path)
    glft.save_file(floats, plain := tmp_path / "floats.safetensors")
    glft.convert(plain, out := tmp_path / "out.gguf", like=donor)
    with glft.open(out) as file:
        assert {name: tensor.type.name for name, tensor in file.tensors.items()} == {"X.weight": "NVFP4"}


@pytest.mark.parametrize("packed", [False, True])
def test_experts_of_gguf_have_a_scale_each(packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers' parameter of two stacks, and as one; scales of inputs are left out."""
    know_tokenizers(monkeypatch)
    options: dict[str, Any] = {"tensor_types": [("exps", "nvfp4")], "search": True}
    glft.quantize(make_folder(tmp_path, "tiny-qwen3moe"), made := tmp_path / "made.gguf", "Q8_0", **options)
    with glft.open(made) as file:
        tensors = {**file.tensors, "blk.0.ffn_up_exps.input_scale": torch.full((3,), 0.5)}
        scales = {name: tensor.shape for name, tensor in file.tensors.items() if name.endswith("exps.scale")}
        assert len(scales) == 4  # the third has too few columns for a block
        glft.save_file(tensors, path := tmp_path / "nvfp4.gguf", metadata=file.metadata)
    glft.convert(path, plain := tmp_path / "f32.gguf", schemes={"*": "f32"})
    model, expected = (glft.transformers.load(one, packed=packed)[0] for one in (path, plain))
    with torch.no_grad():
        logits, others = (one(torch.arange(20)[None] + 10).logits for one in (model, expected))
    assert torch.equal(logits, others)


# Resources

GROWTH = """
import resource, sys
import glft_schema as glft
glft.convert(sys.argv[1], sys.argv[3])  # imports all
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
glft.convert(sys.argv[2], sys.argv[3])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def fp8_of_zeros(path: Path, rows: int, columns: int) -> Path:
    """Writes FP8 codes as a hole of the file, and the scale of each block of 128."""
    scales = torch.full((rows // 128, columns // 128), 0.1)
    end = scales.nbytes + rows * columns
    header: dict[str, Any] = {
        "X.weight_scale_inv": {"dtype": "F32", "shape": [*scales.shape], "data_offsets": [0, scales.nbytes]},
        "X.weight": {"dtype": "F8_E4M3", "shape": [rows, columns], "data_offsets": [scales.nbytes, end]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + scales.numpy().tobytes())
        file.truncate(file.tell() + rows * columns)
    return path


@pytest.mark.linux("measures a process's memory in KiB")
@pytest.mark.full
def test_a_large_weight_is_converted_in_rows(tmp_path: Path) -> None:
    """Of 256 MB, which are mapped: its values, 1 GB, are never in memory at once."""
    small, large = fp8_of_zeros(tmp_path / "a.safetensors", 128, 1024), fp8_of_zeros(tmp_path / "b.safetensors", 16384, 16384)
    done = forked.run("-c", GROWTH, small, large, tmp_path / "out.gguf", environment=unmeasured())
    assert int(done.stdout) < 256 + 100 << 10  # KiB
    assert (tmp_path / "out.gguf").stat().st_size > 4 * 16384 * 16384


def test_devices_are_those_of_the_codes(tmp_path: Path) -> None:
    path, expected = written(tmp_path, "gptq")
    with glft.open(path) as file:
        assert file.weights["X.weight"].device == file.tensors["X.qweight"].device
    if torch.cuda.is_available():
        assert torch.equal(glft.load_file(path, "cuda")["X.weight"].cpu(), expected)


def test_names_are_those_of_weights(tmp_path: Path) -> None:
    path, expected = written(tmp_path, "gptq")
    linear = nn.ModuleDict({"Y": nn.Linear(expected.shape[1], expected.shape[0], bias=False)})
    glft.load_into(linear, path, names={"X.weight": "Y.weight", "norm.weight": None})
    assert torch.equal(linear["Y"].weight, expected)
    with pytest.raises(OptionError, match=r"names has X\.qweight, which the file lacks"):
        glft.load_into(linear, path, names={"X.qweight": "Y.weight"}, strict=True)
