"""Checkpoints that the libraries wrote, read as these libraries dequantize them, and as GGUF.

Each folder of tests/golden/composite has a checkpoint, and the weights that its library, or for
formulas without one its torch code, computes from it; see record_composite.py there.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file as load_stored

import glft_schema as glft
import glft_schema.numpy
from glft_schema.errors import MetadataWarning, TensorError
from tests.tools.command_line import in_this_process

ROOT = Path(__file__).parents[1] / "golden" / "composite"
PREFIX = {"down": "model.layers.0.mlp.down_proj", "up": "model.layers.0.mlp.up_proj", "q": "model.layers.0.self_attn.q_proj"}


class Folder(NamedTuple):
    """Expected schemes and types of a folder, by the rules of the types and of the libraries.

    Attributes:
        texts: of the schemes of down, up and q, which differ in the last words; the last text
            also applies to the weights without one.
        types: of GGUF that hold down, up and q exactly.
    """

    texts: str
    types: str


# Integers k * scale with scales in float16 and groups of whole blocks fit Q4_0 if k is -8..7,
# Q5_0 if -16..15, Q8_0 if -128..127; and Q4_1 if codes are 0..15 and minima float16. Bfloat16
# scales times a zero point of three significant bits are float16. Rows that are not whole blocks,
# neighbours of different groups, scales in float32 and zero points of eight bits leave only F32. In
# q of most folders, some scales are extreme: beyond float16, for NVFP4 negative or NaN, and for
# bfloat16 of MXFP8 a power of two beyond its range.
# fmt: off
FOLDERS = {
    "autoawq-g128": Folder("AWQ, 4 bits, a scale per row", "Q5_0 Q5_0 Q5_0"),
    "autoawq-g32": Folder("AWQ, 4 bits, groups of 32; a scale per row; a scale per row", "Q5_0 Q5_0 Q5_0"),
    "autoawq-sym-g64": Folder("AWQ, 4 bits, a scale per row", "Q4_0 Q4_0 Q4_0"),
    "bitsandbytes-fp4": Folder("bitsandbytes FP4, 4 bits, blocks of 64", "F32 - F32"),
    "bitsandbytes-fp4-nested": Folder("bitsandbytes FP4, 4 bits, blocks of 64", "F32 - F32"),
    "bitsandbytes-int8": Folder("bitsandbytes LLM.int8, 8 bits, a scale per row", "F32 F32 F32"),
    "bitsandbytes-nf4": Folder("bitsandbytes NF4, 4 bits, blocks of 64", "F32 - F32"),
    "bitsandbytes-nf4-float32": Folder("bitsandbytes NF4, 4 bits, blocks of 128", "F32 - F32"),
    "bitsandbytes-nf4-nested": Folder("bitsandbytes NF4, 4 bits, blocks of 64", "F32 - -"),
    "comfyui-fp8-scaled": Folder("FP8, 8 bits, one scale", "F32 F32"),
    "compressed-tensors-fp8-block": Folder("FP8, 8 bits, blocks of 128 x 24; blocks of 12 x 128", "F32 F32"),
    "compressed-tensors-fp8-channel": Folder("FP8, 8 bits, a scale per row", "F32 F32 F32"),
    "compressed-tensors-fp8-small-blocks": Folder("FP8, 8 bits, blocks of 16 x 32; blocks of 12 x 32; blocks of 16 x 32",
        "F32 F32 F32"),
    "compressed-tensors-fp8-tensor": Folder("FP8, 8 bits, one scale", "F32 F32 F32"),
    "compressed-tensors-int8-asym-g64": Folder("compressed-tensors W8A8, 8 bits, a scale per row; groups of 64", "F32 F32 F32"),
    "compressed-tensors-int8-channel": Folder("compressed-tensors W8A8, 8 bits, a scale per row", "Q8_0 F32 F32"),
    "compressed-tensors-mxfp4a16": Folder("compressed-tensors MXFP4, 4 bits, groups of 32", "MXFP4 MXFP4 MXFP4"),
    "compressed-tensors-mxfp8a16": Folder("compressed-tensors MXFP8, 8 bits, groups of 32", "BF16 BF16 F32"),
    "compressed-tensors-naive-fp8-channel": Folder("FP8, 8 bits, a scale per row", "F32 F32"),
    "compressed-tensors-nvfp4": Folder("compressed-tensors NVFP4, 4 bits, groups of 16", "NVFP4 F32 F32"),
    "compressed-tensors-nvfp4a16": Folder("compressed-tensors NVFP4, 4 bits, groups of 16", "NVFP4 NVFP4"),
    "compressed-tensors-old-w3a16-asym-g32": Folder("compressed-tensors W3A16, 3 bits, groups of 32", "Q4_0 Q4_0"),
    "compressed-tensors-old-w3a16-g32": Folder("compressed-tensors W3A16, 3 bits, groups of 32", "Q4_0 Q4_0 F32"),
    "compressed-tensors-old-w4a16-actorder": Folder("compressed-tensors W4A16, 4 bits, groups of 32", "F32 F32 F32"),
    "compressed-tensors-old-w4a16-asym-actorder": Folder("compressed-tensors W4A16, 4 bits, a scale per row; groups of 64",
        "Q5_0 F32 F32"),
    "compressed-tensors-old-w5a16-g32": Folder("compressed-tensors W5A16, 5 bits, groups of 32", "Q5_0 Q5_0 F32"),
    "compressed-tensors-w2a16-g32": Folder("compressed-tensors W2A16, 2 bits, groups of 32", "Q4_0 Q4_0 F32"),
    "compressed-tensors-w3a16-asym-g32": Folder("compressed-tensors W3A16, 3 bits, groups of 32", "Q4_0 Q4_0"),
    "compressed-tensors-w3a16-g32": Folder("compressed-tensors W3A16, 3 bits, groups of 32", "Q4_0 Q4_0 F32"),
    "compressed-tensors-w4a16-asym-channel": Folder("compressed-tensors W4A16, 4 bits, a scale per row", "Q4_1 F32"),
    "compressed-tensors-w4a16-asym-g128": Folder("compressed-tensors W4A16, 4 bits, a scale per row; groups of 128",
        "Q4_1 Q4_1 F32"),
    "compressed-tensors-w4a16-channel": Folder("compressed-tensors W4A16, 4 bits, a scale per row", "Q4_0 F32 F32"),
    "compressed-tensors-w4a16-g32": Folder("compressed-tensors W4A16, 4 bits, groups of 32", "Q4_0 Q4_0 F32"),
    "compressed-tensors-w4a16-g32-float16": Folder("compressed-tensors W4A16, 4 bits, groups of 32", "Q4_0 Q4_0 Q4_0"),
    "compressed-tensors-w5a16-g32": Folder("compressed-tensors W5A16, 5 bits, groups of 32", "Q5_0 Q5_0 F32"),
    "compressed-tensors-w6a16-g32": Folder("compressed-tensors W6A16, 6 bits, groups of 32", "Q8_0 Q8_0 F32"),
    "compressed-tensors-w8a16-asym-g64": Folder("compressed-tensors W8A16, 8 bits, a scale per row; groups of 64",
        "F32 F32 F32"),
    "compressed-tensors-w8a16-g32": Folder("compressed-tensors W8A16, 8 bits, groups of 32", "Q8_0 Q8_0 F32"),
    "fp8-blocks": Folder("FP8, 8 bits, blocks of 16 x 32; blocks of 16 x 32; blocks of 16 x 32", "F32 F32 F32"),
    "fp8-blocks-e8m0": Folder("FP8, 8 bits, blocks of 16 x 32", "BF16 BF16 BF16"),
    "fp8-blocks-fp4": Folder("FP8 with FP4 experts, 4 bits, groups of 32; a scale per row; groups of 32", "MXFP4 MXFP4 MXFP4"),
    "fp8-blocks-ragged": Folder("FP8, 8 bits, blocks of 16 x 32", "F32 F32 F32"),
    "fp8-blocks-ragged-128": Folder("FP8, 8 bits, blocks of 128 x 24; blocks of 12 x 128", "F32 F32"),
    "gpt-oss-mxfp4": Folder("gpt-oss MXFP4, 4 bits, a scale per row; groups of 32", "MXFP4 MXFP4"),
    "gptqmodel-w2-g32": Folder("GPTQ, 2 bits, groups of 32; groups of 32; a scale per row", "Q4_0 Q4_0 Q4_0"),
    "gptqmodel-w3-asym-v2": Folder("GPTQ, 3 bits, groups of 32; groups of 32; a scale per row", "Q4_0 Q4_0 Q4_0"),
    "gptqmodel-w3-g32": Folder("GPTQ, 3 bits, groups of 32; groups of 32; a scale per row", "Q4_0 Q4_0 Q4_0"),
    "gptqmodel-w4-actorder": Folder("GPTQ, 4 bits, groups of 32; groups of 32; a scale per row", "F32 F32 Q4_0"),
    "gptqmodel-w4-actorder-same": Folder("GPTQ, 4 bits, groups of 32; groups of 32; a scale per row", "Q4_0 Q4_0 Q4_0"),
    "gptqmodel-w4-asym": Folder("GPTQ, 4 bits, groups of 32; groups of 32; a scale per row", "Q5_0 Q5_0 Q5_0"),
    "gptqmodel-w4-asym-actorder": Folder("GPTQ, 4 bits, groups of 32; groups of 32; a scale per row", "F32 F32 Q5_0"),
    "gptqmodel-w4-asym-v2": Folder("GPTQ, 4 bits, groups of 32; groups of 32; a scale per row", "Q5_0 Q5_0 Q5_0"),
    "gptqmodel-w4-channel": Folder("GPTQ, 4 bits, a scale per row", "Q4_0 Q4_0 Q4_0"),
    "gptqmodel-w4-g32": Folder("GPTQ, 4 bits, groups of 32; groups of 32; a scale per row", "Q4_0 Q4_0 Q4_0"),
    "gptqmodel-w4-v2": Folder("GPTQ, 4 bits, groups of 32; groups of 32; a scale per row", "Q4_0 Q4_0 Q4_0"),
    "gptqmodel-w8-asym": Folder("GPTQ, 8 bits, groups of 32; groups of 32; a scale per row", "F32 F32 F32"),
    "gptqmodel-w8-g32": Folder("GPTQ, 8 bits, groups of 32; groups of 32; a scale per row", "Q8_0 Q8_0 Q8_0"),
    "mistral-fp8": Folder("FP8, 8 bits, one scale", "F32 F32"),
    "mlx-affine-1-g64": Folder("MLX, 1 bits, groups of 64", "Q4_1 Q4_1 Q4_1"),
    "mlx-affine-2-g64": Folder("MLX, 2 bits, groups of 64", "Q4_1 Q4_1 Q4_1"),
    "mlx-affine-3-g64": Folder("MLX, 3 bits, groups of 64", "Q4_1 Q4_1 Q4_1"),
    "mlx-affine-4-g128-float32": Folder("MLX, 4 bits, a scale per row; groups of 128; a scale per row", "F32 F32 F32"),
    "mlx-affine-4-g32": Folder("MLX, 4 bits, groups of 32", "Q4_1 Q4_1 Q4_1"),
    "mlx-affine-4-g64": Folder("MLX, 4 bits, groups of 64", "Q4_1 Q4_1 Q4_1"),
    "mlx-affine-4-g64-bfloat16": Folder("MLX, 4 bits, groups of 64", "Q4_1 Q4_1 F32"),
    "mlx-affine-5-g64": Folder("MLX, 5 bits, groups of 64", "Q5_1 Q5_1 Q5_1"),
    "mlx-affine-6-g64": Folder("MLX, 6 bits, groups of 64", "F32 F32 F32"),
    "mlx-affine-8-g32": Folder("MLX, 8 bits, groups of 32", "F32 F32 F32"),
    "mlx-affine-8-g64-bfloat16": Folder("MLX, 8 bits, groups of 64", "F32 F32 F32"),
    "mlx-mxfp4": Folder("MLX MXFP4, 4 bits, groups of 32", "MXFP4 MXFP4 MXFP4"),
    "mlx-mxfp8": Folder("MLX MXFP8, 8 bits, groups of 32", "BF16 BF16 F32"),
    "mlx-nvfp4": Folder("MLX NVFP4, 4 bits, groups of 16", "NVFP4 NVFP4 F32"),
    "mlx-nvfp4-global": Folder("MLX NVFP4, 4 bits, groups of 16", "NVFP4 NVFP4 NVFP4"),
    "modelopt-fp8": Folder("FP8, 8 bits, one scale", "F32 F32 F32"),
    "modelopt-fp8-channel": Folder("FP8, 8 bits, a scale per row", "F32 F32 F32"),
    "modelopt-nvfp4": Folder("ModelOpt NVFP4, 4 bits, groups of 16", "NVFP4 F32 F32"),
    "torchao-float8": Folder("FP8, 8 bits, a scale per row", "F32 F32 F32"),
    "torchao-float8-tensor": Folder("FP8, 8 bits, one scale", "F32 F32 F32"),
    "torchao-int3-rows": Folder("torchao, 8 bits, a scale per row", "F32 F32 F32"),
    "torchao-int4-asym-g32": Folder("torchao, 8 bits, groups of 32", "Q5_0 Q5_0 Q5_0"),
    "torchao-int4-g32": Folder("torchao, 8 bits, groups of 32", "Q4_0 Q4_0 F32"),
    "torchao-int8": Folder("torchao, 8 bits, a scale per row", "Q8_0 F32 F32"),
    "torchao-int8-g32": Folder("torchao, 8 bits, groups of 32", "F32 F32 F32"),
    "torchao-mxfp4": Folder("torchao MXFP4, 4 bits, groups of 32", "MXFP4 MXFP4 MXFP4"),
    "torchao-mxfp8-swizzled": Folder("", "- - -"),
    "torchao-nvfp4": Folder("torchao NVFP4, 4 bits, groups of 16", "NVFP4 NVFP4 F32"),
    "torchao-nvfp4-swizzled": Folder("", "- - -"),
}
# fmt: on
NAMES = {"gpt-oss-mxfp4": ("model.layers.0.mlp.experts.down_proj", "model.layers.0.mlp.experts.gate_up_proj")}
REFUSALS = {  # of weights whose type is -
    "bitsandbytes": r"expected sizes from 1 and an even number of columns in quant_state, found \[\d+, \d+\] in blocks of \d+$",
    "torchao-mxfp8": r"expected scale as one number, \[\d+\] or .* for a weight .*, found float8_e8m0fnu \[\d+, \d+\]$",
    "torchao-nvfp4": r"expected scale as float8_e8m0fnu, found float8_e4m3fn \[\d+, \d+\]$",
}
PARTS = re.compile(
    r"(\.(_?weight_(scale(_inv|_2)?|packed|shape|zero_point|global_scale|format|g_idx|qdata|per_tensor_scale)"
    r"|q?scale_weight|qweight|qzeros|scales|g_idx|biases|SCB|global_scale|weight\..*)|_blocks|_scales)$"
)
WHOLE = [name for name, folder in FOLDERS.items() if "-" not in folder.types]  # of which no weight is refused


class Weight(NamedTuple):
    """A weight of a folder.

    Attributes:
        name: the module's and ``.weight``, or of gpt-oss without it.
        values: what the library computes.
        text: of its scheme.
        type: of GGUF, or - if it is refused.
    """

    name: str
    values: torch.Tensor
    text: str
    type: str


@cache
def weights_of(folder: str) -> list[Weight]:
    values = load_stored(ROOT / folder / "expected.safetensors")
    (text, *others), types = FOLDERS[folder].texts.split("; "), FOLDERS[folder].types.split()
    texts = [text, *(f"{text.rpartition(', ')[0]}, {other}" for other in others)]
    names = NAMES.get(folder) or [f"{prefix}.weight" for prefix in PREFIX.values()]
    found = [name for name in names if name in values or folder in NAMES]
    assert len(found) == len(types) == len(values)
    texts += texts[-1:] * (len(found) - len(texts))
    given = [values[name if name in values else f"{name}.weight"] for name in found]
    return [Weight(*row) for row in zip(found, given, texts, types, strict=True)]


def stored(folder: str) -> dict[str, torch.Tensor]:
    return load_stored(ROOT / folder / "model.safetensors")


def bits_without_zero_signs(values: torch.Tensor) -> torch.Tensor:
    """Returns the bits of floats, those of zeros without a sign, and of NaN all alike."""
    plain = torch.where(values == 0, torch.zeros_like(values), values)
    words = {2: torch.int16, 4: torch.int32}[values.element_size()]
    return torch.where(values.isnan(), torch.full_like(values, torch.nan), plain).view(words)


def mlx_codes(folder: str, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns codes, scales and biases of an affine weight of MLX for each column."""
    config = json.loads((ROOT / folder / "config.json").read_text())["quantization"]
    tensors, module = stored(folder), name.removesuffix(".weight")
    words = tensors[name].view(torch.int32).numpy().view(np.uint8)
    streams = np.unpackbits(words, axis=1, bitorder="little").reshape(len(words), -1, config["bits"])
    codes = torch.from_numpy(streams.astype(np.int64) @ (1 << np.arange(config["bits"])))
    scales, biases = (tensors[f"{module}.{part}"].repeat_interleave(config["group_size"], 1) for part in ("scales", "biases"))
    return codes, scales, biases


