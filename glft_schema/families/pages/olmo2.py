"""OLMo 2."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import Family, K, T

# fmt: off
OLMO2 = Family(
    "olmo2", ("Olmo2ForCausalLM",), "olmo2",
    tensors=(
        rows.EMBEDDING, rows.OWN_LM_HEAD, *rows.POST_NORMS,
        T("model.layers.{i}.self_attn.q_norm", "blk.{i}.attn_q_norm", "embd"),
        T("model.layers.{i}.self_attn.k_norm", "blk.{i}.attn_k_norm", "kv"),
        *rows.attention("embd"), *rows.FEED_FORWARD,
    ),
    keys=(
        *rows.decoder(), rows.FILE_TYPE,
        K("attention.sliding_window",         "", None),
        K("rope.freq_base_swa",               "", None, "sliding"),
    ),
    fields=(
        rows.SILU,
        rows.OWN_OUTPUT,
        rows.NO_BIAS,
        *rows.YARN,
    ),
    vocabularies=("bpe",),
    pattern=4,
    defaults={"rms_norm_eps": 1e-5},
)
