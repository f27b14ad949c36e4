"""`from_pretrained` and `save_pretrained` of diffusers with packed layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema as glft
from tests.nn.test_gguf_linear import CONFIG, inputs

diffusers = pytest.importorskip("diffusers", reason="needs diffusers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Flux that is not packed."""
    torch.manual_seed(0)
    diffusers.FluxTransformer2DModel(**CONFIG).save_pretrained(tmp_path / "plain")
    return tmp_path / "plain"


def load(folder: Path, types: Any = None, dtype: torch.dtype | None = None) -> Any:
    config = glft.diffusers.GlftConfig(types) if types else None
    return diffusers.FluxTransformer2DModel.from_pretrained(folder, quantization_config=config, torch_dtype=dtype)


def packed(model: torch.nn.Module) -> dict[str, glft.nn.Packed]:
    return {f"{path}.weight": layer for path, layer in model.named_modules() if isinstance(layer, glft.nn.Packed)}


def assert_equal(model: torch.nn.Module, other: torch.nn.Module) -> None:
    """Weights and names; results depend on the alignment of weights in memory, too."""
    values, expected = model.state_dict(), other.state_dict()
    assert values.keys() == expected.keys()
    assert all(torch.equal(values[name], value) for name, value in expected.items())


def reloaded(model: Any, folder: Path, dtype: torch.dtype | None = None) -> Any:
    """Saves a packed model. Returns it as loaded again, with the same layers and weights."""
    model.save_pretrained(folder)
    again = load(folder, dtype=dtype)
    assert packed(again).keys() == packed(model).keys() != set()
    assert_equal(again, model)
    return again


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("types", ["q4_k", {"*transformer_blocks.*.weight": "q8_0", "*.proj_mlp.weight": "q6_k"}])
def test_packs_layers_and_saves_them(types: Any, dtype: torch.dtype | None, folder: Path) -> None:
    plain, model = load(folder, dtype=dtype), load(folder, types, dtype)
    for name, layer in packed(model).items():
        assert torch.equal(layer.weight, layer.encode(plain.get_parameter(name).detach()))
    assert len(packed(model)) == (28 if types == "q4_k" else 20)
    assert model.dtype == (dtype or torch.float32)
    again = reloaded(model, folder.parent / "saved", dtype)
    config = json.loads((folder.parent / "saved" / "config.json").read_text())["quantization_config"]
    assert config == {
        "quant_method": "glft",
        "types": {name: layer.weight_type.scheme for name, layer in packed(model).items()},
    }
    values = {name: value.to(dtype) for name, value in inputs().items()}
    with torch.no_grad():
        torch.testing.assert_close(again(**values)[0], model(**values)[0])


def test_a_model_packed_by_load_into(folder: Path) -> None:
    model = load(folder)
    glft.save_file(model.state_dict(), folder / "m.gguf", schemes={"*_blocks.*.weight": "q4_k"}, rules=[])
    glft.load_into(model, folder / "m.gguf", packed=True)
    reloaded(model, folder.parent / "saved")


def test_a_part_of_a_pipeline(tmp_path: Path) -> None:
    options = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    unet = diffusers.UNet2DModel(8, 4, 4, block_out_channels=(32, 64), norm_num_groups=8, **options)
    diffusers.DDPMPipeline(unet, diffusers.DDPMScheduler()).save_pretrained(tmp_path / "plain")
    config = diffusers.PipelineQuantizationConfig(quant_mapping={"unet": glft.diffusers.GlftConfig("q8_0")})
    pipeline = diffusers.DDPMPipeline.from_pretrained(tmp_path / "plain", quantization_config=config)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(tmp_path / "saved")
    again = diffusers.DDPMPipeline.from_pretrained(tmp_path / "saved")
    assert packed(again.unet).keys() == packed(pipeline.unet).keys() != set()
    images = [
        each(num_inference_steps=2, generator=torch.Generator().manual_seed(1), output_type="np").images
        for each in (pipeline, again)
    ]
    assert_equal(again.unet, pipeline.unet)
    assert abs(images[0] - images[1]).max() < 1e-5
