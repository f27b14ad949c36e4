"""A GGUF model in transformers: each parameter equals our tensor, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from glft_schema import Typed, save_file
from tests.foreign.our_reading import ours
from tests.foreign.readings import Reading, exact, same_bits

HIDDEN, INNER, VOCABULARY = 64, 96, 40
LAYER = {
    "attn_norm.weight": ("input_layernorm.weight", (HIDDEN,)),
    "attn_output.weight": ("self_attn.o_proj.weight", (HIDDEN, HIDDEN)),
    "ffn_norm.weight": ("post_attention_layernorm.weight", (HIDDEN,)),
    "ffn_gate.weight": ("mlp.gate_proj.weight", (INNER, HIDDEN)),
    "ffn_up.weight": ("mlp.up_proj.weight", (INNER, HIDDEN)),
    "ffn_down.weight": ("mlp.down_proj.weight", (HIDDEN, INNER)),
}
for letter, size in (("q", HIDDEN), ("k", HIDDEN // 2), ("v", HIDDEN // 2)):
    LAYER[f"attn_{letter}.weight"] = f"self_attn.{letter}_proj.weight", (size, HIDDEN)
    LAYER[f"attn_{letter}.bias"] = f"self_attn.{letter}_proj.bias", (size,)
NAMES = {
    "token_embd.weight": ("model.embed_tokens.weight", (VOCABULARY, HIDDEN)),
    "output_norm.weight": ("model.norm.weight", (HIDDEN,)),
    "output.weight": ("lm_head.weight", (VOCABULARY, HIDDEN)),
    **{f"blk.{i}.{name}": (f"model.layers.{i}.{theirs}", shape) for i in range(2) for name, (theirs, shape) in LAYER.items()},
}
CONFIG = {
    "block_count": ("num_hidden_layers", 2),
    "context_length": ("max_position_embeddings", 32),
    "embedding_length": ("hidden_size", HIDDEN),
    "feed_forward_length": ("intermediate_size", INNER),
    "attention.head_count": ("num_attention_heads", 4),
    "attention.head_count_kv": ("num_key_value_heads", 2),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", Typed(2.0**-20, "float32")),
    "vocab_size": ("vocab_size", VOCABULARY),
}


def test_qwen2_in_transformers(read: Callable[[str, Path], Reading], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    torch.manual_seed(0)
    tensors = {name: torch.randn(shape) for name, (_, shape) in NAMES.items()}
    metadata = {"general.architecture": "qwen2", "general.name": "toy"}
    metadata |= {f"qwen2.{key}": value for key, (_, value) in CONFIG.items()}
    schemes = {"*attn*": "q8_0", "*ffn*": "q5_1", "token_embd*": "q4_0", "output.*": "f16"}
    save_file(tensors, path, metadata, schemes=schemes, format="gguf")
    theirs, mine = read("transformers_model", path), ours(path)
    assert theirs.error == ""
    assert theirs.tensors.keys() == {name for name, _ in NAMES.values()}
    for name, (their_name, _) in NAMES.items():
        tensor = mine.tensors[name].values.astype("float32")
        assert same_bits(theirs.tensors[their_name].values, tensor), name
    for key, (their_key, value) in CONFIG.items():
        assert theirs.metadata[their_key] == mine.metadata[f"qwen2.{key}"] == exact(getattr(value, "value", value)), key
