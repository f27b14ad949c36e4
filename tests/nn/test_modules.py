"""Packed modules: what they compute, and how torch, peft and the compiler treat them."""

from __future__ import annotations

import copy
import io
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from glft_schema import FormatError, OptionError, save_file
from glft_schema import open as open_file
from glft_schema.formats.glft import GLFT
from glft_schema.nn import Conv2d, Embedding, Experts, Linear, operators
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.symmetric import Q4_PER_GROUP_64
from tests.tools.depth import some_by_default

QUANTIZED = [type_ for type_ in [*GGML_TYPES, *GLFT.types] if not type_.exact]


def random_weights(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def packed(type_: TensorType, weights: torch.Tensor, importance: torch.Tensor | None = None) -> torch.Tensor:
    """Returns the bytes of encoded weights."""
    return torch.from_numpy(type_.pack(type_.encode(weights, "w", importance=importance)))


def linear(type_: TensorType | str, rows: int = 40, columns: int = 512, bias: bool = False) -> Linear:
    """Returns a layer of random weights."""
    layer = Linear(columns, rows, type_, bias=bias)
    encoder = layer.weight_type
    importance = torch.ones(columns) if encoder.needs_importance else None
    layer.weight.copy_(packed(encoder, random_weights(rows, columns), importance))
    if bias:
        nn.init.normal_(layer.bias, generator=torch.Generator().manual_seed(1))
    return layer


@pytest.mark.parametrize("type_", [type_ for type_ in QUANTIZED if type_.has_encoder], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_linear(type_: TensorType, dtype: torch.dtype) -> None:
    """As torch's with the dequantized weights, also where rows are decoded in several parts."""
    layer = linear(type_, bias=True)
    x, grad = random_weights(3, 2, 512).to(dtype).requires_grad_(), random_weights(3, 2, 40).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "CHUNK", 7 * 512)
        found = layer(x)
        found = (found, *torch.autograd.grad(found, x, grad))
    weights = layer.dequantize(torch.float64)
    expected = (nn.functional.linear(x.double(), weights, layer.bias.double()), grad.double() @ weights)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}[dtype]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert float((one - other).detach().abs().max()) < tolerance * float(other.detach().abs().max())


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("mode", ["", "off"])
@pytest.mark.parametrize("name", ["q4_k", "q8_per_channel", "q4_per_group_64"])
@pytest.mark.parametrize("batch", some_by_default([1, 3, 40], 3))
def test_in_two_threads(batch: int, name: str, mode: str, monkeypatch: pytest.MonkeyPatch, two_threads: None) -> None:
    """Each decodes and multiplies its rows by the compiled library, or waits for operations."""
    monkeypatch.setenv("GLFT_LIBRARY", mode)
    monkeypatch.setattr(operators, "LEAST", 1 << 13)
    layer, x = linear(name, 301), random_weights(batch, 512)
    for dtype, error in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)):
        expected = x.to(dtype).double() @ layer.dequantize(dtype).double().T
        assert float((layer(x.to(dtype)) - expected).abs().max() / expected.abs().max()) < error


