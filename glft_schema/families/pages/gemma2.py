"""Gemma 2."""

from __future__ import annotations

from functools import partial

from glft_schema.families import rows
from glft_schema.families.page import BLOCK_COUNT, F, Family, K

# fmt: off
GEMMA2 = Family(
    "gemma2", ("Gemma2ForCausalLM",), "gemma2",
    tensors=(
        *rows.GEMMA,
    ),
    keys=(
        K("context_length",                   "max_position_embeddings", loader="required"),
        K("embedding_length",                 "hidden_size", loader="required"),
        K(BLOCK_COUNT,                        "num_hidden_layers", loader="required"),
        K("feed_forward_length",              "intermediate_size", loader="required"),
        K("attention.head_count",             "num_attention_heads", loader="required"),
        K("attention.head_count_kv",          "num_key_value_heads", rows.head_count),
        *rows.RMS,
        *rows.head_lengths(256),
        rows.FILE_TYPE,
        K("attn_logit_softcapping",           "attn_logit_softcapping", absent=50.0),
        K("final_logit_softcapping",          "final_logit_softcapping", absent=30.0),
        K("attention.sliding_window",         "sliding_window", 4096),
        K("rope.freq_base_swa",               "", None, "sliding"),
    ),
    fields=(
        F("hidden_activation", "gelu_pytorch_tanh"),
        F("query_pre_attn_scalar", partial(rows.gemma_scale, of_27b=46)),
        F("layer_types", partial(rows.sliding_layers, period=2)),
        F("rope.rope_theta", 10000.0, "llama.cpp has no key of it for this architecture"),
        F("attention_bias", False, rows.ONE_BIAS),
        F("use_bidirectional_attention", False, "llama.cpp attends to earlier tokens only"),
        F("tie_word_embeddings", True, "llama.cpp uses the token embedding for the output"),
        *rows.YARN,
    ),
    vocabularies=("gemma sentencepiece",),
    pattern=2,
    window=4096,
    dropped=("lm_head.weight",),
    ropes=("default",),
    ignored="hidden_act",  # of no effect beside hidden_activation
    defaults={"num_key_value_heads": 4, "query_pre_attn_scalar": 256},
)
