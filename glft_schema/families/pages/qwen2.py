"""Qwen 2 and 2.5."""

from __future__ import annotations

from glft_schema.families.page import F, Family, T
from glft_schema.families.pages.shared import (
    BLOCKS,
    FEED_FORWARD,
    FILE_TYPE,
    HEADS,
    LM_HEAD,
    OWN_HEAD_SIZE,
    RMS,
    SIZES,
    SLIDING_QWEN,
    YARN,
    attention,
)

# fmt: off
QWEN2 = Family(
    "qwen2", ("Qwen2ForCausalLM",), "qwen2",
    tensors=(
        *BLOCKS, LM_HEAD._replace(bias="optional"), *FEED_FORWARD, *attention("embd"),
        T("model.layers.{i}.self_attn.o_proj", "blk.{i}.attn_output", "embd embd"),
    ),
    keys=(*SIZES, *HEADS, *RMS, *OWN_HEAD_SIZE, FILE_TYPE),
    fields=(
        F("hidden_act", "silu"),
        *SLIDING_QWEN, *YARN
    ),
    vocabularies=("sentencepiece", "bpe"),
)
