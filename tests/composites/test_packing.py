"""GGUF models as folders of compressed-tensors and MLX, whose weights stay packed. The oracles are
gguf-py, words written by hand, and the libraries themselves, each in its own process."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glft_schema as glft
from glft_schema.composites.packing import FORMS, packed
from glft_schema.families.operations import SPLIT_ROWS, Stack
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.ggml.fp4 import NVFP4
from glft_schema.tensors.stored_tensor import StoredTensor, of_file
from glft_schema.weights.in_memory import packed_tensor
from tests.families.tiny_folders import make_folder
from tests.tools.command_line import assert_refused, in_this_process
from tests.tools.guarded_here import know_tokenizers

CT, MLX = FORMS
PAIRS = [(library, type_.scheme) for library, forms in FORMS.items() for type_ in forms]
NAMES = {  # parts of a packed weight
    (CT, "q4_0"): {"weight_packed", "weight_scale", "weight_shape"},
    (CT, "q8_0"): {"weight_packed", "weight_scale", "weight_shape"},
    (CT, "mxfp4"): {"weight_packed", "weight_scale"},
    (CT, "nvfp4"): {"weight_packed", "weight_scale", "weight_global_scale"},
    (MLX, "q4_0"): {"weight", "scales", "biases"},
    (MLX, "q4_1"): {"weight", "scales", "biases"},
    (MLX, "q8_0"): {"weight", "scales", "biases"},
    (MLX, "mxfp4"): {"weight", "scales"},
    (MLX, "nvfp4"): {"weight", "scales"},
}
V = "model.layers.0.self_attn.v_proj"
pytestmark = pytest.mark.filterwarnings("ignore:no tokenizer is written", "ignore:.*token")


@pytest.fixture(autouse=True)
def tiny_tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gguf", "tokenizers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}: pip install 'glft_schema[hf]'")
    know_tokenizers(monkeypatch)
    monkeypatch.setitem(sys.modules, "transformers", None)  # takes seconds to import


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    """Returns a function that writes a tiny model in a type, or types, as a GGUF file."""

    def made(types: str | Mapping[str, str], family: str = "tiny-llama", scales: Callable[[int], Any] | None = None) -> Path:
        schemes = {"*": types} if isinstance(types, str) else types
        source = make_folder(tmp_path, family)
        glft.convert(source, tmp_path / "model.gguf", schemes=schemes)
        if scales is None:
            return tmp_path / "model.gguf"
        with glft.open(tmp_path / "model.gguf") as file:
            tensors: dict[str, Any] = dict(file.tensors)
            for name, tensor in file.tensors.items():
                if tensor.type.name == "NVFP4" and name.startswith("blk."):
                    numbers = scales(tensor.shape[0] if len(tensor.shape) > 2 else 1)
                    tensors[name.replace(".weight", ".scale")] = np.asarray(numbers, np.float32)
            glft.save_file(tensors, tmp_path / "scaled.gguf", file.metadata)
        return tmp_path / "scaled.gguf"

    return made


def folder_of(path: Path, library: str | None = None) -> Path:
    """Writes a model as a folder, which is returned."""
    folder = path.parent / (library or "floats")
    glft.convert(path, f"{folder}/", pack=library)
    return folder


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())  # type: ignore[no-any-return]


def same_values(folder: Path, floats: Path) -> None:
    """Compares the weights of a folder with those of a folder of floats: bits, but zeros of any
    sign, since a scale times 0 is -0 in ggml and code * scale + bias is not."""
    with glft.open(folder / "model.safetensors") as file, glft.open(floats / "model.safetensors") as other:
        assert set(file.weights) == set(other.weights)
        for name, weight in other.weights.items():
            found, expected = file.weights[name].numpy(), weight.numpy()
            assert np.array_equal((found + 0.0).view(np.uint8), (expected + 0.0).view(np.uint8)), name


def stored(folder: Path, module: str = V) -> dict[str, np.ndarray]:
    """Returns the tensors of a module as stored."""
    with glft.open(folder / "model.safetensors") as file:
        names = [name for name in file.tensors if name.startswith(f"{module}.")]
        return {name.removeprefix(f"{module}."): file.tensors[name].array() for name in names}


@pytest.mark.parametrize(("library", "scheme"), PAIRS)
def test_values_are_those_of_the_file(library: str, scheme: str, model: Callable[..., Path]) -> None:
    path = model(scheme)
    folder = folder_of(path, library)
    same_values(folder, folder_of(path))
    assert stored(folder).keys() == NAMES[library, scheme]
    gguf = pytest.importorskip("gguf")
    with glft.open(path) as file, glft.open(folder / "model.safetensors") as other:
        tensor = file.tensors["blk.0.attn_v.weight"]
        blocks = np.frombuffer(tensor.raw, np.uint8).reshape(tensor.shape[0], -1)
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[scheme.upper()])
        assert np.array_equal(other.weights[f"{V}.weight"].numpy(), expected)


@pytest.mark.parametrize(("library", "scheme"), PAIRS)
def test_the_folder_becomes_the_same_payloads_again(library: str, scheme: str, model: Callable[..., Path]) -> None:
    path = model(scheme)
    glft.convert(folder_of(path, library), path.parent / "again.gguf")
    with glft.open(path) as file, glft.open(path.parent / "again.gguf") as again:
        assert set(file.tensors) == set(again.tensors)
        for name, tensor in file.tensors.items():
            if library == CT and name == "token_embd.weight":
                assert again.tensors[name].type.name == "F32"
            else:
                assert (tensor.type, tensor.raw) == (again.tensors[name].type, again.tensors[name].raw), name


@pytest.mark.parametrize("library", FORMS)
def test_scales_that_are_no_powers_of_two_come_back(library: str, model: Callable[..., Path]) -> None:
    """The library rounds products in another order, which the report says."""
    path = model("nvfp4", scales=lambda count: [1 / 11840] * count)
    folder = path.parent / library
    done = in_this_process("convert", path, f"{folder}/", "--pack", library)
    kept = "with rounded products: 12 tensors kept in U8" if library == CT else "14 tensors exact in U32"
    assert f"NVFP4, packed for {library}{', ' * (library == CT)}{': ' * (library == MLX)}{kept}" in done.stdout
    glft.convert(folder, path.parent / "again.gguf")
    with glft.open(path) as file, glft.open(path.parent / "again.gguf") as again:
        for name, tensor in file.tensors.items():
            if name.startswith("blk."):
                assert (tensor.type, tensor.raw) == (again.tensors[name].type, again.tensors[name].raw), name
    with glft.open(folder / "model.safetensors") as file, glft.open(folder_of(path) / "model.safetensors") as floats:
        for name, weight in floats.weights.items():
            np.testing.assert_allclose(file.weights[name].numpy(), weight.numpy(), rtol=2.5e-7, atol=0)


# A row of 32 weights: low nibbles 0 .. 15, high nibbles 15 .. 0, scale 0.5
NIBBLES = bytes(low | (15 - low) << 4 for low in range(16))
HALF = np.float16(0.5).tobytes()
STREAM = [0x76543210, 0xFEDCBA98, 0x89ABCDEF, 0x01234567]
BYTES = bytes(range(240, 256)) + bytes(range(16))  # -16 .. 15
OFFSET = [0x73727170, 0x77767574, 0x7B7A7978, 0x7F7E7D7C, 0x83828180, 0x87868584, 0x8B8A8988, 0x8F8E8D8C]


def of_bytes(scheme: str, payload: bytes, rows: int = 1) -> StoredTensor:
    type_ = GGML_TYPES[scheme]
    blocks = np.frombuffer(payload, np.uint8).reshape(rows, -1)
    columns = next(size for size in (32, 64) if not type_.refusal([1, size]) and type_.nbytes([1, size]) == blocks.shape[1])
    return of_file(packed_tensor("blk.0.attn_v.weight", type_, (rows, columns), blocks))


def parts_of(tensor: StoredTensor, library: str, name: str = f"{V}.weight") -> dict[str, Any] | None:
    found = packed(name, tensor, library)
    return found and {part.removeprefix(f"{V}."): one.values() for part, one in found[1].items()}


@pytest.mark.parametrize(("library", "scheme", "payload", "expected"), [
    (CT, "Q4_0", HALF + NIBBLES, {"weight_packed": STREAM, "weight_scale": [0.5]}),
    (CT, "Q8_0", HALF + BYTES, {"weight_packed": OFFSET, "weight_scale": [0.5]}),
    (CT, "MXFP4", b"\x80" + NIBBLES, {"weight_packed": list(np.array(STREAM, np.uint32).tobytes()), "weight_scale": [128]}),
    (MLX, "Q4_0", HALF + NIBBLES, {"weight": STREAM, "scales": [0.5], "biases": [-4]}),
    (MLX, "Q4_1", HALF + np.float16(-3).tobytes() + NIBBLES, {"weight": STREAM, "scales": [0.5], "biases": [-3]}),
    (MLX, "Q8_0", HALF + BYTES, {"weight": OFFSET, "scales": [0.5], "biases": [-64]}),
    (MLX, "MXFP4", b"\x80" + NIBBLES, {"weight": STREAM, "scales": [128]}),
])  # fmt: skip
def test_words_written_by_hand(library: str, scheme: str, payload: bytes, expected: dict[str, Any]) -> None:
    parts = parts_of(of_bytes(scheme, payload), library)
    assert parts is not None
    if "weight_shape" in parts:
        assert parts.pop("weight_shape").tolist() == [1, 32]
    found = {name: (part.view(np.uint32) if part.dtype == np.int32 else part)[0].tolist() for name, part in parts.items()}
    assert found == expected


def test_nvfp4_written_by_hand() -> None:
    """Scales 1, 2, 3.5, and a NaN that ggml reads as 0; codes: low nibbles, then high."""
    payload = bytes([0x38, 0x40, 0x46, 0x7F]) + bytes(low | (15 - low) << 4 for low in range(8)) * 4
    parts = parts_of(of_bytes("NVFP4", payload), CT)
    assert parts is not None
    assert parts["weight_scale"].view(np.uint8).tolist() == [[0x38, 0x40, 0x46, 0]]
    assert parts["weight_packed"].view(np.uint32).tolist() == [[0x76543210, 0x89ABCDEF] * 4]
    assert parts["weight_global_scale"].tolist() == [1]
    assert parts_of(of_bytes("NVFP4", payload), MLX).keys() == {"weight", "scales"}  # type: ignore[union-attr]


LARGEST = {"Q4_0": 8192, "Q8_0": 512}


@pytest.mark.parametrize("scheme", LARGEST)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_bias_beyond_float16_leaves_floats(scheme: str, sign: int) -> None:
    codes = NIBBLES if scheme == "Q4_0" else BYTES
    over = np.float16(sign * LARGEST[scheme])
    under = np.nextafter(over, np.float16(0))
    rows = [under.tobytes() + codes] * 3
    assert parts_of(of_bytes(scheme, b"".join(rows), 3), MLX) is not None
    rows[2] = over.tobytes() + codes
    assert parts_of(of_bytes(scheme, b"".join(rows), 3), MLX) is None
    assert parts_of(of_bytes(scheme, b"".join(rows), 3), CT) is not None


@pytest.mark.parametrize("library", FORMS)
@pytest.mark.parametrize(("scheme", "head"), [("Q4_0", b"\0\x7c"), ("Q8_0", b"\1\x7e"), ("MXFP4", b"\xff")])
def test_scales_that_libraries_read_otherwise_leave_floats(scheme: str, head: bytes, library: str) -> None:
    """Infinity, NaN, and the NaN of E8M0, which ggml reads as 2^128."""
    assert parts_of(of_bytes(scheme, head + (BYTES if scheme == "Q8_0" else NIBBLES)), library) is None


def with_scale(scale: Any, shape: tuple[int, ...] = (4, 64)) -> StoredTensor:
    blocks = np.random.default_rng(3).integers(0, 120, NVFP4.nbytes(shape), np.uint8).reshape(shape[0], -1)
    tensor = packed_tensor("blk.0.ffn_up.weight", NVFP4, shape, blocks)
    return replace(of_file(tensor), companions={"scale": np.asarray(scale, np.float32).reshape(-1)})


@pytest.mark.parametrize(("scale", "divisor", "factor"), [
    (1, 1, None),
    (0.25, 4, 672),
    (-2, -0.5, -5376),
    (0.3, np.float32(1) / np.float32(0.3), np.float32(0.3) * np.float32(2688)),
    (0, None, 0),
    (2.0**-140, None, None),
    (np.inf, None, None),
    (np.nan, None, None),
])  # fmt: skip
def test_the_scale_of_a_tensor(scale: float, divisor: float | None, factor: float | None) -> None:
    """A divisor for compressed-tensors that gives the scale again, 2688 times it for MLX."""
    parts = parts_of(with_scale(scale), CT)
    assert (None if parts is None else parts["weight_global_scale"].tolist()) == (None if divisor is None else [divisor])
    parts = parts_of(with_scale(scale), MLX)
    if np.isfinite(scale) and scale != 2.0**-140:
        assert parts is not None
        assert ([*parts["global_scale"]] if "global_scale" in parts else None) == (None if factor is None else [factor])


@pytest.mark.parametrize("library", FORMS)
@pytest.mark.parametrize("scheme", ["q8_0", "nvfp4"])
def test_experts_are_packed_one_by_one(library: str, scheme: str, model: Callable[..., Path]) -> None:
    path = model({"*_exps.weight": scheme, "*ffn_down_exps.weight": "q8_0"}, "tiny-qwen3moe")
    folder = folder_of(path, library)
    same_values(folder, folder_of(path))
    assert stored(folder, "model.layers.1.mlp.experts.2.gate_proj").keys() == NAMES[library, scheme]
    glft.convert(folder, path.parent / "again.gguf")
    with glft.open(path) as file, glft.open(path.parent / "again.gguf") as again:
        for name in file.tensors:
            assert file.tensors[name].raw == again.tensors[name].raw, name


@pytest.mark.parametrize("library", FORMS)
def test_each_expert_has_its_own_scale(library: str, model: Callable[..., Path]) -> None:
    types = {"*ffn_gate_exps.weight": "nvfp4", "*ffn_up_exps.weight": "nvfp4"}
    path = model(types, "tiny-qwen3moe", lambda count: 2.0 ** -np.arange(1, 1 + count))
    folder = folder_of(path, library)
    same_values(folder, folder_of(path))
    parts = stored(folder, "model.layers.1.mlp.experts.2.up_proj")
    assert (parts["weight_global_scale"] if library == CT else 2688 / parts["global_scale"]).tolist() == [8]
    glft.convert(folder, path.parent / "again.gguf")
    with glft.open(path) as file, glft.open(path.parent / "again.gguf") as again:
        assert set(file.tensors) == set(again.tensors)
        for name in file.tensors:
            assert file.tensors[name].raw == again.tensors[name].raw, name


def test_scales_move_with_their_matrices() -> None:
    stack = with_scale([1, 2, 4], (3, 2, 64))
    experts = Stack("count").map_to_hf([stack], {"count": 3}, "x")
    assert [expert.companions["scale"].tolist() for expert in experts] == [[1], [2], [4]]
    two = [with_scale([1, 2], (2, 2, 64)), with_scale([1, 2], (2, 2, 64))]
    (same,) = SPLIT_ROWS.map_to_hf(two, {}, "x")
    assert same.packed is not None
    assert same.companions["scale"].tolist() == [1, 2]
    (other,) = SPLIT_ROWS.map_to_hf([two[0], with_scale([1, 4], (2, 2, 64))], {}, "x")
    assert (other.packed, dict(other.companions)) == (None, {})  # rows of a matrix with two scales: values


MIXED = {"*": "q4_0", "*ffn_down.weight": "q8_0", "*attn_v.weight": "mxfp4", "*ffn_up.weight": "q6_k", "output.weight": "q8_0"}


def test_config_of_compressed_tensors(model: Callable[..., Path]) -> None:
    path = model(MIXED | {"*ffn_up.weight": "f16"})
    config = config_of(folder_of(path, CT))
    assert config["dtype"] == "bfloat16"  # in which the library decodes MXFP4
    config = config["quantization_config"]
    assert (config["quant_method"], config["format"], config["version"]) == (CT, "mixed-precision", "0.20.0")
    assert config["ignore"] == ["model.embed_tokens", "model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"]
    found = {}
    for group in config["config_groups"].values():
        weights = group["weights"]
        found[weights["type"], weights["num_bits"]] = group["format"], weights["group_size"], weights["strategy"]
        for module in group["targets"]:
            assert module == "lm_head" or module.startswith("model.layers.")
    assert found == {
        ("int", 4): ("pack-quantized", 32, "group"),
        ("int", 8): ("pack-quantized", 32, "group"),
        ("float", 4): ("mxfp4-pack-quantized", 32, "group"),
    }


def test_a_tied_head_is_ignored_and_one_type_names_its_format(model: Callable[..., Path]) -> None:
    path = model("q4_0")
    with glft.open(path) as file:
        kept = {name: tensor for name, tensor in file.tensors.items() if name != "output.weight"}
        glft.save_file(kept, path.parent / "tied.gguf", file.metadata)
    config = config_of(folder_of(path.parent / "tied.gguf", CT))
    assert (config["tie_word_embeddings"], config["dtype"]) == (True, "float32")
    config = config["quantization_config"]
    assert (config["format"], config["ignore"]) == ("pack-quantized", ["lm_head", "model.embed_tokens"])


def test_config_of_mlx(model: Callable[..., Path]) -> None:
    config = config_of(folder_of(model(MIXED | {"*ffn_up.weight": "f16"}), MLX))
    quantization = config["quantization"]
    assert quantization == config["quantization_config"]
    usual = {key: quantization.pop(key) for key in ("group_size", "bits", "mode")}
    assert usual == {"group_size": 32, "bits": 4, "mode": "affine"}
    eight, floats = {"group_size": 32, "bits": 8, "mode": "affine"}, {"group_size": 32, "bits": 4, "mode": "mxfp4"}
    expected = {"lm_head": eight}
    for block in ("model.layers.0", "model.layers.1"):
        expected |= {f"{block}.mlp.down_proj": eight, f"{block}.self_attn.v_proj": floats, f"{block}.mlp.up_proj": False}
    assert quantization == expected


@pytest.mark.parametrize("library", FORMS)
def test_a_model_without_fitting_types_becomes_floats_without_a_config(library: str, model: Callable[..., Path]) -> None:
    config = config_of(folder_of(model("q5_0"), library))
    assert "quantization_config" not in config
    assert "quantization" not in config


def test_parts_are_read_by_rows() -> None:
    rng = np.random.default_rng(5)
    blocks = rng.integers(0, 256, (7, 36), np.uint8)
    blocks[:, [1, 19]] = 0x30
    for library in FORMS:
        found = packed(f"{V}.weight", of_file(packed_tensor("x", GGML_TYPES["Q4_0"], (7, 64), blocks)), library)
        assert found is not None
        for part in found[1].values():
            whole = part.values()
            assert (part.shape, part.dtype) == (whole.shape, whole.dtype)
            assert part.has_parts
            if len(part.shape) > 1:
                assert np.array_equal(part.rows(slice(2, 5)), whole[2:5])


def test_the_report_counts_packed_weights_and_floats(model: Callable[..., Path], tmp_path: Path) -> None:
    path = model({"*": "q4_0", "*ffn_down.weight": "q5_0"})
    done = in_this_process("convert", path, f"{tmp_path}/new/", "--pack", CT)
    assert done.returncode == 0, done.stderr
    assert f"Q4_0, packed for {CT}: 13 tensors exact in I32" in done.stdout
    assert f"Q4_0, not packed for {CT}: 1 tensor exact in F32" in done.stdout  # the embedding
    assert f"Q5_0, not packed for {CT}: 2 tensors exact in F32" in done.stdout


ALONE = "pack (--pack) is for a folder (DIR/) as the output, without schemes (--scheme)"


@pytest.mark.parametrize(("output", "arguments", "parts"), [
    ("new.gguf", ("--pack", "mlx"), (ALONE,)),
    ("new/", ("--pack", "gptq"), ("expected pack (--pack) as", "compressed-tensors", "mlx", "found 'gptq'")),
    ("new/", ("--pack", "mlx", "--scheme", "*=f16"), (ALONE,)),
])  # fmt: skip
def test_refused(output: str, arguments: tuple[str, ...], parts: tuple[str, ...], model: Any, tmp_path: Path) -> None:
    assert_refused(in_this_process("convert", model("q4_0"), f"{tmp_path}/{output}", *arguments), *parts)
    assert not (tmp_path / output).exists()


def test_a_family_with_a_form_of_its_own_is_refused(model: Callable[..., Path], tmp_path: Path) -> None:
    path = model({}, "tiny-gpt-oss")
    done = in_this_process("convert", path, f"{tmp_path}/new/", "--pack", "mlx")
    assert_refused(done, "pack (--pack) is not for this family, whose folders have packed weights of their own")


# The libraries

OF_TRANSFORMERS = """
import sys, numpy, torch
from transformers import AutoModelForCausalLM
found = {}
for folder in sys.argv[2:]:
    dtype = torch.float32 if sys.argv[1] == "float32" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.no_grad():
        found[folder] = model(torch.tensor([[1, 45, 120, 77, 200, 12, 99, 33, 250, 7]])).logits.float().numpy()
