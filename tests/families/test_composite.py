"""Checkpoints of codes and scales are refused by name; plain weights are not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch

import glft_schema as glft
from glft_schema import FormatError
from tests.families.tiny_folders import make_folder
from tests.tools.command_line import in_this_process

F8, I32, U8 = torch.float8_e4m3fn, torch.int32, torch.uint8
SCALE = torch.ones(2)
ADVICE = "save the model unquantized with the library that wrote it"
COPY = re.escape(", or copy the tensors as stored: as_stored (--as-stored)")
TENSORS = {  # the tensors of a Linear by their names in each scheme
    "GPTQ": {
        "qweight": torch.ones(4, 8, dtype=I32),
        "qzeros": torch.ones(1, 1, dtype=I32),
        "scales": SCALE,
        "g_idx": torch.ones(32, dtype=I32),
    },
    "GPTQ or AWQ": {"qweight": torch.ones(32, 1, dtype=I32), "qzeros": torch.ones(1, 1, dtype=I32), "scales": SCALE},
    "GPTQ or AWQ without zeros": {"qweight": torch.ones(32, 1, dtype=torch.int16), "scales": SCALE},
    "FP8 in blocks": {"weight": torch.ones(4, 8).to(F8), "weight_scale_inv": SCALE},
    "FP8 of ComfyUI": {"weight": torch.ones(4, 8).to(F8), "scale_weight": SCALE},
    "NVFP4 of compressed-tensors": {
        "weight_packed": torch.ones(4, 8, dtype=U8),
        "weight_scale": SCALE.to(F8),
        "weight_global_scale": SCALE,
    },
    "compressed-tensors": {
        "weight_packed": torch.ones(4, 8, dtype=I32),
        "weight_scale": SCALE,
        "weight_shape": torch.tensor([4, 64]),
    },
    "NVFP4 of ModelOpt": {"weight": torch.ones(4, 8, dtype=U8), "weight_scale": SCALE.to(F8), "weight_scale_2": SCALE},
    "compressed-tensors or ModelOpt": {"weight": torch.ones(4, 8, dtype=torch.int8), "weight_scale": SCALE},
    "compressed-tensors or ModelOpt in FP4": {"weight": torch.ones(4, 8, dtype=U8), "weight_scale": SCALE.to(F8)},
    "MXFP4 of gpt-oss": {
        "experts.down_proj_blocks": torch.ones(1, 4, 1, 16, dtype=U8),
        "experts.down_proj_scales": torch.ones(1, 4, 1, dtype=U8),
    },
    "MLX": {"weight": torch.ones(4, 8).to(torch.uint32), "scales": SCALE, "biases": -SCALE},
    "bitsandbytes": {"weight": torch.ones(16, 1, dtype=U8), "weight.absmax": SCALE},
    "torchao": {"_weight_qdata": torch.ones(4, 8, dtype=torch.int8), "_weight_scale": SCALE},
    "quanto": {"weight._data": torch.ones(4, 8, dtype=torch.int8), "weight._scale": SCALE},
    "HQQ": {"W_q": torch.ones(4, 8, dtype=U8), "scale": SCALE, "zero": -SCALE},
    "EXL2": {"q_weight": torch.ones(4, 8, dtype=I32), "q_scale": torch.ones(1, 1, dtype=I32)},
    "EXL3": {"trellis": torch.ones(4, 8, 16, dtype=torch.int16), "suh": SCALE},
    "Marlin": {"B": torch.ones(2, 64, dtype=I32), "s": SCALE},
    "AQLM": {"codes": torch.ones(4, 1, 1, dtype=torch.int8), "codebooks": torch.ones(1, 256, 1, 8)},
}


def write(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    named = {f"layers.0.{name}": tensor for name, tensor in tensors.items()} | {"norm.weight": torch.ones(8)}
    torch.save(named, path) if path.suffix == ".pt" else safetensors.torch.save_file(named, path)
    return path


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
@pytest.mark.parametrize("scheme", TENSORS)
def test_codes_and_scales_are_refused(scheme: str, ending: str, tmp_path: Path) -> None:
    path, out = write(tmp_path / f"model.{ending}", TENSORS[scheme]), tmp_path / "out.safetensors"
    name = re.sub(" without.*| in FP4", "", scheme)
    problem = rf"expected weights, found codes and scales of {re.escape(name)}, such as 'layers\.0\..*{ADVICE}"
    donor = tmp_path / "donor.gguf"
    glft.save_file({"output_norm.weight": torch.ones(8)}, donor, {"general.architecture": "llama", "llama.block_count": 1})
    for work, has_option in (
        (lambda: glft.convert(path, out), True),
        (lambda: glft.weights.open_checkpoint(path), True),
        (lambda: glft.quantize(path, tmp_path / "out.gguf", "Q8_0"), False),
        (lambda: glft.quantize(path, tmp_path / "out.gguf", "Q8_0", like=donor), False),
        (lambda: glft.convert(path, tmp_path / "out.gguf", like=donor), False),
        (lambda: glft.convert(path, tmp_path / "out.gguf", like=donor, as_stored=True), False),
    ):
        with pytest.raises(FormatError, match=f"{problem}{COPY if has_option else ''} in ") as caught:
            work()
        assert str(caught.value).endswith(f" in {path}")
    assert in_this_process("convert", path, out).returncode == 2
    assert not out.exists()
    assert in_this_process("convert", path, out, "--as-stored").returncode == 0
    assert glft.weights.open_checkpoint(out, as_stored=True).keys() == glft.weights.open_checkpoint(path, as_stored=True).keys()


@pytest.mark.parametrize(
    ("tensors", "scheme"),
    [
        ({"qweight": torch.ones(4, 8, dtype=I32), "scales": SCALE}, "GPTQ or AWQ"),
        ({"weight": torch.ones(4, 8).to(F8), "weight_scale": SCALE}, "compressed-tensors or ModelOpt"),
    ],
)
def test_names_without_a_prefix(tensors: dict[str, torch.Tensor], scheme: str, tmp_path: Path) -> None:
    safetensors.torch.save_file(tensors, path := tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match=f"codes and scales of {scheme}, such as '{next(iter(tensors))}': "):
        glft.weights.open_checkpoint(path)


def test_a_scheme_that_only_the_config_names(tmp_path: Path) -> None:
    path = write(tmp_path / "model.safetensors", {"indices": torch.ones(4, 8, dtype=U8), "steps": SCALE})
    assert len(glft.weights.open_checkpoint(path)) == 3
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "new\x1b"}}))
    for source in (path, tmp_path):
        with pytest.raises(FormatError, match=r"codes and scales of 'new\\x1b', such as 'layers\.0\.indices'"):
            glft.weights.open_checkpoint(source)
    (tmp_path / "config.json").write_text("[]")
    assert len(glft.weights.open_checkpoint(path)) == 3


def test_plain_weights_are_not(tmp_path: Path) -> None:
    tensors = {
        "weight": torch.ones(4, 8).to(F8),
        "scale": SCALE,
        "qweight": torch.ones(4, 8),
        "position_ids": torch.ones(3, dtype=I32),
        "mask": torch.ones(4, 8, dtype=U8),
    }
    path = write(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text("{}")
    assert len(glft.weights.open_checkpoint(path)) == 6
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "new"}}))
    vectors = {"weight": torch.ones(4, 8), "position_ids": tensors["position_ids"]}
    assert len(glft.weights.open_checkpoint(write(path, vectors))) == 3


def test_a_folder_of_a_declared_family(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-llama")
    state = safetensors.torch.load_file(folder / "model.safetensors")
    state["model.layers.0.mlp.up_proj.weight"] = state["model.layers.0.mlp.up_proj.weight"].to(F8)
    state["model.layers.0.mlp.up_proj.weight_scale_inv"] = torch.ones(1, 1)
    safetensors.torch.save_file(state, folder / "model.safetensors")
    problem = rf"codes and scales of FP8 in blocks, such as 'model\.layers\.0\.mlp\.up_proj\.weight': {ADVICE}"
    for options in ({}, {"as_stored": True}):  # which maps codes to no tensor of GGUF
        with pytest.raises(FormatError, match=f"{problem} in "):
            glft.convert(folder, tmp_path / "out.gguf", **options)
    with pytest.raises(FormatError, match=f"{problem}{COPY} in "):
        glft.convert(folder, tmp_path / "out.safetensors")
    glft.convert(folder, tmp_path / "out.safetensors", as_stored=True)


def test_mxfp4_is_mapped_by_a_page_only(tmp_path: Path) -> None:
    """A folder of gpt-oss is written to GGUF, and to no other format; a folder of llama is not."""
    folder, problem = make_folder(tmp_path, "tiny-gpt-oss"), "codes and scales of MXFP4 of gpt-oss, such as 'model"
    with pytest.raises(FormatError, match=problem):
        glft.convert(folder, tmp_path / "out.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen2ForCausalLM"]}))
    with pytest.raises(FormatError, match=problem):
        glft.convert(folder, tmp_path / "out.gguf")
