"""Gemma 3, its text model."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import F, Family, K

# fmt: off
GEMMA3 = Family(
    "gemma3", ("Gemma3ForCausalLM",), "gemma3_text",
    tensors=(
        *rows.GEMMA, rows.LM_HEAD, *rows.changed(rows.HEAD_NORMS, operation=rows.PLUS_ONE),
    ),
    keys=(
        rows.N_LAYER,
        K("context_length",                   "max_position_embeddings", 131072, "required"),
        rows.N_EMBD, rows.N_FF,
        K("attention.head_count",             "num_attention_heads", 8, "required"),
        K("attention.head_count_kv",          "num_key_value_heads", 4, absent=rows.head_count),
        *rows.SCALING,
        rows.theta(1_000_000.0),
        K("rope.freq_base_swa",               "rope.sliding_attention.rope_theta", 10_000.0, "sliding"),
        *rows.RMS, *rows.head_lengths(256), rows.FILE_TYPE,
        K("final_logit_softcapping",          "final_logit_softcapping", None),
        K("attention.sliding_window",         "sliding_window", 4096, absent=0),
    ),
    fields=(
        F("hidden_activation", "gelu_pytorch_tanh"),
        rows.gemma_scale(62),
        F("sliding_window_pattern", 6),
        F("_sliding_window_pattern", 6),
        rows.sliding(6),
        rows.NO_BIAS,
        F("attn_logit_softcapping", None, "llama.cpp has no cap of attention scores"),
        F("use_bidirectional_attention", False, "llama.cpp attends to earlier tokens only"),
        *rows.YARN
    ),
    vocabularies=("gemma sentencepiece", "bpe"),
    pattern=6,
    defaults={"query_pre_attn_scalar": 256},
)
