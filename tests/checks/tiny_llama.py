"""A llama of three blocks in GGUF that llama.cpp loads, and variants of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from glft_schema import save_file

KEYS = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "llama.embedding_length": 96,
    "llama.block_count": 3,
    "llama.feed_forward_length": 160,
    "llama.attention.head_count": 6,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 8,
    "tokenizer.ggml.model": "no_vocab",
}
FLUX = {key.replace("llama.", "flux."): value for key, value in KEYS.items()} | {"general.architecture": "flux"}
BLOCK = {"attn_norm": (96,), "attn_q": (96, 96), "attn_k": (32, 96), "attn_v": (32, 96), "attn_output": (96, 96)}
BLOCK |= {"ffn_norm": (96,), "ffn_gate": (160, 96), "ffn_up": (160, 96), "ffn_down": (96, 160)}
SHAPES = {"token_embd.weight": (8, 96), "output_norm.weight": (96,), "output.weight": (8, 96)}
SHAPES |= {f"blk.{i}.{name}.weight": shape for i in range(3) for name, shape in BLOCK.items()}


def write(path: Path, changed: Mapping[str, Any] = KEYS, names: Mapping[str, str] | None = None) -> Path:
    """Writes the model with changed keys, and other names of tensors. A key of None is left out."""
    keys = {key: value for key, value in changed.items() if value is not None}
    save_file({(names or {}).get(name, name): torch.zeros(shape) for name, shape in SHAPES.items()}, path, keys, rules=[])
    return path