def expected_of(folder: str, weight: Weight) -> torch.Tensor:
    """Returns the library's values, and MLX's without its two roundings."""
    if not folder.startswith("mlx-affine"):
        return weight.values
    codes, scales, biases = mlx_codes(folder, weight.name)
    dtype = scales.dtype
    assert torch.equal(codes.to(dtype) * scales + biases, weight.values), "MLX rounds the product, then the sum"
    return codes.float() * scales.float() + biases.float()


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Asserts that float32 values, cast to the dtype of the expected ones, have the same bits."""
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    assert torch.equal(bits_without_zero_signs(found.to(expected.dtype)), bits_without_zero_signs(expected))


def test_each_recorded_folder_has_a_row() -> None:
    assert {folder.name for folder in ROOT.iterdir()} == {*FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS)
def test_weights_are_those_of_the_library(folder: str) -> None:
    with glft.open(ROOT / folder / "model.safetensors") as file:
        for weight in weights_of(folder):
            if weight.type == "-":
                problem = next(text for start, text in REFUSALS.items() if folder.startswith(start))
                with pytest.raises(TensorError, match=rf"^tensor '{re.escape(weight.name)}': \w+: {problem}"):
                    file.weights[weight.name]
                continue
            tensor = file.weights[weight.name]
            assert_equal(tensor.dequantize(), expected_of(folder, weight))
            assert file.weights.composed[weight.name].origin == weight.text
            assert tensor.shape == tuple(weight.values.shape)
            assert tensor.nbytes == tensor.type.nbytes(tensor.shape)


@pytest.mark.parametrize("folder", WHOLE)
def test_parts_are_no_weights(folder: str) -> None:
    """All other tensors are weights as they are stored, and all tensors stay in `tensors`."""
    with glft.open(path := ROOT / folder / "model.safetensors") as file:
        names = {weight.name for weight in weights_of(folder)}
        others = {name for name in file.tensors if name not in names and not PARTS.search(name)}
        assert {*file.weights} == {*file.keys()} == names | others
        assert len(file.weights) == len(names | others)
        assert {*file.tensors} == {*stored(folder)} == {*glft.load_file(path, as_stored=True)}


@pytest.mark.parametrize("folder", WHOLE)
def test_files_load_by_name(folder: str) -> None:
    path = ROOT / folder / "model.safetensors"
    by_torch, by_numpy = glft.load_file(path), glft_schema.numpy.load_file(path)
    assert {*by_torch} == {*by_numpy}
    for weight in weights_of(folder):
        assert_equal(by_torch[weight.name], expected := expected_of(folder, weight))
        assert_equal(torch.from_numpy(by_numpy[weight.name]), expected)
        out = torch.zeros(weight.values.shape, dtype=torch.bfloat16)
        with glft.open(path) as file:
            assert file.get_tensor(weight.name, out=out) is out
        assert torch.equal(bits_without_zero_signs(out), bits_without_zero_signs(by_torch[weight.name].bfloat16()))


@pytest.mark.parametrize("folder", FOLDERS)
def test_slices_are_parts_of_the_whole(folder: str) -> None:
    random = np.random.default_rng(len(folder))
    with glft.open(ROOT / folder / "model.safetensors") as file:
        for weight in weights_of(folder):
            if weight.type == "-":
                continue
            tensor = file.get_slice(weight.name)
            whole = tensor.dequantize()
            for _ in range(4):
                at = tuple(slice(*sorted(random.choice(size + 1, 2, replace=False))) for size in whole.shape)
                assert torch.equal(bits_without_zero_signs(tensor[at]), bits_without_zero_signs(whole[at]))
            row, column = (int(random.integers(size)) for size in (len(whole), whole.shape[-1]))
            assert torch.equal(bits_without_zero_signs(tensor[row]), bits_without_zero_signs(whole[row]))
            assert torch.equal(bits_without_zero_signs(tensor[..., column]), bits_without_zero_signs(whole[..., column]))


def by_gguf_py(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    """Returns the type and the values of each tensor of a GGUF file, dequantized by gguf-py."""
    found = {}
    with np.errstate(all="ignore"):
        for tensor in gguf.GGUFReader(path).tensors:
            shape = tuple(map(int, reversed(tensor.shape)))
            found[tensor.name] = tensor.tensor_type.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
    return found


def gguf_tensors_of(folder: str, path: Path) -> dict[str, Any]:
    """Converts a folder's file to GGUF, and returns the tensors as gguf-py reads them."""
    with pytest.warns(MetadataWarning, match="names are kept"):
        glft.convert(ROOT / folder / "model.safetensors", path)
    return by_gguf_py(path)


