"""Tiny models with random weights, which llama.cpp's quantizer accepts; it never runs them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

from glft_schema import Typed, save_file

EPSILON = {  # the keys that llama.cpp requires of an architecture
    "llama": "attention.layer_norm_rms_epsilon",
    "qwen2": "attention.layer_norm_rms_epsilon",
    "gemma": "attention.layer_norm_rms_epsilon",
    "qwen3moe": "attention.layer_norm_rms_epsilon",
    "falcon": "attention.layer_norm_epsilon",
}
WIDTHS = (256, 64, 32, 24)  # the last two need fallback types, the last one F16


def keys(architecture: str = "llama", layers: int = 2, heads: int = 4, kv_heads: int = 2, experts: int = 0) -> dict[str, Any]:
    """Returns a model's metadata."""
    own = {
        "context_length": 64,
        "embedding_length": 64 * heads,
        "block_count": layers,
        "feed_forward_length": 64,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
    }
    if experts:
        own |= {"expert_count": experts, "expert_used_count": 1, "expert_feed_forward_length": 64}
    entries = {f"{architecture}.{key}": Typed(value, "uint32") for key, value in own.items()}
    epsilon = {f"{architecture}.{EPSILON[architecture]}": Typed(1e-5, "float32")}
    return {"general.architecture": architecture, "general.file_type": Typed(0, "uint32"), **entries, **epsilon}


def tensors(
    layers: int = 2,
    experts: int = 0,
    *,
    tied: bool = True,
    fused: bool = False,
    width: int = 256,
    down: int = 64,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Returns a model's tensors, f32[rows, columns], out of order.

    Args:
        layers: number of layers.
        experts: number of experts; 0 for a dense model.
        tied: without an output matrix.
        fused: queries, keys and values in one matrix.
        width: columns of most matrices.
        down: columns of ``ffn_down``.
        seed: of the random numbers.
    """
    numbers = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=numbers)

    made = {"token_embd.weight": random(3, width), "output_norm.weight": random(width)}
    if not tied:
        made["output.weight"] = random(2, width)
    stack, suffix = ((experts,), "_exps") if experts else ((), "")
    for layer in reversed(range(layers)):
        attention = ("attn_qkv",) if fused else ("attn_v", "attn_q", "attn_k")
        block = {f"{part}.weight": random(2, width) for part in (*attention, "attn_output")}
        block |= {f"{part}.bias": random(2) for part in attention}
        block |= {f"ffn_{part}{suffix}.weight": random(*stack, 2, width) for part in ("gate", "up")}
        block |= {f"ffn_down{suffix}.weight": random(*stack, 2, down), "ffn_norm.weight": random(width)}
        if experts:
            block |= {"ffn_gate_inp.weight": random(experts, width), "ffn_down_shexp.weight": random(2, width)}
        made |= {f"blk.{layer}.{name}": tensor for name, tensor in block.items()}
    return made


def write(path: Path, metadata: Mapping[str, Any], weights: Mapping[str, torch.Tensor], type_: str = "f32") -> None:
    """Writes a model."""
    schemes = {name: type_ for name, tensor in weights.items() if tensor.dim() > 1}
    save_file(weights, path, metadata, schemes=schemes, rules=[])


@st.composite
def models(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Metadata and tensors."""
    architecture = draw(st.sampled_from([*EPSILON]))
    layers = draw(st.sampled_from([*[1, 2, 7, 8, 9, 16] * 3, 24, 33, 80]))
    kv_heads, shared = draw(st.sampled_from([1, 2])), draw(st.integers(1, 8))
    mixed = architecture == "qwen3moe" or (architecture == "llama" and draw(st.booleans()))
    experts = draw(st.sampled_from([2, 4, 8])) if mixed else 0
    width, down = draw(st.sampled_from(WIDTHS)), draw(st.sampled_from(WIDTHS))
    tied, fused = draw(st.booleans()), draw(st.integers(0, 3)) == 0
    made = tensors(layers, experts, tied=tied, fused=fused, width=width, down=down, seed=draw(st.integers(0, 9)))
    return keys(architecture, layers, kv_heads * shared, kv_heads, experts), made
