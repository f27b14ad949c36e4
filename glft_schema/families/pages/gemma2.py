"""Gemma 2."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import F, Family, K

# fmt: off
GEMMA2 = Family(
    "gemma2", ("Gemma2ForCausalLM",), "gemma2",
    tensors=rows.GEMMA,
    keys=(
        rows.N_CTX, rows.N_EMBD, rows.N_LAYER, rows.N_FF, rows.N_HEAD, rows.N_HEAD_KV, *rows.RMS, *rows.head_lengths(256),
        rows.FILE_TYPE,
        K("attn_logit_softcapping",           "attn_logit_softcapping", absent=50.0),
        K("final_logit_softcapping",          "final_logit_softcapping", absent=30.0),
        K("attention.sliding_window",         "sliding_window", 4096),
        K("rope.freq_base_swa",               "", None, "sliding"),
    ),
    fields=(
        F("hidden_activation", "gelu_pytorch_tanh"),
        rows.gemma_scale(46),
        rows.sliding(2),
        F("rope.rope_theta", 10000.0, "llama.cpp has no key of it for this architecture"),
        rows.NO_BIAS,
        F("use_bidirectional_attention", False, "llama.cpp attends to earlier tokens only"),
        rows.TIED_OUTPUT,
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