@pytest.mark.parametrize("folder", WHOLE)
def test_gguf_has_the_same_values_in_the_smallest_type(folder: str, tmp_path: Path) -> None:
    """By gguf-py, which multiplies NVFP4 by the companion scale here."""
    path = tmp_path / "out.gguf"
    tensors = gguf_tensors_of(folder, path)
    with glft.open(path) as file:
        for weight in weights_of(folder):
            type_, values = tensors[weight.name]
            assert type_ == weight.type, weight.name
            expected = glft_schema.numpy.load_file(ROOT / folder / "model.safetensors")[weight.name]
            if type_ == "NVFP4":
                beside = f"{weight.name.removesuffix('.weight')}.scale"
                kind, scale = tensors.get(beside, ("F32", np.ones(1, np.float32)))  # a scale of 1 is not written
                assert (kind, scale.shape) == ("F32", (1,))
                assert (beside in tensors) == (folder != "mlx-nvfp4")
                # the product is rounded elsewhere, and the reciprocal of a divisor once more
                np.testing.assert_allclose(values * scale, expected, rtol=2.5e-7, atol=0)
                np.testing.assert_allclose(file.weights[weight.name].numpy(), expected, rtol=2.5e-7, atol=0)
                assert file.tensors[weight.name].type.name == "NVFP4"
            else:
                np.testing.assert_array_equal(values, expected)
                np.testing.assert_array_equal(file.tensors[weight.name].numpy(), expected)


