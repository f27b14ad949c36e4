"""Modules with packed weights as files."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import glft_schema as glft


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 256)
        self.layer = nn.Linear(256, 256)
        self.conv = nn.Conv2d(64, 8, 2)
        self.head = nn.Linear(256, 20, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Buffer(torch.ones(3))


@pytest.mark.parametrize(("name", "type_"), [("m.gguf", "q4_k"), ("m.gguf", "q8_0"), ("m.glft", "q4_per_group_64")])
def test_bytes_and_ties_stay(name: str, type_: str, tmp_path: Path) -> None:
    path, module = tmp_path / name, Tied()
    schemes = {"*": "f32", "embed.weight": type_, "head.weight": type_, "layer.weight": type_}
    if name.endswith(".glft"):  # in GGUF, rows are those of the last dim, of two columns
        schemes["conv.weight"] = type_
    glft.save_file(module.state_dict(), path, schemes=schemes)
    glft.load_into(module, path, packed=True)
    stored = glft.nn.stored_tensors(module)
    state = {f"{name}": tensor for name, tensor in module.state_dict().items()}  # as if renamed
    assert {tensor.file_tensor.type.scheme for tensor in stored.values() if tensor.file_tensor} == {type_}
    for given in (stored, state):
        glft.save_file(given, tmp_path / f"again-{name}")
        assert (tmp_path / f"again-{name}").read_bytes() == path.read_bytes()


def test_a_format_without_the_type_gets_the_weights(tmp_path: Path) -> None:
    module = nn.Sequential(glft.nn.Linear(64, 4, "Q8_0"))
    module[0].weight.copy_(torch.randint(0, 60, (4, 68), dtype=torch.uint8))
    glft.save_file(module.state_dict(), tmp_path / "m.safetensors")
    assert torch.equal(glft.load_file(tmp_path / "m.safetensors")["0.weight"], module[0].dequantize())


def test_schemes_win(tmp_path: Path) -> None:
    module = nn.ModuleDict({"experts": glft.nn.Experts((3, 64, 32), "Q8_0")})
    module["experts"].weight.copy_(torch.randint(0, 60, (3, 64 * 34), dtype=torch.uint8))
    expected = module["experts"].dequantize()
    glft.save_file(glft.nn.stored_tensors(module), tmp_path / "m.gguf", schemes={"*": "f32"})
    with glft.open(tmp_path / "m.gguf") as file:
        assert torch.equal(file.tensors["experts"].dequantize(), expected)


def test_values_that_are_not_in_memory() -> None:
    module = nn.Sequential(glft.nn.Linear(64, 64, "Q8_0", device="meta"))
    with pytest.raises(glft.TensorError, match=r"expected a dense tensor with values in memory, found a Tensor \(meta\)"):
        glft.nn.stored_tensors(module)


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_packed_weights_without_their_type_are_refused(ending: str, tmp_path: Path) -> None:
    """Copies, and files of others, have the bytes alone. A format with u8 stores them unchanged."""
    module, path, out = nn.Sequential(glft.nn.Linear(64, 4, "Q8_0")), tmp_path / f"m.{ending}", tmp_path / "m.gguf"
    module[0].weight.copy_(torch.randint(0, 60, (4, 68), dtype=torch.uint8))
    state = module.state_dict()
    torch.save(state, path) if ending == "pt" else safetensors.torch.save_file(state, path)
    copied, message = {"0.weight": state["0.weight"].clone()}, "tensor '0.weight': expected weights, found bytes"
    with pytest.raises(glft.TensorError, match=rf"^{message} \(uint8\).*: save module.state_dict\(\) itself"):
        glft.save_file(copied, out)
    with pytest.raises(glft.TensorError, match=message):
        glft.convert(path, out)
    assert not out.exists()
    glft.convert(path, tmp_path / "same.safetensors")
    assert torch.equal(glft.load_file(tmp_path / "same.safetensors")["0.weight"], state["0.weight"])
    glft.save_file(copied, out, schemes={"*": "i16"})
    assert torch.equal(glft.load_file(out)["0.weight"], state["0.weight"].short())
