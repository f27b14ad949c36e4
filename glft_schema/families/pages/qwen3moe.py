"""Qwen 3 with experts."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import F, Family, K, T

# fmt: off
QWEN3MOE = Family(
    "qwen3moe", ("Qwen3MoeForCausalLM",), "qwen3_moe",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD, *rows.attention(), *rows.HEAD_NORMS,
        T("model.layers.{i}.self_attn.o_proj",          "blk.{i}.attn_output",   "q embd"),
        *rows.experts(),
    ),
    keys=(
        *rows.SIZES_OF_EXPERTS, *rows.HEADS, *rows.RMS,
        K("expert_count",                     "num_experts", loader="required"),
        K("expert_used_count",                "num_experts_per_tok", loader="required"),
        *rows.OWN_HEAD_SIZE, rows.FILE_TYPE,
        K("expert_feed_forward_length",       "moe_intermediate_size", absent=rows.expert_rows),
    ),
    fields=(
        F("hidden_act", "silu"),
        F("norm_topk_prob", True, "llama.cpp normalizes the weights of the chosen experts"),
        F("attention_bias", False, rows.ONE_BIAS),
        F("use_qk_norm", True),
        F("shared_expert_intermediate_size", 0),
        *rows.NO_DENSE_BLOCKS,
        *rows.SLIDING_QWEN, *rows.YARN
    ),
    vocabularies=("bpe",),
    defaults={"num_key_value_heads": 4, "norm_topk_prob": False},
    limits=rows.SOME_EXPERTS,
    scales_feed_forward=True,
)
