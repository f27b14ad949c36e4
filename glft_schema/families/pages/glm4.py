"""GLM-4-0414, with norms after attention and feed-forward."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.page import T
from glft_schema.families.pages.qwen3 import QWEN3

# fmt: off
GLM4 = replace(
    QWEN3, arch="glm4", architectures=("Glm4ForCausalLM",), model_type="glm4",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD, *rows.attention("q", "k", "v"),
        T("model.layers.{i}.post_self_attn_layernorm", "blk.{i}.post_attention_norm", "embd"),
        T("model.layers.{i}.post_mlp_layernorm",       "blk.{i}.post_ffw_norm",       "embd"),
        T("model.layers.{i}.mlp.gate_up_proj",         "blk.{i}.ffn_up",              "embd ff+ff"),
        T("model.layers.{i}.mlp.down_proj",            "blk.{i}.ffn_down",            "ff embd"),
    ),
    keys=(*QWEN3.keys, rows.rotated(0.5)),
    fields=(
        rows.SILU,
        rows.ANY_BIAS,
        *rows.PARTIAL_YARN,
    ),
    vocabularies=("glm4 bpe",),
    defaults={"num_key_value_heads": 2, "rms_norm_eps": 1.5625e-7},
    scales_feed_forward=False,
)
