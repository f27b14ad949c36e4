"""Integer grids become the smallest type of GGUF that holds them bit for bit, and F32 otherwise.

The rule is written again here, in numbers of Python, and codes are packed bit by bit. gguf-py
dequantizes the files.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import glft_schema as glft
from glft_schema.errors import MetadataWarning
from tests.composites import packers
from tests.composites.packers import Tensors

ROWS = 32
UNSIGNED = (("Q4_0", -8, 7), ("Q4_1", 0, 15), ("Q5_0", -16, 15), ("Q5_1", 0, 31), ("Q8_0", -128, 127))


def is_half(numbers: np.ndarray) -> bool:
    """Tells whether all numbers are finite floats of 16 bits."""
    with np.errstate(over="ignore"):
        halves = numbers.astype(np.float16)
    return bool(np.isfinite(halves).all() and (halves.astype(np.float64) == numbers).all())


def smallest(codes: np.ndarray, zeros: np.ndarray, scales: torch.Tensor) -> str:
    """Returns the smallest type that holds (code - zero point) * scale."""
    group = codes.shape[1] // scales.shape[1]
    if group % 32 or not is_half(exact := scales.double().numpy()):
        return "F32"
    numbers = codes - zeros.repeat(group, 1)
    for name, least, most in UNSIGNED:
        held, fits = (codes, is_half(-exact * zeros)) if least == 0 else (numbers, True)
        if fits and least <= held.min() and held.max() <= most:
            return name
    return "F32"


def in_gguf(tensors: Tensors, config: dict[str, Any]) -> tuple[str, np.ndarray]:
    """Converts a weight; returns its type, and the values that gguf-py finds."""
    with tempfile.TemporaryDirectory() as folder:
        path = packers.write(Path(folder), tensors, config)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MetadataWarning)  # the config has no family
            glft.convert(path, out := Path(folder, "out.gguf"))
        (tensor,) = gguf.GGUFReader(out).tensors
        with np.errstate(all="ignore"):
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        return tensor.tensor_type.name, np.array(values.reshape(tuple(map(int, reversed(tensor.shape)))))


def halves(count: int) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(width=16, allow_nan=False, allow_infinity=False), min_size=count, max_size=count)


def others(count: int) -> st.SearchStrategy[list[float]]:
    """Floats that need more bits, of sizes in and out of the range of float16."""
    return st.lists(st.sampled_from([0.1, 1e-6, 3e5, 2.0**-25, 1 / 3]), min_size=count, max_size=count)


@st.composite
def grids(draw: st.DrawFn, widths: tuple[int, ...] = (2, 3, 4, 8)) -> tuple[np.ndarray, np.ndarray, torch.Tensor, int]:
    """Returns codes, zero points, scales in float32 and the bits; some of narrow ranges."""
    bits, group, groups = draw(st.sampled_from(widths)), draw(st.sampled_from([16, 32, 48, 64])), draw(st.integers(1, 3))
    top, seed = (1 << bits) - 1, draw(st.integers(0, 1 << 30))
    low = draw(st.integers(0, top))
    high = draw(st.integers(low, top))
    random = np.random.default_rng(seed)
    codes = random.integers(low, high + 1, (ROWS, group * groups))
    zero = draw(st.integers(1, top))
    zeros = random.integers(zero, draw(st.sampled_from([zero, top])) + 1, (ROWS, groups))
    numbers = draw(st.one_of(halves(groups), halves(groups), others(groups)))
    return codes, zeros, torch.tensor(numbers).repeat(ROWS, 1), bits


def check(tensors: Tensors, config: dict[str, Any], codes: np.ndarray, zeros: np.ndarray, scales: torch.Tensor) -> None:
    type_, values = in_gguf(tensors, config)
    assert type_ == smallest(codes, zeros, scales)
    np.testing.assert_array_equal(values, packers.values(codes, zeros, scales))


@given(grids(), st.sampled_from([1, 2]), st.booleans())
def test_gptq(grid: tuple[np.ndarray, np.ndarray, torch.Tensor, int], version: int, is_half: bool) -> None:
    codes, zeros, scales, bits = grid
    assume(codes.shape[1] * bits % 32 == 0)  # whole words
    scales = scales.half() if is_half else scales
    tensors = packers.gptq(codes, zeros, scales, bits, version)
    config = {"quant_method": "gptq", "bits": bits, "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}
    check(tensors, {"quantization_config": config}, codes, zeros, scales)


@given(grids((4,)))
def test_awq(grid: tuple[np.ndarray, np.ndarray, torch.Tensor, int]) -> None:
    codes, zeros, scales, _ = grid
    config = {"quant_method": "awq", "bits": 4, "version": "gemm"}
    check(packers.awq(codes, zeros, scales), {"quantization_config": config}, codes, zeros, scales)


@given(grids(tuple(range(2, 9))), st.sampled_from([torch.float32, torch.float16, torch.bfloat16]), st.booleans())
def test_compressed_tensors(
    grid: tuple[np.ndarray, np.ndarray, torch.Tensor, int], dtype: torch.dtype, is_symmetric: bool
) -> None:
    codes, zeros, scales, bits = grid
    scales, group = scales.to(dtype), codes.shape[1] // scales.shape[1]
    if is_symmetric:
        zeros = np.full_like(zeros, 1 << bits - 1)
    tensors = packers.packed(codes, None if is_symmetric else zeros, scales, bits)
    weights = {"num_bits": bits, "group_size": group, "symmetric": is_symmetric, "strategy": "group", "type": "int"}
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
    check(tensors, {"quantization_config": config}, codes, zeros, scales)


@given(grids((1, 2, 3, 4, 5, 6, 8)), st.sampled_from(["half of the range", "any"]), st.booleans())
def test_mlx(grid: tuple[np.ndarray, np.ndarray, torch.Tensor, int], offset: str, is_half_grid: bool) -> None:
    """Q4_0, Q5_0 and Q8_0 hold codes whose biases are the scales times their least number."""
    codes, _, scales, bits = grid
    assume(codes.shape[1] * bits % 32 == 0)  # whole words
    group, least = codes.shape[1] // scales.shape[1], {4: 8, 5: 16, 8: 128}.get(bits, 8)
    scales = scales.half().float() if is_half_grid else scales
    biases = -least * scales if offset != "any" else scales * 0.75 + 1
    tensors = packers.mlx(codes, scales, biases, bits)
    type_, values = in_gguf(tensors, {"quantization": {"group_size": group, "bits": bits}})
    expected = "F32"
    if group % 32 == 0 and is_half(scales.double().numpy()):
        for name, low, high in reversed(UNSIGNED):
            fits = is_half(biases.double().numpy()) if low == 0 else torch.equal(biases, low * scales)
            shifted = codes + (low if low else 0)
            if fits and low <= shifted.min() and shifted.max() <= high:
                expected = name
    assert type_ == expected
    spread = scales.numpy().repeat(group, 1), biases.numpy().repeat(group, 1)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(values, codes.astype(np.float32) * spread[0] + spread[1])


# fmt: off
BOUNDARIES = [  # zero point, numbers code - zero point, type
    (128, (-8, 7), "Q4_0"),  (128, (-8, 8), "Q5_0"),    (128, (-9, 7), "Q5_0"),  (128, (-16, 15), "Q5_0"),
    (128, (-16, 16), "Q8_0"), (128, (-17, 15), "Q8_0"), (128, (-128, 127), "Q8_0"), (127, (-127, 127), "Q8_0"),
    (127, (-127, 128), "F32"), (129, (-129, 0), "F32"), (0, (0, 7), "Q4_0"),     (0, (0, 8), "Q4_1"),
    (0, (0, 15), "Q4_1"),    (0, (0, 16), "Q5_1"),      (0, (0, 31), "Q5_1"),    (0, (0, 32), "Q8_0"),
    (0, (0, 127), "Q8_0"),   (0, (0, 128), "F32"),      (8, (-8, 7), "Q4_0"),    (7, (-7, 8), "Q4_1"),
    (16, (-16, 15), "Q5_0"), (15, (-15, 16), "Q5_1"),   (9, (-9, 6), "Q4_1"),    (17, (-17, 14), "Q5_1"),
]
SCALES = [  # one scale, type for the codes of Q4_0
    (1.0, "Q4_0"), (-0.25, "Q4_0"), (0.0, "Q4_0"), (65504.0, "Q4_0"), (65536.0, "F32"), (2.0**-14, "Q4_0"),
    (2.0**-24, "Q4_0"), (3 * 2.0**-24, "Q4_0"), (2.0**-25, "F32"), (1.5 * 2.0**-24, "F32"), (1 + 2.0**-10, "Q4_0"),
    (1 + 2.0**-11, "F32"), (1.0e-3, "F32"), (np.nan, "F32"), (np.inf, "F32"),
]
# fmt: on


def converted(codes: np.ndarray, zeros: np.ndarray, scales: torch.Tensor, bits: int) -> tuple[str, np.ndarray]:
    """Converts a weight of compressed-tensors, and checks the values."""
    type_, values = in_gguf(packers.packed(codes, zeros, scales, bits), {"quantization_config": {"bits": bits}})
    np.testing.assert_array_equal(values, packers.values(codes, zeros, scales))
    return type_, values


@pytest.mark.parametrize(("zero", "ends", "type_"), BOUNDARIES)
def test_boundaries_of_codes(zero: int, ends: tuple[int, int], type_: str) -> None:
    codes = np.full((ROWS, 64), zero + ends[0])
    codes[-1, -1] = zero + ends[1]
    assert converted(codes, np.full((ROWS, 1), zero), torch.ones(ROWS, 1), 8)[0] == type_


@pytest.mark.parametrize(("scale", "type_"), SCALES)
def test_boundaries_of_scales(scale: float, type_: str) -> None:
    """A single scale of the last group decides."""
    scales = torch.ones(ROWS, 2)
    scales[-1, -1] = scale
    codes = np.arange(ROWS * 64).reshape(ROWS, 64) % 16
    assert converted(codes, np.full((ROWS, 2), 8), scales, 4)[0] == type_


@pytest.mark.parametrize(("columns", "group", "type_"), [
    (64, 32, "Q4_0"), (64, 64, "Q4_0"), (96, 32, "Q4_0"), (32, 32, "Q4_0"), (64, 16, "F32"), (96, 48, "F32"), (40, 40, "F32"),
    (64, 8, "F32"), (66, 2, "F32"), (33, 33, "F32"),
])  # fmt: skip
def test_groups_are_whole_blocks(columns: int, group: int, type_: str) -> None:
    codes = np.arange(ROWS * columns).reshape(ROWS, columns) % 16
    scales = torch.linspace(0.5, 1, columns // group).half().repeat(ROWS, 1)
    zeros = np.full((ROWS, columns // group), 8)
    assert converted(codes, zeros, scales, 4)[0] == type_


def test_a_last_group_of_fewer_columns() -> None:
    """A group of 64 of which the row ends in the middle."""
    codes, scales = np.arange(ROWS * 96).reshape(ROWS, 96) % 16, torch.tensor([[0.5, 0.25]]).repeat(ROWS, 1)
    weights = {"num_bits": 4, "group_size": 64, "symmetric": True, "strategy": "group", "type": "int"}
    config = {"quantization_config": {"config_groups": {"group_0": {"weights": weights}}}}
    type_, values = in_gguf(packers.packed(codes, None, scales), config)
    assert type_ == "Q4_0"
    spread = scales.numpy().repeat(64, 1)[:, :96]
    np.testing.assert_array_equal(values, (codes - 8) * spread)


@pytest.mark.parametrize("order", ["same", "reversed", "two in turn"])
def test_neighbours_of_different_groups_have_no_type(order: str) -> None:
    """The order itself decides, whatever the config says of it."""
    codes, zeros = np.arange(ROWS * 64).reshape(ROWS, 64) % 16, np.full((ROWS, 2), 8)
    scales = torch.tensor([[0.5, 0.25]]).half().repeat(ROWS, 1)
    groups = {"same": torch.arange(64) // 32, "reversed": 1 - torch.arange(64) // 32, "two in turn": torch.arange(64) % 2}
    tensors = packers.gptq(codes, zeros, scales) | {"X.g_idx": groups[order].int()}
    type_, values = in_gguf(tensors, {"quantization_config": {"quant_method": "gptq", "bits": 4, "desc_act": True}})
    assert type_ == ("Q4_0" if order == "same" else "F32")
    np.testing.assert_array_equal(values, (codes - 8) * scales.float().numpy()[:, groups[order]])


@pytest.mark.parametrize(("byte", "type_"), [(0x7E, "NVFP4"), (0x7F, "F32"), (0x80, "NVFP4"), (0x81, "F32"), (0xFF, "F32")])
def test_scales_of_nvfp4_without_sign_and_nan(byte: int, type_: str) -> None:
    codes = np.arange(ROWS * 64).reshape(ROWS, 64) % 16
    scales = torch.full((ROWS, 4), 0x38, dtype=torch.uint8)
    scales[-1, -1] = byte
    tensors = {"X.weight": packers.nibbles(codes), "X.weight_scale": scales.view(torch.float8_e4m3fn)}
    with tempfile.TemporaryDirectory() as folder:
        path = packers.write(Path(folder), tensors | {"X.weight_scale_2": torch.tensor(0.25)})
        glft.convert(path, out := Path(folder, "out.gguf"), exact=True)
        found = {tensor.name: tensor for tensor in gguf.GGUFReader(out).tensors}
        assert found["X.weight"].tensor_type.name == type_
        assert found.keys() == ({"X.weight", "X.scale"} if type_ == "NVFP4" else {"X.weight"})
        values = gguf.quants.dequantize(found["X.weight"].data, found["X.weight"].tensor_type)
        factor = float(found["X.scale"].data[0]) if "X.scale" in found else 1
    expected = packers.FP4[codes] * scales.view(torch.float8_e4m3fn).float().repeat_interleave(16, 1) * 0.25
    np.testing.assert_array_equal(values * np.float32(factor), expected.numpy())
