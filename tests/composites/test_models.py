"""Whole models of quantized weights, in llama.cpp.

One has the shape of Google's checkpoints of quantization-aware training: W4A16 in groups of 32,
symmetric, with scales in bfloat16. The libraries quantized the recorded ones. The oracles are Q4_0
computed from codes and scales in numpy, transformers, and llama.cpp.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file as load_stored
from safetensors.torch import save_file as save_stored

import glft_schema as glft
from glft_schema.checks import check_derivation
from tests.composites import packers
from tests.families.tiny_folders import edit_json, make_folder
from tests.golden.record_composite_logits import PATH, measure
from tests.golden.record_composite_models import CONFIGS, MAKERS
from tests.oracles.llama_model import LlamaModel
from tests.tools.command_line import in_this_process
from tests.tools.guarded_here import know_tokenizers

TOKENS = [1, 45, 120, 77, 200, 12, 99, 33, 250, 7]
QUANTIZATION: dict[str, Any] = {
    "config_groups": {
        "group_0": {
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "actorder": None,
                "block_structure": None,
                "dynamic": False,
                "group_size": 32,
                "num_bits": 4,
                "observer": "minmax",
                "observer_kwargs": {},
                "strategy": "group",
                "symmetric": True,
                "type": "int",
            },
        }
    },
    "format": "pack-quantized",
    "global_compression_ratio": None,
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}
PARTS = {"o_proj": "attn_output", **{f"{part}_proj": f"attn_{part}" for part in "qkv"}}
PARTS |= {f"{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}

Grid = tuple[np.ndarray, torch.Tensor]


def in_gguf(module: str) -> str:
    """Returns the name of a Linear of llama in GGUF."""
    block, part = re.findall(r"layers\.(\d+)\..*\.(\w+)$", module)[0]
    return f"blk.{block}.{PARTS[part]}.weight"


@pytest.fixture
def grids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Grid]:
    """Writes a tiny llama as codes and as floats, in folders of these names.

    Returns codes [rows, columns] from 0 and scales [rows, groups] for each Linear.
    """
    know_tokenizers(monkeypatch)
    plain = make_folder(tmp_path, "tiny-llama").rename(tmp_path / "floats")
    folder = make_folder(tmp_path, "tiny-llama").rename(tmp_path / "codes")
    edit_json(folder / "config.json", quantization_config=QUANTIZATION)
    floats = load_stored(plain / "model.safetensors")
    stored, grids = dict(floats), {}
    random = np.random.default_rng(5)
    for name in [name for name in floats if name.endswith("_proj.weight")]:
        module, (rows, columns) = name.removesuffix(".weight"), floats[name].shape
        codes = random.integers(0, 16, (rows, columns))
        scales = torch.from_numpy(random.uniform(0.005, 0.02, (rows, columns // 32))).bfloat16()
        parts = packers.packed(codes, None, scales)
        del stored[name]
        stored |= {part.replace("X", module, 1): tensor for part, tensor in parts.items()}
        floats[name] = torch.from_numpy(packers.values(codes, 8, scales))
        grids[module] = codes, scales
    save_stored(stored, folder / "model.safetensors")
    save_stored(floats, plain / "model.safetensors")
    return grids


def q4_0(module: str, codes: np.ndarray, scales: torch.Tensor) -> np.ndarray:
    """Returns the bytes of Q4_0, with the rows of q and k in llama.cpp's order."""
    halves = scales.float().numpy().astype(np.float16)
    np.testing.assert_array_equal(halves.astype(np.float32), scales.float().numpy())
    blocks = codes.reshape(len(codes), -1, 32)
    nibbles = (blocks[..., :16] | blocks[..., 16:] << 4).astype(np.uint8)
    payload = np.concatenate([halves[..., None].view(np.uint8), nibbles], axis=-1).reshape(len(codes), -1)
    heads = {"q": 4, "k": 2}.get(module.rpartition(".")[2].removesuffix("_proj"))
    if heads is None:
        return payload
    return payload.reshape(heads, 2, -1, payload.shape[1]).swapaxes(1, 2).reshape(payload.shape)


