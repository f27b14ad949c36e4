"""Products with packed weights: by the library or torch, in any mode and number of threads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from glft_schema.nn import Experts, Linear, operators
from glft_schema.nn.operators import packed_linear
from tests.nn.test_modules import QUANTIZED, linear, random_weights
from tests.tools.depth import some_by_default

ROUNDING = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float64: 1e-13}
OPERATOR = torch.ops.glft_schema.linear


def assert_product(found: torch.Tensor, x: torch.Tensor, weights: torch.Tensor) -> None:
    """Within the rounding of a sum in x's dtype, computed from the sum of absolute products."""
    x, weights = x.detach().double(), weights.detach().double()
    assert found.shape == (*x.shape[:-1], len(weights))
    error, size = (found.detach().double() - x @ weights.T).abs(), x.abs() @ weights.abs().T
    assert bool((error <= ROUNDING[found.dtype] * size + 1e-30).all())


@pytest.mark.parametrize("type_", [type_ for type_ in QUANTIZED if type_.has_encoder], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_products_of_every_type(type_: Any, dtype: torch.dtype) -> None:
    """Up to 16 rows by the library, and one more by torch."""
    layer = linear(type_, 37, 512)
    for batch in (1, 2, 16, 17):
        x = random_weights(batch, 512).to(dtype)
        with torch.no_grad():
            found = layer(x)
        assert found.dtype == dtype
        assert_product(found, x, layer.dequantize(dtype if batch == 17 else torch.float32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_few_rows_in_half_precision_are_multiplied_in_float32(dtype: torch.dtype) -> None:
    layer, x = linear("q4_k", bias=True), random_weights(3, 512).to(dtype)
    expected = packed_linear(x.float(), layer.weight, "Q4_K", 40, 512).to(dtype) + layer.bias.to(dtype)
    assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("name", ["q4_0", "q6_k", "q8_per_channel", "q4_per_group_64"])
@pytest.mark.parametrize("mode", ["", "off"])
def test_any_strides_of_the_input(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLFT_LIBRARY", mode)
    layer, x = linear(name), random_weights(2, 3, 512)
    given = {
        "vector": x[0, 0],
        "leading dims": x[:, None],
        "no rows": x[:0],
        "transposed": x.transpose(0, 1),
        "columns with a step": random_weights(4, 1024)[:, ::2],
        "one row several times": x[0, :1].expand(5, 512),
        "at an odd address": random_weights(2 * 512 + 1)[1:].view(2, 512),
    }
    for values in given.values():
        with torch.no_grad():
            found = layer(values)
        assert found.is_contiguous()
        assert_product(found, values, layer.dequantize())


def test_any_strides_of_the_weights() -> None:
    layer, x = linear("q5_0"), random_weights(2, 512)
    other = layer.weight.data.t().contiguous().t()
    assert torch.equal(packed_linear(x, layer.weight.data, "Q5_0", 40, 512), layer(x))
    assert_product(packed_linear(x, other, "Q5_0", 40, 512), x, layer.dequantize())
    assert_product(packed_linear(x, layer.weight[::3], "Q5_0", 14, 512), x, layer.dequantize()[::3])


@pytest.mark.parametrize("name", ["q4_0", "q4_k", "iq4_xs", "q8_per_channel", "q4_per_group_64"])
@pytest.mark.parametrize("batch", [1, 16])
def test_rows_of_experts(name: str, batch: int) -> None:
    """Of types of rows, an expert is one row, so its rows are not packed rows."""
    layer = Experts((3, 7, 256), name)
    layer.set_weights(random_weights(3, 7, 256))
    x = random_weights(batch, 256)
    for expert in range(3):
        assert_product(layer(x, expert), x, layer.dequantize()[expert])


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", some_by_default(["q4_k", "q8_0", "iq3_s", "q4_per_group_64", "q8_per_channel"], 3))
def test_any_number_of_threads(name: str, threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, with parts of some rows, the last one shorter."""
    monkeypatch.setattr(operators, "LEAST", 1 << 13)
    layer = linear(name, 301, 512)
    for batch in (1, 5, 16):
        x, found = random_weights(batch, 512), []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found += [layer(x), layer(x)]
        assert all(torch.equal(found[0], other) for other in found)
        assert_product(found[0], x, layer.dequantize())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_the_operator_computes_the_same_bits(mode: Any) -> None:
    layer, x = linear("q6_k"), random_weights(2, 512)
    arguments = (layer.weight, "Q6_K", 40, 512)
    with mode():
        found, expected = packed_linear(x, *arguments), OPERATOR(x, *arguments)
        assert torch.equal(found, expected)
        assert found.is_inference() == expected.is_inference() == torch.is_inference_mode_enabled()
        needs = packed_linear(x.clone().requires_grad_(), *arguments)
    assert torch.equal(needs, expected)
    assert needs.requires_grad == (mode is torch.enable_grad)


def test_inference_tensors_outside_of_their_mode() -> None:
    layer = linear("q6_k")
    with torch.inference_mode():
        x = random_weights(2, 512)
    assert torch.equal(layer(x), layer(x.clone()))


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators of this package."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += [str(function)] * str(function).startswith("glft")
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Notes the operators of this package that Python calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += [str(function)] * str(function).startswith("glft")
        return function(*args, **(kwargs or {}))


class Named(torch.Tensor):
    """A subclass whose results are of the same class, as torch's default."""


@pytest.mark.parametrize("mode", [Operators, Functions])
def test_modes_see_the_operator(mode: Any) -> None:
    layer, x = linear("q6_k"), random_weights(2, 512)
    with torch.no_grad(), mode() as active:
        found = layer(x)
    assert len(active.seen) == 1
    assert active.seen[0].startswith("glft_schema.linear")
    assert torch.equal(found, layer(x))


def test_tensors_that_need_the_operator() -> None:
    """Of other classes, negated, on no device, and traced ones."""
    layer, x = linear("q6_k"), random_weights(2, 512)
    expected, arguments = layer(x), (layer.weight, "Q6_K", 40, 512)
    found = packed_linear(x.as_subclass(Named), *arguments)
    assert type(found) is Named
    assert torch.equal(found.as_subclass(torch.Tensor), expected)
    weights = layer.weight.detach().as_subclass(Named)
    assert type(packed_linear(x, weights, *arguments[1:])) is Named
    assert torch.equal(layer(nn.Parameter(x)), expected)
    assert torch.equal(layer(torch._neg_view(-x)), expected)
    assert layer(torch.empty(2, 512, device="meta")).shape == (2, 40)
    for traced in (make_fx(layer)(x), torch.fx.symbolic_trace(nn.Sequential(layer)), torch.export.export(layer, (x,)).module()):
        assert "glft_schema" in str(traced.code)
        assert torch.equal(traced(-x), -expected)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # of torch's own formulas
def test_transforms_of_functions() -> None:
    """Derivatives are right. What torch has no rule for is refused."""
    layer, x, tangent = linear("q6_k"), random_weights(2, 512), random_weights(3, 512)[:2]
    weights = layer.dequantize()
    results: Any = torch.func.jvp(layer, (x,), (tangent,))
    value, derivative = results
    assert_product(value, x, weights)
    assert_product(derivative, tangent, weights)
    for transformed in (torch.func.grad(lambda x: layer(x).sum()), torch.func.jacrev(layer)):
        with pytest.raises(RuntimeError):
            transformed(x)
    mapped = torch.func.vmap(layer)(x)
    assert_product(mapped, x, weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast(dtype: torch.dtype) -> None:
    layer, x = linear("q4_0"), random_weights(2, 512).to(dtype)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = layer(x)
        with torch.autocast("cpu", enabled=False):
            assert torch.equal(layer(x), Linear.forward(layer, x))
    assert torch.equal(found, layer(x.to(torch.float64 if dtype == torch.float64 else torch.bfloat16)))


def test_compiled_for_inference() -> None:
    layer = linear("q6_k", bias=True)
    with torch.no_grad():
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        for batch in (1, 3, 20):
            x = random_weights(batch, 512)
            assert torch.equal(compiled(x), layer(x))


def test_weights_that_are_not_finite() -> None:
    """NaN and infinities reach the outputs of their rows."""
    layer = Linear(64, 4, "q8_0")
    scales = np.array([1, np.nan, np.inf, -np.inf], np.float16)
    blocks = np.ones((4, 2, 34), np.uint8)
    blocks[:, 0, :2] = scales.view(np.uint8).reshape(4, 2)
    layer.weight.copy_(torch.from_numpy(blocks.reshape(4, 68)))
    for batch, library in itertools.product((1, 17), ("", "off")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GLFT_LIBRARY", library)
            found = layer(torch.ones(batch, 64))
        assert found[0].isfinite().tolist() == [True, False, False, False]
        assert found[-1, 1].isnan()
        assert found[-1, 2:].tolist() == [np.inf, -np.inf]