@pytest.mark.parametrize("type_", QUANTIZED, ids=str)
def test_packed_bytes_are_the_payload(type_: TensorType) -> None:
    """Each row of bytes decodes alone, for random payloads of every type."""
    rows, columns = 5, max(256, type_.least_row)
    stored = np.random.default_rng(0).integers(0, 256, (rows, type_.nbytes([rows, columns]) // rows), np.uint8)
    fields = type_.unpack(stored, columns)
    assert np.array_equal(type_.pack(fields), stored)
    whole = type_.decode(fields, columns)
    for row in (0, 3):
        part = type_.unpack(stored[row : row + 1], columns)
        np.testing.assert_array_equal(type_.decode(part, columns), whole[row : row + 1])
    if len(fields) == 1:
        assert b"".join(field.tobytes() for field in fields.values()) == stored.tobytes()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("type_", [GGML_TYPES["Q8_0"], GGML_TYPES["Q4_K"], GGML_TYPES["IQ4_XS"], Q4_PER_GROUP_64], ids=str)
def test_on_a_gpu(type_: TensorType, tmp_path: Path) -> None:
    """The same weights, and outputs and gradients as torch's there."""
    here = linear(type_, rows=4096, columns=2048)
    there = copy.deepcopy(here).cuda()
    assert torch.equal(there.dequantize(torch.float32).cpu(), here.dequantize(torch.float32))
    for rows, dtype, tolerance in ((1, torch.bfloat16, 2e-2), (300, torch.bfloat16, 2e-2), (300, torch.float32, 1e-3)):
        x = random_weights(rows, 2048).to(dtype).cuda().requires_grad_()
        found, expected = there(x), nn.functional.linear(x, there.dequantize(dtype))
        found, expected = ((made, *torch.autograd.grad(made.sum(), x)) for made in (found, expected))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * other.abs().max().item())
    save_file(there.state_dict(), path := tmp_path / f"m.{'glft' if type_ is Q4_PER_GROUP_64 else 'gguf'}")
    with open_file(path, device="cuda") as file:
        assert torch.equal(file.tensors["weight"].dequantize(), there.dequantize(torch.float32))


def test_embedding() -> None:
    layer, type_ = Embedding(30, 256, "q4_k", dtype=torch.float16), GGML_TYPES["Q4_K"]
    layer.weight.copy_(packed(type_, random_weights(30, 256)))
    index = torch.tensor([[1, 29, 1], [0, 7, 3]])
    assert torch.equal(layer(index), layer.dequantize()[index])
    assert layer(index).dtype == torch.float16
    assert layer.to(torch.float32)(index).dtype == torch.float32
    with pytest.raises(IndexError):
        layer(torch.tensor([30]))


def test_convolution() -> None:
    layer, type_ = Conv2d(64, 6, (2, 32), "q8_0", bias=True, stride=2, padding=1, groups=2), GGML_TYPES["Q8_0"]
    layer.weight.copy_(packed(type_, random_weights(6, 32, 2, 32)))
    x = random_weights(2, 64, 9, 40)
    expected = nn.functional.conv2d(x, layer.dequantize(), layer.bias, stride=2, padding=1, groups=2)
    assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("name", ["q4_k", "q8_per_channel"])
def test_experts(name: str) -> None:
    """An expert at a time, as a parameter of three dims gives them."""
    layer = Experts((3, 8, 256), name)
    layer.set_weights(random_weights(3, 8, 256))
    x, weights = random_weights(4, 256), layer.dequantize()
    assert (len(layer), layer.shape) == (3, (3, 8, 256))
    for expert in (0, 2, torch.tensor(1)):
        assert torch.equal(layer[expert], weights[expert])
        torch.testing.assert_close(layer(x, expert), nn.functional.linear(x, weights[expert]), rtol=1e-4, atol=1e-4)
    for several in (slice(0, 2), ..., torch.tensor([0, 1])):
        with pytest.raises(IndexError, match="expected the index of one expert"):
            layer[several]
    half = layer.to(torch.bfloat16)  # which does not change results in float32
    torch.testing.assert_close(half(x, 1), nn.functional.linear(x, weights[1]), rtol=1e-4, atol=1e-4)
    assert half[0].dtype == torch.bfloat16


def test_the_storage_of_weights_can_be_resized() -> None:
    """FSDP frees weights that it has gathered in this way; `Tensor.numpy` would forbid it."""
    layers: list[tuple[Any, torch.Tensor]] = [
        (Linear(64, 4, "q8_0"), torch.ones(2, 64)),
        (Embedding(4, 64, "q8_0"), torch.tensor([1, 2])),
        (Conv2d(1, 4, (1, 32), "q8_0"), torch.ones(1, 1, 2, 32)),
    ]
    for layer, given in layers:
        layer.set_weights(torch.randn(layer.weight_shape))
        layer(given)
        layer.dequantize()
        assert layer.weight.untyped_storage().resizable()


@pytest.mark.parametrize("kind", ["linear", "experts"])
def test_the_backward_pass_keeps_bytes(kind: str) -> None:
    """Of the weights, nothing but packed ones are saved."""
    layer = linear("q4_k", 64, 512) if kind == "linear" else Experts((1, 64, 512), "q4_k")
    layer.weight.fill_(1)
    arguments, saved = () if kind == "linear" else (0,), []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(random_weights(2, 512).requires_grad_(), *arguments)
    assert [(tensor.dtype, tensor.data_ptr()) for tensor in saved] == [(torch.uint8, layer.weight.data_ptr())]


def test_gradient_of_a_gradient() -> None:
    layer, x = linear("q8_0", 6, 64), random_weights(2, 64).double().requires_grad_()
    assert torch.autograd.gradgradcheck(layer, (x,))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # of torch's own formulas
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_forward_mode_derivatives(needs_gradient: bool) -> None:
    """Also through functions around the layer."""
    layer, dense = linear("q8_0", 24, 256, bias=True).double(), nn.Linear(256, 24).double()
    dense.weight.data, dense.bias.data = layer.dequantize(torch.float64), layer.bias.data
    x, tangent = random_weights(3, 256).double(), random_weights(3, 256).double()
    x.requires_grad_(needs_gradient)
    with forward_ad.dual_level():
        found, expected = (forward_ad.unpack_dual(module(forward_ad.make_dual(x, tangent))) for module in (layer, dense))
        torch.testing.assert_close(tuple(found), tuple(expected))
        assert forward_ad.unpack_dual(layer(x)).tangent is None
    found, expected = (torch.func.jvp(nn.Sequential(module, nn.Tanh()), (x,), (tangent,)) for module in (layer, dense))
    torch.testing.assert_close(found, expected)


def test_training_after_inference() -> None:
    """The memory that is kept was allocated in inference mode."""
    layer, x = linear("q4_k"), random_weights(2, 512)
    operators._KEPT.__dict__.clear()
    with torch.inference_mode():
        expected = layer(x)
    found = layer(x.requires_grad_())
    found.sum().backward()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", [(0, 512), (512,), (2, 0, 512)])
def test_shapes_of_inputs(shape: tuple[int, ...]) -> None:
    layer, x = linear("q4_k"), random_weights(*shape)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.dequantize()), rtol=1e-4, atol=1e-4)


