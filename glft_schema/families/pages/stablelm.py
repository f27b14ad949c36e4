"""StableLM 3B, 2 and Stable Code."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.operations import Stack
from glft_schema.families.page import Bias, F, Family, K, T

# fmt: off
ATTENTION, NORMS = "model.layers.{i}.self_attn.", "_layernorm.norms.{part}"
STABLELM = Family(
    "stablelm", ("StableLmForCausalLM",), "stablelm",
    tensors=(
        rows.EMBEDDING, rows.OWN_LM_HEAD,
        *rows.changed(rows.BLOCKS[1:-1], bias="required"),
        rows.BLOCKS[-1]._replace(bias="optional", required=False),
        *rows.attention("embd"), *rows.FEED_FORWARD,
        T(ATTENTION + "q" + NORMS,  "blk.{i}.attn_q_norm", "head heads", Stack("num_attention_heads"), required=False),
        T(ATTENTION + "k" + NORMS,  "blk.{i}.attn_k_norm", "head groups", Stack("num_key_value_heads"), required=False),
    ),
    keys=(
        *rows.SIZES, rows.rotated(0.25), *rows.HEADS,
        K("use_parallel_residual",        "use_parallel_residual", False, "ignored", absent=None),
        rows.LAYER_NORM, rows.FILE_TYPE,
    ),
    fields=(
        rows.SILU,
        F("use_qkv_bias", Bias("blk.0.attn_q.bias")),
        F("qk_layernorm", Bias("blk.0.attn_q_norm.weight")),
        F("use_parallel_residual", Bias("no blk.0.ffn_norm.weight"), "llama.cpp adds both parts in parallel without this norm"),
        rows.OWN_OUTPUT,
        *rows.PARTIAL_YARN,
    ),
    vocabularies=("bpe",),
    defaults={"num_key_value_heads": 32},
)
