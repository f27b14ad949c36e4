"""Seed-OSS of ByteDance."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.page import F
from glft_schema.families.pages.qwen3 import QWEN3

# fmt: off
SEED_OSS = replace(
    QWEN3, arch="seed_oss", architectures=("SeedOssForCausalLM",), model_type="seed_oss",
    tensors=(
        *rows.BLOCKS[:-1], rows.POST_NORMS[1], rows.LM_HEAD, *rows.attention("q", "k", "k"), *rows.FEED_FORWARD,
    ),
    fields=(
        rows.SILU,
        rows.ANY_BIAS,
        F("attention_out_bias", False, rows.ONE_BIAS),
        F("mlp_bias", False),
        *rows.YARN,
    ),
    vocabularies=("bpe",),
    defaults={"num_key_value_heads": 8},
    scales_feed_forward=False,
)