def test_copies() -> None:
    layer, x, buffer = linear("q6_k", bias=True), random_weights(2, 512), io.BytesIO()
    expected, state = layer(x), layer.state_dict()
    assert {name: tensor.dtype for name, tensor in state.items()} == {"weight": torch.uint8, "bias": torch.float32}
    other = Linear(512, 40, "q6_k", bias=True, device="meta").to_empty(device="cpu")
    other.load_state_dict(state)
    torch.save(layer, buffer)
    buffer.seek(0)
    for made in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(buffer, weights_only=False)):
        assert isinstance(made, Linear)
        assert torch.equal(made(x), expected)
        assert made.weight.data_ptr() != layer.weight.data_ptr()
        assert not made.weight.requires_grad


def test_dtypes() -> None:
    layer = linear("q6_k", bias=True).to(torch.bfloat16)
    assert (layer.weight.dtype, layer.bias.dtype, layer.dtype) == (torch.uint8, torch.bfloat16, torch.bfloat16)
    assert layer(random_weights(2, 512).bfloat16()).dtype == torch.bfloat16
    assert "in_features=512, out_features=40" in repr(layer)
    assert "type=Q6_K" in repr(layer)


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("average", [{}, {"avg_fn": get_ema_avg_fn(0.9999)}, {"multi_avg_fn": get_ema_multi_avg_fn(0.9999)}])
def test_averages_of_models(average: dict[str, Any], use_buffers: bool) -> None:
    """Bytes have no average: packed weights are those of the model, other parameters averages."""
    model = nn.Sequential(linear("q8_0", bias=True), nn.BatchNorm1d(40))
    averaged = AveragedModel(model, use_buffers=use_buffers, **average)
    before = model[0].bias.detach().clone()
    for number in range(3):
        model[0].set_weights(random_weights(40, 512) + number)
        averaged.update_parameters(nn.Sequential(model))  # as of a model in DistributedDataParallel
        assert torch.equal(averaged.module[0].weight, model[0].weight)
        model[0].bias.detach().copy_(before + 1)
    change = averaged.module[0].bias.detach() - before
    torch.testing.assert_close(change, torch.full((40,), 1 - 0.9999**2 if average else 2 / 3), rtol=1e-2, atol=1e-6)
    assert "update_parameters" not in vars(AveragedModel(nn.Linear(2, 2)))


