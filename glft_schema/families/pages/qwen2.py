"""Qwen 2 and 2.5."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import Family

# fmt: off
QWEN2 = Family(
    "qwen2", ("Qwen2ForCausalLM",), "qwen2",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD._replace(bias="optional"), *rows.FEED_FORWARD, *rows.attention("embd"),
    ),
    keys=(*rows.decoder(), *rows.OWN_HEAD_SIZE, rows.FILE_TYPE),
    fields=(
        rows.SILU,
        *rows.SLIDING_QWEN, *rows.YARN
    ),
    vocabularies=("sentencepiece", "bpe"),
    ignored="attention_bias",  # the model has biases of queries, keys and values
    defaults={"num_key_value_heads": 32},
)
