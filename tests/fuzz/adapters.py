"""Adapters for fuzzing: the bytes select and fill one file of a folder of peft, or are a GGUF
adapter.

The first byte selects the file, and the rest is its content. The other file of the folder is valid.
The base is a llama of one layer.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

import glft_schema as glft
from glft_schema.adapters.reading import read_updates
from glft_schema.errors import FormatError, OptionError, TensorError
from glft_schema.files.file import File
from glft_schema.testing.fuzzing import PropertyError, escaping
from glft_schema.weights.peft_adapters import CONFIG, WEIGHTS, Update

DOCUMENTED = (OptionError, FormatError, TensorError, OSError)
FILES = (CONFIG, WEIGHTS[0], "adapter.gguf")  # by the first byte
KEYS = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "llama.embedding_length": 8,
    "llama.block_count": 1,
    "llama.feed_forward_length": 16,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 4,
    "llama.rope.freq_base": 1e4,
    "llama.vocab_size": 4,
}
LAYERS = {"attn_q": (8, 8), "attn_k": (8, 8), "attn_v": (8, 8), "attn_output": (8, 8), "ffn_up": (16, 8), "ffn_down": (8, 16)}
SETTINGS: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "target_modules": ["q_proj"]}
OTHER_SETTINGS: tuple[dict[str, Any], ...] = (
    {"alpha_pattern": {"layers.0.self_attn.q_proj": 8, "k_proj": 2.5}},
    {"alpha_pattern": {r"^model\.layers\.[0-9]+\.(self_attn|mlp)\.[qk]_proj$": 8, ".*q_p.+?": 1}},
    {"alpha_pattern": {"(a+)+b": 1, "(.*)*x": 2, "((a{9}){9}){9}": 3}, "rank_pattern": {"(a+)+b": 1}},
    {"use_rslora": True, "lora_alpha": 0.5},
    {"lora_alpha": True},
    {"lora_alpha": 1e999},
    {"use_dora": True},
    {"modules_to_save": ["lm_head"]},
    {"peft_type": "IA3"},
    {"alpha_pattern": [1]},
)
PREFIX = "base_model.model.model.layers.0."


@cache
def base() -> File:
    """Returns the model, in memory."""
    weights = {f"blk.0.{name}.weight": torch.ones(shape) for name, shape in LAYERS.items()}
    weights |= {"token_embd.weight": torch.ones(4, 8), "output.weight": torch.ones(4, 8)}
    norms = {f"{name}.weight": torch.ones(8) for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")}
    with tempfile.TemporaryDirectory() as folder:
        glft.save_file(weights | norms, Path(folder, "base.gguf"), KEYS)
        return glft.Container.parse(Path(folder, "base.gguf").read_bytes())


def weights_of_peft(*layers: str, rank: int = 2, **more: torch.Tensor) -> bytes:
    """Returns adapter_model.safetensors with A and B of layers [8, 8]."""
    tensors = {f"{layer}.lora_A.weight": torch.ones(rank, 8) for layer in layers}
    return safetensors.torch.save(tensors | {f"{layer}.lora_B.weight": torch.ones(8, rank) for layer in layers} | more)


def seeds() -> Iterator[bytes]:
    """Yields adapters, good and bad."""
    for more in ({}, *OTHER_SETTINGS):
        yield b"\0" + json.dumps(SETTINGS | more).encode()
    for stored in (
        weights_of_peft(f"{PREFIX}self_attn.q_proj", f"{PREFIX}self_attn.k_proj"),
        weights_of_peft(f"{PREFIX}self_attn.q_proj", f"{PREFIX.removeprefix('base_model.model.')}self_attn.q_proj"),
        weights_of_peft(f"{PREFIX}self_attn.q_proj", rank=0),
        weights_of_peft(f"{PREFIX}mlp.other", "x"),
        weights_of_peft(
            "base_model.model.model.embed_tokens",
            **{"base_model.model.lm_head.lora_embedding_A": torch.ones(2, 4)},
            **{"base_model.model.lm_head.lora_embedding_B": torch.ones(8, 2)},
        ),
    ):
        yield b"\1" + stored
    with tempfile.TemporaryDirectory() as folder:
        for keys, rank in (({}, 2), ({"adapter.lora.alpha": 0.0}, 2), ({"adapter.lora.alpha": float("inf")}, 2), ({}, 0)):
            own = {
                "general.type": "adapter",
                "general.architecture": "llama",
                "adapter.type": "lora",
                "adapter.lora.alpha": 4.0,
            }
            pair = {"blk.0.attn_q.weight.lora_a": torch.ones(rank, 8), "blk.0.attn_q.weight.lora_b": torch.ones(8, rank)}
            embedding = {"token_embd.weight.lora_a": torch.ones(4, 2), "token_embd.weight.lora_b": torch.ones(8, 2)}
            glft.save_file(pair | embedding, Path(folder, "a.gguf"), own | keys, rules=[])
            yield b"\2" + Path(folder, "a.gguf").read_bytes()


def read(stored: bytes) -> dict[str, Update] | None:
    """Returns the updates of an adapter, or None if it is refused."""
    name = FILES[stored[0] % len(FILES)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CONFIG).write_text(json.dumps(SETTINGS))
        (Path(folder) / WEIGHTS[0]).write_bytes(weights_of_peft(f"{PREFIX}self_attn.q_proj"))
        (Path(folder) / name).write_bytes(stored[1:])
        try:
            return read_updates(Path(folder) / name if name == FILES[2] else folder, base())
        except DOCUMENTED:
            return None


def check_promises(stored: bytes) -> None:
    """Checks that an adapter is read, or refused with a documented error. The caller limits time.

    Raises:
        PropertyError: for any other error, or an update without rows of its shape.
    """
    with escaping():
        updates = (read(stored) if stored else None) or {}
        problem = next((f"{name}: {update.shape}" for name, update in updates.items() if not has_rows(update)), None)
    if problem:
        raise PropertyError("updates", f"expected float32 rows of the shape, found others in {problem}")


def has_rows(update: Update) -> bool:
    """Returns whether an update has float32 rows of its shape."""
    rows = update.rows(slice(0, 2))
    return rows.dtype == np.float32 and rows.shape == (min(2, update.shape[0]), update.shape[1])