@pytest.mark.parametrize(("dtype", "computed"), [(torch.float32, torch.bfloat16), (torch.float64, torch.float64)])
def test_autocast(dtype: torch.dtype, computed: torch.dtype) -> None:
    layer, x = linear("q4_0"), random_weights(2, 512).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x)
    assert found.dtype == computed
    assert torch.equal(found, layer(x.to(computed)))


def test_compiled_as_one_graph() -> None:
    """Four types in one model, forward and backward, equal to eager."""
    model = nn.Sequential(*[linear(name, 512, 512, bias=True) for name in ("q4_k", "q6_k", "q8_0", "iq4_xs")])
    x = random_weights(3, 512).requires_grad_()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for given in (x, random_weights(5, 512).requires_grad_()):
        (expected,) = torch.autograd.grad(model(given).square().sum(), given)
        (found,) = torch.autograd.grad(compiled(given).square().sum(), given)
        torch.testing.assert_close(found, expected)


def test_layers_that_are_compiled_one_by_one() -> None:
    """Of more types and shapes than Dynamo compiles one piece of code for."""
    torch._dynamo.reset()
    names = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "mxfp4", "iq4_nl")
    for name, rows in zip(names, range(10, 22), strict=True):
        layer = linear(name, rows)
        compiled = torch.compile(layer, backend="eager", fullgraph=True)
        x = random_weights(2, 512)
        assert torch.equal(compiled(x), layer(x))


@pytest.mark.parametrize("name", ["linear", "linear_backward", "dequantize"])
def test_operators_by_torch(name: str) -> None:
    """torch's own checks of schema, fake kernel and gradient."""
    layer = linear("q5_k", 6, 256)
    arguments = {
        "linear": (random_weights(2, 256).requires_grad_(), layer.weight, "Q5_K", 6, 256),
        "linear_backward": (random_weights(2, 6), layer.weight, "Q5_K", 6, 256),
        "dequantize": (layer.weight, "Q5_K", 256, torch.bfloat16),
    }[name]
    torch.library.opcheck(getattr(torch.ops.glft_schema, name).default, arguments)


@pytest.mark.parametrize(
    ("columns", "type_", "problem"),
    [
        (256, "f16", "expected a quantized type, found F16"),
        (256, "q9", "expected a tensor type, found 'q9'"),
        (255, "q4_k", "multiple of 256"),
    ],
)
def test_what_cannot_be_packed(columns: int, type_: str, problem: str) -> None:
    with pytest.raises((OptionError, FormatError), match=problem):
        Linear(columns, 8, type_)


@pytest.mark.parametrize("x", [torch.ones(2, 256), torch.ones(2, 512, dtype=torch.uint8), torch.tensor(1.0)])
def test_what_cannot_be_multiplied(x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match=re.escape(f"expected floats in 512 columns, found {x.dtype} {list(x.shape)}")):
        linear("q8_0")(x)


