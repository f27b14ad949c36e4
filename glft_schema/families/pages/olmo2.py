"""OLMo 2."""

from __future__ import annotations

from glft_schema.families.page import F, Family, K, T
from glft_schema.families.pages.shared import (
    EMBEDDING,
    FEED_FORWARD,
    FILE_TYPE,
    HEADS,
    LM_HEAD,
    ONE_BIAS,
    OWN_OUTPUT,
    RMS,
    SIZES,
    YARN,
    attention,
)

# fmt: off
OLMO2 = Family(
    "olmo2", ("Olmo2ForCausalLM",), "olmo2",
    tensors=(
        EMBEDDING, LM_HEAD._replace(required=True),
        T("model.norm",                                  "output_norm",                 "embd"),
        T("model.layers.{i}.post_attention_layernorm",   "blk.{i}.post_attention_norm", "embd"),
        T("model.layers.{i}.post_feedforward_layernorm", "blk.{i}.post_ffw_norm",       "embd"),
        T("model.layers.{i}.self_attn.q_norm",           "blk.{i}.attn_q_norm",         "embd"),
        T("model.layers.{i}.self_attn.k_norm",           "blk.{i}.attn_k_norm",         "kv"),
        T("model.layers.{i}.self_attn.o_proj",           "blk.{i}.attn_output",         "embd embd"),
        *attention("embd"), *FEED_FORWARD,
    ),
    keys=(
        *SIZES, *HEADS, *RMS, FILE_TYPE,
        K("attention.sliding_window",         "", None),
        K("rope.freq_base_swa",               "", None, "sliding"),
    ),
    fields=(
        F("hidden_act", "silu"),
        F("tie_word_embeddings", False, OWN_OUTPUT),
        F("attention_bias", False, ONE_BIAS),
        *YARN,
    ),
    vocabularies=("bpe",),
    pattern=4,
)