one, other = found.values()
print(numpy.abs(one - other).max(), numpy.abs(other).max())
"""
OF_MLX = """
import importlib.util, json, sys, numpy, mlx.core as mx
from pathlib import Path
folder, floats = map(Path, sys.argv[1:])
config = json.loads((folder / "config.json").read_text())["quantization"]
expected, stored, count = mx.load(str(floats / "model.safetensors")), mx.load(str(folder / "model.safetensors")), 0
for name in expected:
    module, values = name.removesuffix(".weight"), stored[name]
    if f"{module}.scales" in stored:
        count += 1
        own = config.get(module, {key: config[key] for key in ("group_size", "bits", "mode")})
        scales, biases = stored[f"{module}.scales"], stored.get(f"{module}.biases")
        if biases is not None:  # it computes in the dtype of scales
            scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
        scale = stored.get(f"{module}.global_scale")
        values = mx.dequantize(values, scales, biases, **own, global_scale=scale, dtype=mx.float32)
    assert (values == expected[name]).all().item(), name
if importlib.util.find_spec("mlx_lm") and not any(name.endswith("global_scale") for name in stored):
    from mlx_lm.utils import load_model
    tokens = mx.array([[1, 45, 120, 77, 200, 12, 99, 33, 250, 7]])
    one, other = (numpy.array(load_model(path)[0](tokens).astype(mx.float32)) for path in (folder, floats))
    assert numpy.abs(one - other).max() < 0.01 * numpy.abs(other).max()
