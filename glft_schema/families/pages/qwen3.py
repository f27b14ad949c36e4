"""Qwen 3."""

from __future__ import annotations

from glft_schema.families.page import F, Family, K, T
from glft_schema.families.pages.shared import (
    BLOCKS,
    FEED_FORWARD,
    FILE_TYPE,
    HEAD_NORMS,
    HEADS,
    LM_HEAD,
    ONE_BIAS,
    RMS,
    SIZES,
    SLIDING_QWEN,
    YARN,
    attention,
)

# fmt: off
QWEN3 = Family(
    "qwen3", ("Qwen3ForCausalLM",), "qwen3",
    tensors=(
        *BLOCKS, LM_HEAD, *HEAD_NORMS, *FEED_FORWARD, *attention(),
        T("model.layers.{i}.self_attn.o_proj", "blk.{i}.attn_output", "q embd"),
        T("", "cls.output",                    "embd labels", required=False),
    ),
    keys=(
        *SIZES, *HEADS, *RMS,
        K("attention.key_length",             "head_dim", 128),
        K("attention.value_length",           "head_dim", 128),
        FILE_TYPE,
    ),
    fields=(
        F("hidden_act", "silu"),
        F("attention_bias", False, ONE_BIAS),
        *SLIDING_QWEN, *YARN
    ),
    vocabularies=("sentencepiece", "bpe"),
)
