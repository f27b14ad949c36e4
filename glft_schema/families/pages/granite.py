"""Granite 3."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import Bias, F, Family, K, T
from glft_schema.families.pages.llama import LLAMA

# fmt: off
GRANITE = Family(
    "granite", ("GraniteForCausalLM",), "granite",
    tensors=(
        *LLAMA.tensors,
        T("", "blk.{i}.ffn_gate_shexp", "embd ff_shared", when="shared"),
        T("", "blk.{i}.ffn_up_shexp",   "embd ff_shared", when="shared"),
        T("", "blk.{i}.ffn_down_shexp", "ff_shared embd", when="shared"),
    ),
    keys=(
        *rows.SIZES, *rows.HEADS, *rows.RMS, rows.FILE_TYPE,
        K("vocab_size",                       "vocab_size", loader="ignored"),
        K("rope.dimension_count",             "", rows.head_size),
        K("attention.scale",                  "attention_multiplier", 1.0,
          absent=lambda config: rows.head_size(config) ** -0.5),
        K("embedding_scale",                  "embedding_multiplier", 1.0),
        K("residual_scale",                   "residual_multiplier", 1.0),
        K("logit_scale",                      "logits_scaling", 1.0, "required"),
        K("expert_shared_feed_forward_length", "", None),
    ),
    fields=(
        F("hidden_act", "silu"),
        F("attention_bias", Bias("blk.0.attn_q.bias")),
        F("mlp_bias", Bias("blk.0.ffn_up.bias")),
        F("head_dim", rows.head_size, "llama.cpp divides the embedding by the heads"),
        *rows.YARN,
    ),
    vocabularies=LLAMA.vocabularies,
)
