"""Quantizing against a scalar loop, and at the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from glft_schema import SchemeError, TensorError
from glft_schema.errors import OptionError, QuantizationWarning
from glft_schema.lab import fake_quantize
from glft_schema.lab.quantizing import dequantize_symmetric, quantize_symmetric_per_channel, quantize_symmetric_per_group
from glft_schema.tensor_types import chunks
from glft_schema.tensor_types.symmetric import Q4_PER_GROUP_64, Q8_PER_CHANNEL
from tests.oracles import glft_reference as reference

F16_TINIEST = 2.0**-24

ordinary = st.floats(-100, 100, width=32)
small = st.floats(-(2**-10), 2**-10, width=32)  # scales in float16's subnormal range
weights = st.sampled_from([ordinary, small]).flatmap(
    lambda numbers: arrays("float32", st.tuples(st.integers(1, 4), st.sampled_from([4, 8, 12])), elements=numbers)
)


def assert_as_reference(w: np.ndarray, codes: torch.Tensor, scales: torch.Tensor, group: int, largest: int) -> None:
    expected = [reference.quantize(list(part), largest) for part in w.reshape(-1, group)]
    assert scales.flatten().tolist() == [scale for scale, _ in expected]
    assert codes.reshape(-1, group).tolist() == [codes for _, codes in expected]


@pytest.mark.filterwarnings("ignore::glft_schema.errors.QuantizationWarning")
@given(weights, st.sampled_from([1, 2, 4]))
def test_codes_and_scales_are_those_of_the_scalar_loop(w: np.ndarray, group: int) -> None:
    codes, scales = quantize_symmetric_per_channel(torch.tensor(w))
    assert (codes.shape, scales.shape) == (w.shape, w.shape[:1])
    assert_as_reference(w, codes, scales, w.shape[1], 127)
    codes, scales = quantize_symmetric_per_group(torch.tensor(w), group)
    assert (codes.shape, scales.shape) == (w.shape, (w.shape[0], w.shape[1] // group))
    assert_as_reference(w, codes, scales, group, 7)


def test_the_labs_toy_of_4_by_8_in_groups_of_4() -> None:
    w = torch.arange(32, dtype=torch.float32).reshape(4, 8) - 16
    codes, scales = quantize_symmetric_per_group(w, group_size=4)
    assert scales[0].tolist() == [np.float16(16 / 7), np.float16(12 / 7)]
    assert codes[0].tolist() == [-7, -7, -6, -6, -7, -6, -6, -5]
    assert torch.equal(dequantize_symmetric(codes, scales), fake_quantize(w, "q4_per_group_4"))


def test_all_zero_rows_have_scale_zero_and_no_warning() -> None:
    codes, scales = quantize_symmetric_per_channel(torch.zeros(2, 3))  # warnings are errors
    assert (codes.tolist(), scales.tolist()) == ([[0] * 3] * 2, [0, 0])
    assert dequantize_symmetric(codes, scales).tolist() == [[0] * 3] * 2


def test_subnormal_scales_are_used_as_stored() -> None:
    """The scale 1e-4 / 127 is rounded by 1.6 %. With the exact one, no code would be clamped."""
    w = torch.tensor([[1e-4, -1e-4, 5e-5, 0]])
    codes, scales = quantize_symmetric_per_channel(w)
    assert scales.item() == 13 * F16_TINIEST
    assert codes.tolist() == [[127, -128, 65, 0]]  # 129 before the clamp


def test_scale_that_underflows_gives_zeros_and_a_warning_with_the_name() -> None:
    w = torch.tensor([[1e-7, -1e-7, 0, 0], [1, 2, 3, 4]])
    with pytest.warns(QuantizationWarning, match="tensor 'fc1': 2 non-zero weights are stored as 0"):
        codes, scales = quantize_symmetric_per_group(w, 4, name="fc1")
    assert (codes[0].tolist(), scales[0].item()) == ([0, 0, 0, 0], 0)


@pytest.mark.parametrize("type_", [Q8_PER_CHANNEL, Q4_PER_GROUP_64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinities_are_refused_at_the_first_index(type_: object, bad: float) -> None:
    w = torch.ones(3, 2, 64)
    w[1, 1, 5] = bad
    w[2, 0, 0] = float("nan")
    with pytest.raises(TensorError, match=r"^tensor 'layers.0' at \[1, 1, 5\]: NaN and infinities cannot be quantized$"):
        type_.encode(w, "layers.0")


@pytest.mark.parametrize(("quantize", "largest"), [(quantize_symmetric_per_channel, 127), (quantize_symmetric_per_group, 7)])
def test_scale_that_overflows_float16(quantize: object, largest: int) -> None:
    edge = torch.full((2, 64), 65504.0 * largest)
    quantize(edge)
    edge[1, 3] = 65520.0 * largest
    with pytest.raises(TensorError, match=r"max\|w\| is too large for a float16 scale \(at most 65504\)") as caught:
        quantize(edge)
    assert caught.value.index == (1, 0)
    quantize(edge, scale_dtype=torch.float32)


BASE = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "given_",
    [
        BASE.t(),
        BASE[::2, ::2],
        BASE[:1].expand(8, 128),
        BASE.clone().requires_grad_(),
        BASE.double(),
        BASE.to(torch.bfloat16),
        BASE.view(64, 2, 64).transpose(1, 2),
    ],
    ids=["transposed", "strided", "expanded", "requires_grad", "float64", "bfloat16", "three dims"],
)
def test_layouts_and_dtypes_give_what_plain_float32_gives(given_: torch.Tensor) -> None:
    for quantize in (quantize_symmetric_per_channel, lambda w: quantize_symmetric_per_group(w, 64)):
        found, expected = quantize(given_), quantize(given_.detach().float().contiguous().clone())
        assert torch.equal(found.codes, expected.codes)
        assert torch.equal(found.scales, expected.scales)
        assert not found.codes.requires_grad


def test_chunks_give_what_one_chunk_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    w = torch.randn(37, 192)
    whole = fake_quantize(w), fake_quantize(w, "q8_per_channel")
    monkeypatch.setattr(chunks, "CHUNK", 1000)  # five rows each, and two in the last
    assert torch.equal(fake_quantize(w), whole[0])
    assert torch.equal(fake_quantize(w, "q8_per_channel"), whole[1])


def test_float32_scales_differ_from_stored_ones_by_less_than_a_step() -> None:
    w = torch.randn(16, 256)
    stored, unrounded = fake_quantize(w), fake_quantize(w, scale_dtype=torch.float32)
    step = w.abs().amax() / 7
    assert 0 < (stored - unrounded).abs().max() < 1.01 * step


@pytest.mark.parametrize(
    ("w", "group", "message"),
    [
        (torch.ones(4), 64, r"expected at least 2 dims and 1 weight, found torch.float32 \[4\]"),
        (torch.ones(2, 4, dtype=torch.int32), 64, r"expected a float dtype, found torch.int32"),
        (torch.ones(0, 4), 64, r"found torch.float32 \[0, 4\]"),
        (torch.ones(2, 66), 64, "expected a row length that is a multiple of 64, found 66"),
        (torch.ones(1, 64), 0, "expected a row length that is a multiple of 0, found 64"),
        (torch.ones(1, 64), -4, "expected a row length that is a multiple of -4, found 64"),
    ],
)
def test_tensors_that_cannot_be_quantized(w: torch.Tensor, group: int, message: str) -> None:
    with pytest.raises(TensorError, match=message):
        quantize_symmetric_per_group(w, group)


def test_fake_quantize_knows_the_schemes() -> None:
    w = torch.tensor([[1 / 3, 2.0]])
    assert torch.equal(fake_quantize(w, "f32"), w)
    assert torch.equal(fake_quantize(w, "f16"), w.half().float())
    codes = quantize_symmetric_per_group(w, group_size=1)
    assert torch.equal(fake_quantize(w, "q4_per_group_1"), dequantize_symmetric(*codes))


ONES, SCHEMES = torch.ones(1, 64), "expected one of f32, f16, .*, q4_per_group_N, found"


@pytest.mark.parametrize(
    ("w", "scheme", "options", "error", "problem"),
    [
        *((ONES, scheme, {}, SchemeError, f"{SCHEMES} '{scheme}'") for scheme in ("q5", "q4_per_group_", "q8_per_group_64")),
        (ONES, "q4_per_group_0", {}, SchemeError, f"{SCHEMES} 'q4_per_group_0'"),
        (ONES, None, {}, SchemeError, "expected the name of a scheme, found None"),
        (
            ONES,
            "q8_per_channel",
            {"scale_dtype": torch.float8_e4m3fn},
            OptionError,
            "expected a float scale_dtype of at least 16 bits, found torch.float8_e4m3fn",
        ),
        (torch.ones(3, dtype=torch.int64), "f32", {}, TensorError, "expected a float dtype, found int64"),
        (torch.tensor([[7e4]]), "f16", {}, TensorError, "a finite number is too large"),
    ],
)
def test_fake_quantize_refuses(w: torch.Tensor, scheme: Any, options: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        fake_quantize(w, scheme, **options)
