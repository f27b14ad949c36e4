"""OLMo 2."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import F, Family, K, T

# fmt: off
OLMO2 = Family(
    "olmo2", ("Olmo2ForCausalLM",), "olmo2",
    tensors=(
        rows.EMBEDDING, rows.LM_HEAD._replace(required=True), *rows.POST_NORMS,
        T("model.layers.{i}.self_attn.q_norm", "blk.{i}.attn_q_norm", "embd"),
        T("model.layers.{i}.self_attn.k_norm", "blk.{i}.attn_k_norm", "kv"),
        T("model.layers.{i}.self_attn.o_proj", "blk.{i}.attn_output", "embd embd"),
        *rows.attention("embd"), *rows.FEED_FORWARD,
    ),
    keys=(
        *rows.SIZES, *rows.HEADS, *rows.RMS, rows.FILE_TYPE,
        K("attention.sliding_window",         "", None),
        K("rope.freq_base_swa",               "", None, "sliding"),
    ),
    fields=(
        F("hidden_act", "silu"),
        F("tie_word_embeddings", False, rows.OWN_OUTPUT),
        F("attention_bias", False, rows.ONE_BIAS),
        *rows.YARN,
    ),
    vocabularies=("bpe",),
    pattern=4,
    defaults={"rms_norm_eps": 1e-5},
)
