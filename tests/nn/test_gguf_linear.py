"""A transformer of diffusers with packed layers instead of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema as glft

diffusers = pytest.importorskip("diffusers", reason="needs diffusers")
CONFIG: dict[str, Any] = {
    "patch_size": 1,
    "in_channels": 32,
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 64,
    "num_attention_heads": 4,
    "joint_attention_dim": 256,
    "pooled_projection_dim": 256,
    "axes_dims_rope": [16, 24, 24],
}


def inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "hidden_states": torch.randn(1, 12, 32, generator=generator),
        "encoder_hidden_states": torch.randn(1, 5, 256, generator=generator),
        "pooled_projections": torch.randn(1, 256, generator=generator),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(12, 3),
        "txt_ids": torch.zeros(5, 3),
    }


def loaded(folder: Path, type_: str, **schemes: str) -> tuple[Any, Any]:
    """Returns a tiny Flux with the weights of a GGUF file in float32, and as diffusers loads it."""
    torch.manual_seed(0)
    model = diffusers.FluxTransformer2DModel(**CONFIG).eval()
    model.save_config(folder)
    defaults = {"*": "f32", "*.weight": type_, "*norm*": "f32", "*_embedder*": "f32", "x_embedder*": "f32", "proj_out*": "f32"}
    schemes = defaults | schemes
    glft.save_file(model.state_dict(), folder / "m.gguf", {"general.architecture": "flux"}, schemes=schemes, rules=[])
    glft.load_into(model, folder / "m.gguf")
    config = diffusers.GGUFQuantizationConfig(compute_dtype=torch.float32)
    packed = diffusers.FluxTransformer2DModel.from_single_file(
        folder / "m.gguf", quantization_config=config, config=str(folder), torch_dtype=torch.float32
    )
    return model, packed.eval()


@pytest.mark.parametrize("type_", ["q4_k", "q6_k", "q8_0", "q4_0"])
def test_closer_to_the_exact_weights(type_: str, tmp_path: Path) -> None:
    """diffusers computes weights in float16: an error of 1e-5 to 6e-5."""
    exact, model = loaded(tmp_path, type_)
    layers = [layer for layer in model.modules() if type(layer).__name__ == "GGUFLinear"]
    with torch.no_grad():
        expected, before = exact(**inputs())[0], model(**inputs())[0]
        assert glft.diffusers.replace_gguf_linear(model) == len(layers) == 17
        after = model(**inputs())[0]
    theirs, ours = (float((found - expected).abs().max() / expected.abs().max()) for found in (before, after))
    assert ours < 1e-6 < theirs


def test_layers_of_float_types_stay(tmp_path: Path) -> None:
    """As in files that have BF16 among quantized types."""
    model = loaded(tmp_path, "q8_0", **{"*.to_k.weight": "bf16"})[1]
    kept = [name for name, layer in model.named_modules() if name.endswith(".to_k")]
    with torch.no_grad():
        before = model(**inputs())[0]
        assert glft.diffusers.replace_gguf_linear(model) == 17 - len(kept)
        after = model(**inputs())[0]
    assert kept
    assert {type(model.get_submodule(name)).__name__ for name in kept} == {"GGUFLinear"}
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-4)


def test_keeps_the_bytes(tmp_path: Path) -> None:
    model = loaded(tmp_path, "q4_k")[1]
    weight = model.transformer_blocks[0].attn.to_q.weight.as_tensor().clone()
    glft.diffusers.replace_gguf_linear(model)
    layer = model.transformer_blocks[0].attn.to_q
    assert isinstance(layer, glft.nn.Linear)
    assert (layer.type_name, layer.weight_shape, layer.dtype, layer.training) == ("Q4_K", (256, 256), torch.float32, False)
    assert torch.equal(layer.weight, weight)
    assert type(layer.weight) is torch.nn.Parameter
    assert glft.diffusers.replace_gguf_linear(model) == 0
