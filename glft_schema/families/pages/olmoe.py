"""OLMoE."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import F, Family, K, T

# fmt: off
OLMOE = Family(
    "olmoe", ("OlmoeForCausalLM",), "olmoe",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD._replace(required=True),
        T("model.layers.{i}.self_attn.q_norm", "blk.{i}.attn_q_norm", "embd"),
        T("model.layers.{i}.self_attn.k_norm", "blk.{i}.attn_k_norm", "embd"),
        T("model.layers.{i}.self_attn.o_proj", "blk.{i}.attn_output", "embd embd"),
        *rows.attention("embd"), *rows.experts("ff"),
    ),
    keys=(
        *rows.SIZES, *rows.HEADS, *rows.RMS,
        K("expert_count",                     "num_experts"),
        K("expert_used_count",                "num_experts_per_tok"),
        rows.FILE_TYPE,
    ),
    fields=(
        F("hidden_act", "silu"),
        F("tie_word_embeddings", False, rows.OWN_OUTPUT),
        F("attention_bias", False, rows.ONE_BIAS),
        F("num_key_value_heads", rows.head_count, "llama.cpp expects a norm of keys as wide as that of queries"),
        F("clip_qkv", None, "llama.cpp does not clip queries, keys and values"),
        F("norm_topk_prob", False, "llama.cpp does not normalize the weights of the chosen experts"),
        *rows.YARN,
    ),
    vocabularies=("bpe",),
    limits=rows.SOME_EXPERTS,
    defaults={"rms_norm_eps": 1e-5},
)