print(count)
"""


def in_a_process(library: str, script: str, *arguments: object) -> list[float]:
    """Runs a script with a library. Returns the numbers that it prints."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}: pip install -e '.[dev,foreign]'")
    command = [sys.executable, "-W", "ignore", "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [float(number) for number in done.stdout.split()]


@pytest.mark.foreign
@pytest.mark.parametrize(("types", "dtype"), [
    ("q4_0", "float32"),
    ("q8_0", "float32"),
    ("mxfp4", "bfloat16"),
    ("nvfp4", "bfloat16"),
    ({"*": "q4_0", "*ffn_down.weight": "q8_0", "*ffn_up.weight": "q6_k"}, "float32"),
    ({"*": "q4_0", "*attn_v.weight": "mxfp4", "*ffn_up.weight": "nvfp4"}, "bfloat16"),
])  # fmt: skip
def test_transformers_computes_the_logits_of_the_floats(types: Any, dtype: str, model: Callable[..., Path]) -> None:
    path = model(types)
    difference, most = in_a_process("compressed_tensors", OF_TRANSFORMERS, dtype, folder_of(path, CT), folder_of(path))
    assert most > 0.1
    assert difference <= (1e-5 if dtype == "float32" else 2**-6 * most)


@pytest.mark.foreign
@pytest.mark.parametrize("types", ["q4_0", "q4_1", "q8_0", "mxfp4", "nvfp4", MIXED])
def test_mlx_reads_the_values_of_the_floats(types: Any, model: Callable[..., Path]) -> None:
    path = model(types)
    (count,) = in_a_process("mlx", OF_MLX, folder_of(path, MLX), folder_of(path))
    assert count >= 12


@pytest.mark.foreign
def test_mlx_multiplies_by_the_scale_of_a_tensor(model: Callable[..., Path]) -> None:
    path = model("nvfp4", scales=lambda count: [0.25] * count)
    (count,) = in_a_process("mlx", OF_MLX, folder_of(path, MLX), folder_of(path))
    assert count >= 12
