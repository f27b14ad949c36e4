"""`load_into`: files into modules, dense and packed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import glft_schema as glft
from glft_schema import OptionError
from glft_schema import nn as packed_nn
from glft_schema.nn import load_into as loading
from tests.oracles import gguf_reference


class Net(nn.Module):
    """Tied embeddings, layers with and without bias, a norm and a buffer."""

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 256, device=device)
        self.up = nn.Linear(256, 64, device=device)
        self.down = nn.Linear(64, 256, bias=False, device=device)
        self.norm = nn.LayerNorm(256, device=device)
        self.head = nn.Linear(256, 20, bias=False, device=device)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(1, device=device))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.embed(index)
        return self.head(self.norm(x + self.down(self.up(x).relu()))) * self.scale


INDEX = torch.tensor([[1, 2, 19]])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    state = {name: tensor for name, tensor in Net().state_dict().items() if name != "head.weight"} | {
        "scale": torch.tensor([2.0])
    }
    schemes = {"embed.weight": "q4_k", "up.weight": "q6_k", "down.weight": "q8_0", "*": "f32"}
    glft.save_file(state, tmp_path / "net.gguf", schemes=schemes)
    return tmp_path / "net.gguf"


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("packed", [False, True])
def test_load_into(path: Path, device: str, packed: bool) -> None:
    net = Net(device)
    memory = net.norm.weight.data_ptr() if device == "cpu" else 0
    assert glft.load_into(net, path, packed=packed) == ([], [])
    state, values = net.state_dict(), glft.load_file(path)
    assert net.head.weight is net.embed.weight
    assert device == "meta" or net.norm.weight.data_ptr() == memory
    if packed:
        kinds = [type(module).__mro__[1] for module in (net.embed, net.up, net.down, net.head)]
        assert kinds == [packed_nn.Embedding, packed_nn.Linear, packed_nn.Linear, packed_nn.Linear]
        sizes = {name: tensor.nbytes for name, tensor in state.items() if tensor.dtype == torch.uint8}
        stored = {"embed.weight": 20 * 144, "up.weight": 64 * 210, "down.weight": 256 * 68, "head.weight": 20 * 144}
        assert sizes == stored
    else:
        assert all(torch.equal(state[name], values[name]) for name in values)
    dense = Net()
    glft.load_into(dense, path)
    torch.testing.assert_close(net(INDEX), dense(INDEX))


def test_again_into_a_packed_module(path: Path) -> None:
    net = Net()
    glft.load_into(net, path, packed=True)
    expected = net(INDEX)
    net.up.weight.zero_()
    glft.load_into(net, path, packed=True)
    assert torch.equal(net(INDEX), expected)


def test_packed_modules_are_not_unpacked(path: Path) -> None:
    net = Net()
    glft.load_into(net, path, packed=True)
    expected = "embed.weight, up.weight, down.weight: packed already, so load with packed=True, or into a new module$"
    with pytest.raises(OptionError, match=expected):
        glft.load_into(net, path)


def test_other_dtypes_and_names(path: Path) -> None:
    net = Net().to(torch.bfloat16)
    glft.load_into(net, path, packed=True, names=lambda name: name)
    assert net(INDEX).dtype == torch.bfloat16
    assert {p.dtype for p in net.parameters()} == {torch.uint8, torch.bfloat16}
    missing, left_over = glft.load_into(net, path, packed=True, names={"scale": None, "norm.bias": "other"}, strict=False)
    assert (missing, left_over) == (["scale", "norm.bias"], ["other"])


def test_names_that_a_mapping_does_not_have_stay_the_same(path: Path) -> None:
    net = Net()
    net.renamed = net.norm
    del net.norm
    glft.load_into(net, path, names={"norm.weight": "renamed.weight", "norm.bias": "renamed.bias"})
    state = net.state_dict()
    assert all(torch.equal(state[name.replace("norm.", "renamed.")], value) for name, value in glft.load_file(path).items())
    with pytest.raises(OptionError, match=r"the module lacks norm\.bias"):
        glft.load_into(net, path, names={"norm.weight": "renamed.weight"})


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ({"norm.weight": 3}, "expected the new name of a tensor as text or None, found 3"),
        (5, "expected names as a mapping or a function, found 5"),
        (["norm.weight"], "expected names as a mapping or a function, found ['norm.weight']"),
    ],
)
def test_names_of_another_kind(names: Any, problem: str, path: Path) -> None:
    with pytest.raises(OptionError, match=f"^{re.escape(problem)}$"):
        glft.load_into(Net(), path, names=names)


def test_names_of_a_mapping_that_the_file_lacks(path: Path) -> None:
    """They would be ignored: the tensor keeps its name, which may fit by chance."""
    names = {"norm.wieght": "norm.weight", "other": None}
    with pytest.raises(OptionError) as caught:
        glft.load_into(Net(), path, names=names)
    lacks = "names has norm.wieght, other, which the file lacks; did you mean 'norm.weight'?"
    assert str(caught.value) == f"{path}: {lacks}"
    glft.load_into(Net(), path, names=names, strict=False)


@pytest.mark.parametrize("packed", [False, True])
def test_what_does_not_fit(path: Path, packed: bool) -> None:
    """One error with all names; the module is unchanged."""
    net = Net()
    net.up = nn.Linear(256, 65)
    net.extra = nn.Linear(2, 2)
    del net.scale
    kept = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    expected = (
        "the file lacks extra.weight, extra.bias; the module lacks scale; "
        r"up.weight: expected \[65, 256\], found \[64, 256\]; up.bias: expected \[65\], found \[64\]"
    )
    with pytest.raises(OptionError, match=expected):
        glft.load_into(net, path, packed=packed)
    assert kept.keys() == net.state_dict().keys()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in net.state_dict().items())
    assert type(net.down) is nn.Linear


@pytest.mark.parametrize(
    ("buffer", "problem"),
    [
        (torch.zeros(1, 64).expand(4, 64), "b: elements share memory: replace the tensor by its clone()"),
        (torch.zeros(4, 64).to_sparse(), "b: expected a dense tensor with values in memory, found a Tensor (torch.sparse_coo)"),
        (nn.UninitializedBuffer(), "b: the module is lazy: call it once before"),
        (torch.zeros(4, 64).half(), "tensor 'b' at [1, 2]: a finite number is too large for float16"),
        (torch.zeros(4, 64, device="meta").half(), "tensor 'b' at [1, 2]: a finite number is too large for float16"),
    ],
)
def test_memory_that_cannot_hold_the_values(buffer: torch.Tensor, problem: str, tmp_path: Path) -> None:
    """The module is unchanged, also where other tensors fit."""
    values = torch.randn(4, 64)
    values[1, 2] = 1e6
    glft.save_file({"a": values, "b": values}, tmp_path / "b.safetensors")
    net = nn.Module()
    net.register_buffer("a", torch.zeros(4, 64))
    net.register_buffer("b", buffer)
    with pytest.raises(OptionError) as caught:
        glft.load_into(net, tmp_path / "b.safetensors")
    assert str(caught.value) == f"{tmp_path / 'b.safetensors'}: {problem}"
    assert not net.a.any()


def test_infinities_and_large_numbers_that_float16_holds(tmp_path: Path) -> None:
    values = torch.tensor([65504.0, float("inf"), -float("inf"), float("nan"), 1e-9])
    glft.save_file({"weight": values}, tmp_path / "b.safetensors")
    net = nn.Module()
    net.register_buffer("weight", torch.zeros(5).half())
    glft.load_into(net, tmp_path / "b.safetensors")
    assert torch.equal(net.weight.nan_to_num(7, 8, 9), values.half().nan_to_num(7, 8, 9))


@pytest.mark.parametrize("is_contiguous", [True, False])
def test_tensors_of_inference_mode(is_contiguous: bool, tmp_path: Path) -> None:
    values = torch.randn(4, 64)
    glft.save_file({"b": values}, tmp_path / "b.safetensors")
    net = nn.Module()
    with torch.inference_mode():
        net.register_buffer("b", torch.zeros(4, 64) if is_contiguous else torch.zeros(64, 4).T)
    kept = net.b
    glft.load_into(net, tmp_path / "b.safetensors")
    assert net.b is kept
    assert torch.equal(net.b, values)


def test_values_that_a_buffer_of_integers_cannot_have(path: Path) -> None:
    net = Net()
    net.scale = torch.ones(1, dtype=torch.int64)
    with pytest.raises(OptionError, match=r"scale: expected torch.int64, found F32"):
        glft.load_into(net, path)


def test_two_tensors_for_one_name(path: Path) -> None:
    with pytest.raises(OptionError, match=r"norm.bias: several tensors of the file"):
        glft.load_into(Net(), path, names={"norm.bias": "norm.bias", "norm.weight": "norm.bias"}, strict=False)


def test_tied_tensors_that_differ(path: Path, tmp_path: Path) -> None:
    state = glft.load_file(path)
    glft.save_file({**state, "head.weight": state["embed.weight"] + 1}, tmp_path / "untied.gguf", schemes={"*": "f32"})
    with pytest.raises(OptionError, match=r"head.weight: expected the values of embed.weight, with which it is tied"):
        glft.load_into(Net(), tmp_path / "untied.gguf")
    glft.save_file({**state, "head.weight": state["embed.weight"].clone()}, tmp_path / "equal.gguf", schemes={"*": "f32"})
    assert glft.load_into(Net(), tmp_path / "equal.gguf") == ([], [])


def test_types_without_a_formula(tmp_path: Path) -> None:
    """The number of the type is 99: no reader knows it."""
    stored = gguf_reference.File(infos=[gguf_reference.Info(b"weight", [64, 2], 99, bytes(256))]).bytes()
    (tmp_path / "unknown.gguf").write_bytes(stored)
    net = nn.Linear(64, 2, bias=False)
    before = net.weight.detach().clone()
    with pytest.raises(OptionError, match=r"weight: .*99"):
        glft.load_into(net, tmp_path / "unknown.gguf", packed=True)
    assert torch.equal(net.weight, before)


@pytest.mark.linux("limits a process's memory beyond what it has")
@pytest.mark.long
def test_a_device_without_memory(tmp_path: Path) -> None:
    """The process may take 150 MB more; the second layer needs 256 MiB."""
    code = """
