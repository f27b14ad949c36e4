"""ERNIE 4.5."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.page import F, T
from glft_schema.families.pages.llama import LLAMA
from glft_schema.families.pages.qwen3 import QWEN3

# fmt: off
ERNIE4_5 = replace(
    QWEN3, arch="ernie4_5", architectures=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"), model_type="ernie4_5",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD, *rows.attention(), *rows.FEED_FORWARD,
        T("model.layers.{i}.self_attn.o_proj", "blk.{i}.attn_output", "q embd", bias="optional"),
    ),
    keys=(
        *rows.SIZES, *rows.HEADS[:-1], rows.theta(500_000.0), *rows.RMS,
        *rows.head_lengths(128),
        rows.FILE_TYPE,
    ),
    fields=(
        F("hidden_act", "silu"),
        F("use_bias", False, "llama.cpp adds no biases of the output projection and the feed-forward network"),
        *rows.YARN,
    ),
    vocabularies=LLAMA.vocabularies[:-1],
    defaults={"num_key_value_heads": 2, "rms_norm_eps": 1e-5},
    scales_feed_forward=False,
)
