"""GGUF models as packed models of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import glft_schema as glft
from glft_schema import nn
from glft_schema.models.loading import load_model
from tests.families.tiny_folders import CONFIGS, make_folder

TOKENS = torch.tensor([[1, 45, 120, 77, 200, 12, 99, 33, 250, 7, 8, 9]])


def quantized(parent: Path, name: str, type_: str = "Q8_0") -> Path:
    """Writes the folder of a family, and its GGUF file with matrices of a file type."""
    out = parent / f"{name}.gguf"
    glft.quantize(make_folder(parent, name), out, type_)
    return out


@pytest.mark.parametrize("name", CONFIGS)
def test_computes_what_the_dequantized_model_computes(name: str, tmp_path: Path) -> None:
    path = quantized(tmp_path, name)
    packed, _ = glft.transformers.load(path)
    with glft.open(path) as file:
        stored = sum(tensor.nbytes for tensor in file.tensors.values() if tensor.dtype.exact is None)
    layers = {id(layer.weight): layer.weight.nbytes for layer in packed.modules() if isinstance(layer, nn.Packed)}
    assert sum(layers.values()) == stored > 0
    with torch.no_grad():
        torch.testing.assert_close(packed(TOKENS)[0], load_model(path)(TOKENS)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_saved_as_it_was_loaded(name: str, tmp_path: Path) -> None:
    path = quantized(tmp_path, name)
    packed, _ = glft.transformers.load(path)
    glft.transformers.save(packed, tmp_path / "out.gguf", like=path)
    assert (tmp_path / "out.gguf").read_bytes() == path.read_bytes()
