"""Checkpoints of codes and scales are refused by name; plain weights are not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
import torch

import glft_schema as glft
from glft_schema import FormatError, TensorError
from tests.families.tiny_folders import edit_json, edit_tensors, make_folder
from tests.tools.command_line import in_this_process

F8, I32, U8 = torch.float8_e4m3fn, torch.int32, torch.uint8
SCALE = torch.ones(2)
ADVICE = "save the model unquantized with the library that wrote it"
COPY = re.escape(", or copy the tensors as stored: as_stored (--as-stored)")


def ones(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.ones(shape).to(dtype)


DTYPES = {"f8": F8, "f32": torch.float32, "i16": torch.int16, "i32": I32, "i64": torch.int64, "i8": torch.int8, "u8": U8}
DTYPES["u32"] = torch.uint32
SCHEMES = """
AWQ, not for GEMM: qweight i16 32 1, scales f32 2
quanto: weight._data i8 4 8, weight._scale f32 2
HQQ: W_q u8 4 8, scale f32 2, zero f32 2
EXL2: q_weight i32 4 8, q_scale i32 1 1
EXL3: trellis i16 4 8 16, suh f32 2
Marlin: B i32 2 64, s f32 2
AQLM: codes i8 4 1 1, codebooks f32 1 256 1 8
"""
TENSORS = dict(line.split(": ") for line in SCHEMES.strip().splitlines())  # of a Linear by their names in each scheme


def tensors_of(scheme: str) -> dict[str, torch.Tensor]:
    rows = (tensor.split() for tensor in TENSORS[scheme].split(", "))
    return {name: ones(DTYPES[dtype], *map(int, dims)) for name, dtype, *dims in rows}


def write(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    named = {f"layers.0.{name}": tensor for name, tensor in tensors.items()} | {"norm.weight": torch.ones(8)}
    torch.save(named, path) if path.suffix == ".pt" else safetensors.torch.save_file(named, path)
    return path


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
@pytest.mark.parametrize("scheme", TENSORS)
def test_codes_and_scales_are_refused(scheme: str, ending: str, tmp_path: Path) -> None:
    path, out = write(tmp_path / f"model.{ending}", tensors_of(scheme)), tmp_path / "out.safetensors"
    name = re.escape(scheme)
    problem = rf"expected weights, found codes and scales of {name}, such as 'layers\.0\..*{ADVICE}{COPY} in {path}$"
    for work in (lambda: glft.convert(path, out), lambda: glft.weights.open_checkpoint(path)):
        with pytest.raises(FormatError, match=problem):
            work()
    assert not out.exists()
    glft.convert(path, out, as_stored=True)
    assert glft.weights.open_checkpoint(out, as_stored=True).keys() == glft.weights.open_checkpoint(path, as_stored=True).keys()


@pytest.mark.parametrize("write_out", [glft.convert, partial(glft.quantize, recipe="Q8_0")])
def test_gguf_has_no_codes_and_scales(write_out: Callable[..., object], tmp_path: Path) -> None:
    """Also of the tensors as stored, and by the example of another model."""
    path, donor = write(tmp_path / "model.safetensors", tensors_of("HQQ")), tmp_path / "donor.gguf"
    glft.save_file({"output_norm.weight": torch.ones(8)}, donor, {"general.architecture": "llama", "llama.block_count": 1})
    for options in ({"like": donor}, {"like": donor, "as_stored": True} if write_out is glft.convert else {}):
        with pytest.raises(FormatError, match=rf"found codes and scales of HQQ, such as 'layers\.0\..*{ADVICE} in {path}$"):
            write_out(path, tmp_path / "out.gguf", **options)


def test_from_the_command_line(tmp_path: Path) -> None:
    path, out = write(tmp_path / "model.safetensors", tensors_of("HQQ")), tmp_path / "out.safetensors"
    assert in_this_process("convert", path, out).returncode == 2
    assert in_this_process("convert", path, out, "--as-stored").returncode == 0


@pytest.mark.parametrize("scheme", ["HQQ", "EXL2"])
def test_names_without_a_prefix(scheme: str, tmp_path: Path) -> None:
    tensors = tensors_of(scheme)
    safetensors.torch.save_file(tensors, path := tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match=f"codes and scales of {scheme}, such as '{next(iter(tensors))}': "):
        glft.weights.open_checkpoint(path)


def test_a_scheme_that_only_the_config_names(tmp_path: Path) -> None:
    path = write(tmp_path / "model.safetensors", {"indices": ones(U8, 4, 8), "steps": SCALE})
    assert len(glft.weights.open_checkpoint(path)) == 3
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "new\x1b"}}))
    for source in (path, tmp_path):
        with pytest.raises(FormatError, match=r"codes and scales of 'new\\x1b', such as 'layers\.0\.indices'"):
            glft.weights.open_checkpoint(source)
    (tmp_path / "config.json").write_text("[]")
    assert len(glft.weights.open_checkpoint(path)) == 3


def test_plain_weights_are_not(tmp_path: Path) -> None:
    tensors = {
        "weight": ones(F8, 4, 8),
        "scale": SCALE,
        "qweight": torch.ones(4, 8),
        "position_ids": ones(I32, 3),
        "mask": ones(U8, 4, 8),
    }
    path = write(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text("{}")
    assert len(glft.weights.open_checkpoint(path)) == 6
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "new"}}))
    vectors = {"weight": torch.ones(4, 8), "position_ids": tensors["position_ids"]}
    assert len(glft.weights.open_checkpoint(write(path, vectors))) == 3


def test_a_folder_of_a_declared_family(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-llama")
    name = "model.layers.0.mlp.up_proj"
    edit_tensors(folder, {f"{name}.weight": None, f"{name}.W_q": ones(U8, 96, 64), f"{name}.scale": torch.ones(1, 1)})
    problem = f"codes and scales of HQQ, such as '{name}.W_q': {ADVICE}"
    for options in ({}, {"as_stored": True}):  # which maps codes to no tensor of GGUF
        with pytest.raises(FormatError, match=f"{problem} in "):
            glft.convert(folder, tmp_path / "out.gguf", **options)
    with pytest.raises(FormatError, match=f"{problem}{COPY} in "):
        glft.convert(folder, tmp_path / "out.safetensors")
    glft.convert(folder, tmp_path / "out.safetensors", as_stored=True)


def test_mxfp4_is_mapped_by_a_page_only(tmp_path: Path) -> None:
    """A folder of gpt-oss is written to GGUF by its page, a folder of llama is not."""
    folder = make_folder(tmp_path, "tiny-gpt-oss")
    glft.convert(folder, tmp_path / "out.safetensors")
    with glft.open(tmp_path / "out.safetensors") as file:
        assert file.tensors["model.layers.0.mlp.experts.down_proj"].type.name == "F32"
    edit_json(folder / "config.json", architectures=["Qwen2ForCausalLM"])
    with pytest.raises((FormatError, TensorError)):
        glft.convert(folder, tmp_path / "out.gguf")
