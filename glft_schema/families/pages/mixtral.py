"""Mixtral: Llama with experts."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import F, Family, K, T
from glft_schema.families.pages.llama import LLAMA, PERMUTED

# fmt: off
MIXTRAL = Family(
    "llama", ("MixtralForCausalLM",), "mixtral",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD,
        *PERMUTED,
        T("model.layers.{i}.self_attn.o_proj", "blk.{i}.attn_output", "q embd"),
        *rows.experts("ff", "model.layers.{i}.block_sparse_moe", "w1 w3 w2"),
    ),
    keys=(
        *rows.SIZES, *rows.HEADS[:-1],
        rows.theta(1_000_000.0),
        *rows.RMS,
        K("expert_count",                     "num_experts"),
        K("expert_used_count",                "num_experts_per_tok"),
        *rows.OWN_HEAD_SIZE, rows.FILE_TYPE,
        K("vocab_size",                       "vocab_size"),
        K("rope.dimension_count",             "", lambda config: config.get("head_dim") or rows.head_size(config)),
    ),
    fields=(
        F("hidden_act", "silu"),
        rows.LOCAL_EXPERTS,
        rows.WINDOW, *rows.YARN,
    ),
    vocabularies=LLAMA.vocabularies,
    defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5},
)
