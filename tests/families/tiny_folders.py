"""Tiny Hugging Face folders of each family, written by hand: no library names their tensors.

They are in `folders`, except the tensors, whose names and dims are in `shapes`, as transformers
saves them (N is a block), and tokenizers that several share: SentencePiece's (model), byte-level
BPE (json), BPE with a token for each byte (bytes), and WordPiece (words). With the rope_theta of
tiny-gpt-oss, yarn interpolates up to dim 1.99999, so that truncating it changes nothing.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import glft_schema as glft

EXPERTS = 3
NORMS = ("norm", "Norm", "ln_")

FOLDERS, SHAPES, TOKENIZERS = (Path(__file__).with_name(name) for name in ("folders", "shapes", "tokenizers"))
CONFIGS = {  # folder -> architecture, tokenizer
    "tiny-llama": ("LlamaForCausalLM", "model"),
    "tiny-llama-3": ("LlamaForCausalLM", "json"),
    "tiny-yarn": ("LlamaForCausalLM", "model"),
    "tiny-mistral": ("MistralForCausalLM", "bytes"),
    "tiny-qwen2": ("Qwen2ForCausalLM", "model"),
    "tiny-qwen3": ("Qwen3ForCausalLM", "json"),
    "tiny-qwen3moe": ("Qwen3MoeForCausalLM", "json"),
    "tiny-mixtral": ("MixtralForCausalLM", "bytes"),
    "tiny-granite": ("GraniteForCausalLM", "json"),
    "tiny-olmo2": ("Olmo2ForCausalLM", "json"),
    "tiny-qwen2moe": ("Qwen2MoeForCausalLM", "json"),
    "tiny-starcoder2": ("Starcoder2ForCausalLM", "json"),
    "tiny-gemma2": ("Gemma2ForCausalLM", "model"),
    "tiny-gemma3": ("Gemma3ForCausalLM", "model"),
    "tiny-phi3": ("Phi3ForCausalLM", "model"),
    "tiny-gpt-oss": ("GptOssForCausalLM", "json"),
    "tiny-gpt-oss-bf16": ("GptOssForCausalLM", "json"),
    "tiny-gpt2": ("GPT2LMHeadModel", "json"),
    "tiny-bert": ("BertModel", "words"),
}


def make_folder(parent: Path, name: str, shards: int = 1) -> Path:
    """Writes the folder of a family: config, weights in bfloat16 and tokenizer."""
    folder = shutil.copytree(FOLDERS / name, parent / name)
    shutil.copytree(TOKENIZERS / CONFIGS[name][1], folder, dirs_exist_ok=True)
    table = (SHAPES / f"{name}.txt").read_text("utf-8")
    lines = [line for i in range(2) for line in table.replace(".N.", f".{i}.").splitlines()]
    tensors = {tensor: values(tensor, tuple(map(int, dims))) for tensor, *dims in map(str.split, lines)}
    names = sorted(tensors)
    files = {f"model-{i + 1:05d}-of-{shards:05d}.safetensors": names[i::shards] for i in range(shards)}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, folder / (file if shards > 1 else "model.safetensors"))
    if shards > 1:
        weight_map = {name: file for file, held in files.items() for name in held}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), "utf-8")
    return folder


def edit_json(path: Path, **parts: Any) -> None:
    """Sets parts of a JSON file, such as config.json."""
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | parts), "utf-8")


def edit_tensors(folder: Path, tensors: Mapping[str, torch.Tensor | None]) -> None:
    """Sets or removes tensors of a folder."""
    stored = load_file(folder / "model.safetensors") | tensors
    save_file({name: tensor for name, tensor in stored.items() if tensor is not None}, folder / "model.safetensors")


def edited(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Path:
    """Writes a GGUF file beside another one, with other tensors or metadata."""
    with glft.open(path) as file:
        tensors = {name: tensor.dequantize() for name, tensor in file.tensors.items()}
        metadata = {key: glft.Typed(value, file.metadata.type_of(key)) for key, value in file.metadata.items()}
    change(tensors, metadata)
    glft.save_file(tensors, path.with_name("edited.gguf"), metadata, rules=[])
    return path.with_name("edited.gguf")


def make_undeclared(parent: Path) -> Path:
    """Writes a folder of MiniCPM 3, which is not declared: gemma2 with other queries and keys."""
    folder = make_folder(parent, "tiny-gemma2")
    sizes = {"num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8}
    edit_json(folder / "config.json", architectures=["MiniCPM3ForCausalLM"], model_type="minicpm3", **sizes)
    stored = load_file(folder / "model.safetensors")
    edit_tensors(folder, {name: None for name in stored if any(part in name for part in ("feedforward", "q_p", "k_p", "v_p"))})
    dims = {"q_a_proj": (32, 64), "q_b_proj": (64, 32), "kv_a_proj_with_mqa": (40, 64), "kv_b_proj": (96, 32)}
    dims |= {"q_a_layernorm": (32,), "kv_a_layernorm": (32,)}
    names = {f"model.layers.{i}.self_attn.{name}.weight": sizes for i in range(2) for name, sizes in dims.items()}
    edit_tensors(folder, {name: values(name, sizes) for name, sizes in names.items()})
    return folder


def values(name: str, dims: tuple[int, ...]) -> torch.Tensor:
    """Returns numbers that depend on the tensor's name: small, and near 1 for norms."""
    numbers = torch.arange(torch.Size(dims).numel(), dtype=torch.float32)
    spread = ((numbers * 7919 + zlib.crc32(name.encode()) % 1009) % 1009 - 504) / 2048
    if name.endswith(("_blocks", "_scales")):  # codes, and powers of two from 2^-9 to 2^-6
        numbers = numbers * 7919 + zlib.crc32(name.encode()) % 1009
        return (numbers % 256 if name.endswith("_blocks") else 118 + numbers % 4).reshape(dims).to(torch.uint8)
    base = 1 if len(dims) == 1 and any(norm in name for norm in NORMS) and not name.endswith("bias") else 0
    return (base + spread).reshape(dims).to(torch.bfloat16)
