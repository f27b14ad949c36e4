"""OLMoE."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import F, Family, T

# fmt: off
OLMOE = Family(
    "olmoe", ("OlmoeForCausalLM",), "olmoe",
    tensors=(
        *rows.BLOCKS, rows.OWN_LM_HEAD,
        T("model.layers.{i}.self_attn.q_norm", "blk.{i}.attn_q_norm", "embd"),
        T("model.layers.{i}.self_attn.k_norm", "blk.{i}.attn_k_norm", "embd"),
        *rows.attention("embd"), *rows.experts("ff"),
    ),
    keys=(
        *rows.decoder(), *rows.EXPERTS, rows.FILE_TYPE,
    ),
    fields=(
        rows.SILU,
        rows.OWN_OUTPUT,
        rows.NO_BIAS,
        F("num_key_value_heads", rows.head_count, "llama.cpp expects k_norm to be as wide as q_norm"),
        F("clip_qkv", None, "llama.cpp does not clip queries, keys and values"),
        F("norm_topk_prob", False, "llama.cpp does not normalize the weights of the chosen experts"),
        *rows.YARN,
    ),
    vocabularies=("bpe",),
    limits=rows.SOME_EXPERTS,
    defaults={"rms_norm_eps": 1e-5},
)
