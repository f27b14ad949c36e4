"""Qwen 3."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import Family, T

# fmt: off
QWEN3 = Family(
    "qwen3", ("Qwen3ForCausalLM",), "qwen3",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD, *rows.HEAD_NORMS, *rows.FEED_FORWARD, *rows.attention(),
        T("", "cls.output",                    "embd labels", required=False),
    ),
    keys=(
        *rows.decoder(), *rows.head_lengths(128), rows.FILE_TYPE,
    ),
    fields=(
        rows.SILU,
        rows.NO_BIAS,
        *rows.SLIDING_QWEN, *rows.YARN
    ),
    vocabularies=("sentencepiece", "bpe"),
    defaults={"num_key_value_heads": 32},
    scales_feed_forward=True,
)
