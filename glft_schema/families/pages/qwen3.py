"""Qwen 3."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import F, Family, T

# fmt: off
QWEN3 = Family(
    "qwen3", ("Qwen3ForCausalLM",), "qwen3",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD, *rows.HEAD_NORMS, *rows.FEED_FORWARD, *rows.attention(),
        T("model.layers.{i}.self_attn.o_proj", "blk.{i}.attn_output", "q embd"),
        T("", "cls.output",                    "embd labels", required=False),
    ),
    keys=(
        *rows.SIZES, *rows.HEADS, *rows.RMS,
        *rows.head_lengths(128),
        rows.FILE_TYPE,
    ),
    fields=(
        F("hidden_act", "silu"),
        F("attention_bias", False, rows.ONE_BIAS),
        *rows.SLIDING_QWEN, *rows.YARN
    ),
    vocabularies=("sentencepiece", "bpe"),
    defaults={"num_key_value_heads": 32},
    scales_feed_forward=True,
)