@pytest.mark.parametrize("folder", ["mlx-nvfp4"])
def test_nvfp4_with_a_power_of_two_is_exact(folder: str, tmp_path: Path) -> None:
    tensors = gguf_tensors_of(folder, tmp_path / "out.gguf")
    for weight in weights_of(folder):
        scale = tensors.get(f"{weight.name.removesuffix('.weight')}.scale", (None, 1))[1]
        np.testing.assert_array_equal(tensors[weight.name][1] * scale, weight.values.float())


@pytest.mark.parametrize("folder", ["bitsandbytes-nf4", "torchao-mxfp8-swizzled", "torchao-nvfp4-swizzled"])
def test_a_refused_weight_stops_what_needs_all(folder: str, tmp_path: Path) -> None:
    path, out = ROOT / folder / "model.safetensors", tmp_path / "out.gguf"
    for work in (glft.load_file, glft_schema.numpy.load_file, lambda path: glft.convert(path, out)):
        with pytest.raises(TensorError, match=r"^tensor 'model\.layers\.0\.\w+\.\w+\.weight': \w+: expected .*, found [^\n]*$"):
            work(path)
    assert not out.exists()
    assert len(glft.load_file(path, as_stored=True)) == len(stored(folder))
    for command in (("convert", path, out), ("verify", "--values", path)):
        done = in_this_process(*command)
        assert done.returncode
        assert len(done.stderr.strip().splitlines()) == 1
        assert "'model.layers.0." in done.stderr