import resource, sys
import torch
from torch import nn
import glft_schema as glft

glft.load_into(nn.Linear(64, 64, False, "meta"), sys.argv[2])
net = nn.Sequential(nn.Linear(64, 64, False, "meta"), nn.Linear(4096, 16384, False, "meta"))
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 150_000_000, size + 150_000_000))
try:
    glft.load_into(net, sys.argv[1])
except glft.OptionError as error:
    print(error, {str(parameter.device) for parameter in net.parameters()})
glft.load_into(net, sys.argv[1], packed=True)
print(net[1].type_name)
"""
    weights = {"0.weight": torch.ones(64, 64), "1.weight": torch.ones(16384, 4096)}
    big, small = tmp_path / "big.gguf", tmp_path / "small.gguf"
    glft.save_file(weights, big, schemes={"*": "q8_0"})
    glft.save_file({"weight": torch.ones(64, 64)}, small, schemes={"*": "q8_0"})
    done = subprocess.run([sys.executable, "-c", code, big, small], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{big}: 1.weight: cpu lacks the memory for this tensor {{'meta'}}\nQ8_0\n"


@pytest.mark.parametrize(
    ("problem", "kind", "text"),
    [
        ("[enforce fail] can't allocate memory: 9 bytes", OptionError, r": cpu lacks the memory for this tensor$"),
        ("something else", RuntimeError, "^something else$"),
    ],
)
def test_only_a_lack_of_memory_names_the_tensor(
    problem: str, kind: type[Exception], text: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(tensor: object, dtype: object) -> torch.Tensor:
        raise RuntimeError(problem)

    monkeypatch.setattr(loading, "_values", fails)
    with pytest.raises(kind, match=text):
        glft.load_into(Net("meta"), path)


def test_hooks_shared_layers_and_devices(path: Path) -> None:
    """A replaced layer keeps its hooks. One that is used twice is replaced by one layer."""
    net, calls = Net("meta"), []
    net.up.register_forward_hook(lambda *given: calls.append(1))
    net.again = net.down
    with torch.inference_mode():
        glft.load_into(net, path, packed=True, strict=False)
    net.to("cpu")(INDEX).sum().backward()
    assert calls == [1]
    assert net.again is net.down
    assert isinstance(net.down, packed_nn.Linear)


def test_layers_whose_weights_others_read(tmp_path: Path) -> None:
    """torch's fast path of a transformer reads them."""
    layer = nn.TransformerEncoderLayer(64, 4, 64, batch_first=True).eval()
    glft.save_file(layer.state_dict(), tmp_path / "t.gguf", schemes={"*": "f32", "linear*.weight": "q8_0"})
    glft.load_into(layer, tmp_path / "t.gguf", packed=True)
    with torch.no_grad():
        assert layer(torch.randn(1, 3, 64)).isfinite().all()
