"""ERNIE 4.5."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.page import F
from glft_schema.families.pages.llama import LLAMA
from glft_schema.families.pages.qwen3 import QWEN3

# fmt: off
ERNIE4_5 = replace(
    QWEN3, arch="ernie4_5", architectures=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"), model_type="ernie4_5",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD, *rows.attention(bias="optional"), *rows.FEED_FORWARD,
    ),
    keys=(
        *rows.decoder(500_000.0), *rows.head_lengths(128), rows.FILE_TYPE,
    ),
    fields=(
        rows.SILU,
        F("use_bias", False, "llama.cpp adds no biases of the output projection and the feed-forward network"),
        *rows.YARN,
    ),
    vocabularies=LLAMA.vocabularies[:-1],
    defaults={"num_key_value_heads": 2, "rms_norm_eps": 1e-5},
    scales_feed_forward=False,
)