def test_packed_weights_stay_bytes() -> None:
    with pytest.raises(TypeError, match="expected packed weights to stay uint8"):
        linear("q8_0").type(torch.float16)


class Scaled(Linear):
    def forward(self, input: torch.Tensor, factor: float = 2.0, *, shift: float = 0.5) -> torch.Tensor:
        return super().forward(input) * factor + shift


def test_a_class_of_the_user() -> None:
    layer, x = Scaled(256, 8, "q8_0"), random_weights(2, 256)
    layer.weight.fill_(1)
    assert torch.equal(layer(x), layer(x, 2.0, shift=0.5))
    copied = pickle.loads(pickle.dumps(layer))
    assert isinstance(copied, Scaled)
    assert torch.equal(copied(x), layer(x))


def test_several_threads_at_once() -> None:
    """Each has memory of its own."""
    layer, inputs = linear("q4_k", 300), [random_weights(number + 1, 512) for number in range(8)]
    expected = [layer(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            assert all(map(torch.equal, pool.map(layer, inputs), expected))


def test_lora_over_packed_weights() -> None:
    """peft finds the layers; the loss falls, and the bytes do not change."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    embedding = Embedding(30, 512, "q4_k")
    embedding.set_weights(random_weights(30, 512))
    model = nn.Sequential(embedding, linear("q6_k", 512, bias=True), nn.ReLU(), linear("q8_0", 64))
    layers = [model[i] for i in (0, 1, 3)]
    kept = [layer.weight.clone() for layer in layers]
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["0", "1", "3"]))
    trained = [parameter for parameter in tuned.parameters() if parameter.requires_grad]
    assert len(trained) == 6
    optimizer, target, losses = torch.optim.Adam(trained, 1e-2), torch.randn(8, 64), list[float]()
    for _ in range(20):
        optimizer.zero_grad()
        loss = (tuned(torch.arange(8)) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(map(torch.equal, (layer.weight for layer in layers), kept))


MEMORY = """
import resource, torch
from glft_schema.nn import Linear

def layer():
    made = Linear(4096, 4096, "q4_0")
    made.weight.fill_(1)
    return made

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

x = torch.ones(1, 4096, requires_grad=True)
layer()(x).sum().backward()
model = torch.nn.Sequential(*[layer() for _ in range(8)])
before = peak()
model(x).sum().backward()
print(peak() - before)
"""


@pytest.mark.linux("measures a process's memory in KiB")
def test_memory_of_a_pass() -> None:
    """Forward and backward need a buffer and activations, not the 64 MiB of a decoded layer."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 32 << 20


def test_gradients_are_the_same_each_time(two_threads: None) -> None:
    """In threads, sums of parts would depend on which is first."""
    layer = Linear(4096, 4096, "q4_0")
    layer.weight.copy_(torch.randint(0, 60, layer.weight.shape, dtype=torch.uint8))
    x = random_weights(2, 4096).requires_grad_()
    gradients = [torch.autograd.grad(layer(x).square().sum(), x)[0] for _ in range(4)]
    assert all(torch.equal(gradients[0], other) for other in gradients[1:])


@pytest.mark.parametrize("type_", ["Q4_K", "Q8_0"])
def test_changed_weights_are_packed_again(type_: str) -> None:
    layer = Linear(256, 4, type_)
    weights = torch.linspace(-1, 1, 1024).reshape(4, 256)
    memory = layer.weight.data_ptr()
    layer.set_weights(weights)
    assert torch.equal(layer.weight, packed(layer.weight_type, weights))
    assert (layer.dequantize("float64") - weights).abs().max() < 0.07
    assert (layer.dequantize("float64").dtype, layer.weight.data_ptr()) == (torch.float64, memory)
    with pytest.raises(OptionError, match=r"^expected weights of \[4, 256\], found \[256, 4\]$"):
        layer.set_weights(weights.T)