def test_each_byte_is_computed_from_codes_and_scales(grids: dict[str, Grid], tmp_path: Path) -> None:
    done = in_this_process("convert", tmp_path / "codes", out := tmp_path / "codes.gguf", "--exact")
    assert done.returncode == 0, done.stderr
    assert "compressed-tensors W4A16, 4 bits, groups of 32: 14 tensors exact in Q4_0" in done.stdout
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(out).tensors}
    assert {name for name, tensor in found.items() if tensor.tensor_type.name == "Q4_0"} == {*map(in_gguf, grids)}
    for module, (codes, scales) in grids.items():
        np.testing.assert_array_equal(found[in_gguf(module)].data, q4_0(module, codes, scales))


def test_all_tensors_are_derived_from_the_folder(grids: dict[str, Grid], tmp_path: Path) -> None:
    glft.convert(tmp_path / "codes", out := tmp_path / "codes.gguf")
    verdicts = {one.name: one.verdict for one in check_derivation(out, tmp_path / "codes")}
    assert {verdicts[in_gguf(module)] for module in grids} == {"copied"}
    assert set(verdicts.values()) <= {"copied", "exact"}
    command = "verify", out, "--derives-from", tmp_path / "codes"
    assert (done := in_this_process(*command)).returncode == 0, done.stdout + done.stderr
    changed = next(tensor for tensor in gguf.GGUFReader(out, "r+").tensors if tensor.name == "blk.1.ffn_up.weight")
    changed.data[3, 5] ^= 1
    del changed
    assert (done := in_this_process(*command)).returncode == 1
    assert re.search(r"blk\.1\.ffn_up\.weight.*differs", done.stdout)


def logits(path: Path) -> np.ndarray:
    with LlamaModel(path, exact=True) as model:
        return model.all_logits(TOKENS)


def test_llama_cpp_computes_what_it_does_with_these_bytes(grids: dict[str, Grid], tmp_path: Path) -> None:
    """In a file of the floats' folder, whose payloads gguf-py replaces."""
    glft.convert(tmp_path / "codes", tmp_path / "codes.gguf")
    glft.convert(tmp_path / "floats", other := tmp_path / "other.gguf", schemes=dict.fromkeys(map(in_gguf, grids), "q4_0"))
    before = logits(other)
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(other, "r+").tensors}
    for module, grid in grids.items():
        tensors[in_gguf(module)][:] = q4_0(module, *grid)
    del tensors
    found = logits(other)
    assert np.abs(found - before).max() > 1e-3  # ggml's own encoder finds other codes
    np.testing.assert_array_equal(logits(tmp_path / "codes.gguf"), found)


def test_llama_cpp_computes_what_transformers_does(grids: dict[str, Grid], tmp_path: Path) -> None:
    """With the floats, in float32; measured as the recorded models are."""
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "floats", dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    folder = tmp_path / "codes"
    np.save(folder / "tokens.npy", TOKENS)
    np.save(folder / "logits.npy", expected)
    (folder / "about.json").write_text(json.dumps({"library": "numpy", "version": "", "rounded_to": "float32"}))
    found = measure(folder)
    assert found.types == {"Q4_0": 14}
    assert found.largest > 0.5
    assert found.float32 < 1e-4
    assert found.rounded < 1e-4
    assert 1e-4 < found.converted < 0.1 * found.largest  # llama.cpp rounds activations


# Recorded models


def recorded() -> dict[str, dict[str, Any]]:
    models: dict[str, dict[str, Any]] = json.loads(PATH.read_text())
    return models


def test_each_scheme_is_recorded_in_each_family() -> None:
    assert {*recorded()} == {f"{family}-{scheme}" for family in CONFIGS for scheme in MAKERS}


@pytest.mark.parametrize("name", recorded())
def test_logits_are_those_of_the_library(name: str) -> None:
    """Except for the library's rounding of weights and llama.cpp's of activations."""
    model = recorded()[name]
    assert model["largest"] > 3
    assert model["rounded"] < 1e-5
    converted, float32 = (model["largest"] if changed else 0.15 for changed in model["rerouted"])  # other experts
    assert model["converted"] < converted
    assert model["float32"] < (1e-5 if model["rounded_to"] == "float32" else float32)
    assert not any(model["rerouted"]) or name.startswith("qwen3moe")
