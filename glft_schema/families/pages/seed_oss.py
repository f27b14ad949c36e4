"""Seed-OSS of ByteDance."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.page import Bias, F, T
from glft_schema.families.pages.qwen3 import QWEN3

# fmt: off
SEED_OSS = replace(
    QWEN3, arch="seed_oss", architectures=("SeedOssForCausalLM",), model_type="seed_oss",
    tensors=(
        *rows.BLOCKS[:-1], rows.LM_HEAD, *rows.attention("q", "k", "k"), *rows.FEED_FORWARD,
        T("model.layers.{i}.post_attention_layernorm", "blk.{i}.post_attention_norm", "embd"),
        T("model.layers.{i}.self_attn.o_proj",         "blk.{i}.attn_output",         "q embd"),
    ),
    fields=(
        F("hidden_act", "silu"),
        F("attention_bias", Bias("blk.0.attn_q.bias")),
        F("attention_out_bias", False, rows.ONE_BIAS),
        F("mlp_bias", False),
        *rows.YARN,
    ),
    vocabularies=("bpe",),
    defaults={"num_key_value_heads": 8},
    scales_feed_forward=False,
)
