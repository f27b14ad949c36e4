"""Mixtral: Llama with experts."""

from __future__ import annotations

from glft_schema.families.page import F, Family, K, T
from glft_schema.families.pages.llama import LLAMA, PERMUTED
from glft_schema.families.pages.shared import (
    BLOCKS,
    FILE_TYPE,
    HEADS,
    LM_HEAD,
    OWN_HEAD_SIZE,
    RMS,
    SIZES,
    WINDOW,
    YARN,
    experts,
    head_size,
)

# fmt: off
MIXTRAL = Family(
    "llama", ("MixtralForCausalLM",), "mixtral",
    tensors=(
        *BLOCKS, LM_HEAD,
        *PERMUTED,
        T("model.layers.{i}.self_attn.o_proj", "blk.{i}.attn_output", "q embd"),
        *experts("ff", "model.layers.{i}.block_sparse_moe", "w1 w3 w2"),
    ),
    keys=(
        *SIZES, *HEADS[:-1],
        K("rope.freq_base",                   "rope.rope_theta", 1_000_000.0),
        *RMS,
        K("expert_count",                     "num_experts"),
        K("expert_used_count",                "num_experts_per_tok"),
        *OWN_HEAD_SIZE, FILE_TYPE,
        K("vocab_size",                       "vocab_size"),
        K("rope.dimension_count",             "", lambda config: config.get("head_dim") or head_size(config)),
    ),
    fields=(
        F("hidden_act", "silu"),
        F("num_local_experts", lambda config: config["num_experts"]),  # in config.json, of which num_experts is an alias
        WINDOW, *YARN,
    ),
    vocabularies=LLAMA.vocabularies,
)
