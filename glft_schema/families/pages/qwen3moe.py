"""Qwen 3 with experts."""

from __future__ import annotations

from glft_schema.families.page import F, Family, K, T
from glft_schema.families.pages.shared import (
    BLOCKS,
    EXPERTS_EVERYWHERE,
    FILE_TYPE,
    HEAD_NORMS,
    HEADS,
    LM_HEAD,
    ONE_BIAS,
    OWN_HEAD_SIZE,
    RMS,
    SIZES_OF_EXPERTS,
    SLIDING_QWEN,
    YARN,
    attention,
    experts,
)
from glft_schema.families.requirements import limit

# fmt: off
QWEN3MOE = Family(
    "qwen3moe", ("Qwen3MoeForCausalLM",), "qwen3_moe",
    tensors=(
        *BLOCKS, LM_HEAD, *attention(), *HEAD_NORMS,
        T("model.layers.{i}.self_attn.o_proj",          "blk.{i}.attn_output",   "q embd"),
        *experts(),
    ),
    keys=(
        *SIZES_OF_EXPERTS, *HEADS, *RMS,
        K("expert_count",                     "num_experts", loader="required"),
        K("expert_used_count",                "num_experts_per_tok", loader="required"),
        *OWN_HEAD_SIZE, FILE_TYPE,
        K("expert_feed_forward_length",       "moe_intermediate_size"),
    ),
    fields=(
        F("hidden_act", "silu"),
        F("norm_topk_prob", True, "llama.cpp normalizes the weights of the chosen experts"),
        F("attention_bias", False, ONE_BIAS),
        F("decoder_sparse_step", 1, EXPERTS_EVERYWHERE),
        F("mlp_only_layers", [], EXPERTS_EVERYWHERE),
        *SLIDING_QWEN, *YARN
    ),
    vocabularies=("bpe",),
    limits=(limit("expert_count", "at least 1", lambda n: n["experts"] > 0),),
)
