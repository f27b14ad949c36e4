"""Qwen 3 with experts."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import F, Family

# fmt: off
QWEN3MOE = Family(
    "qwen3moe", ("Qwen3MoeForCausalLM",), "qwen3_moe",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD, *rows.attention(), *rows.HEAD_NORMS, *rows.experts(),
    ),
    keys=(
        *rows.decoder(sizes=rows.SIZES_OF_EXPERTS),
        *rows.REQUIRED_EXPERTS, *rows.OWN_HEAD_SIZE, rows.FILE_TYPE, rows.EXPERT_ROWS,
    ),
    fields=(
        rows.SILU,
        F("norm_topk_prob", True, "llama.cpp normalizes the weights of the chosen experts"),
        rows.NO_BIAS,
        F("use_qk_norm", True),
        F("shared_expert_intermediate_size", 0),
        *rows.NO_DENSE_BLOCKS,
        *rows.SLIDING_QWEN, *rows.YARN
    ),
    vocabularies=("bpe",),
    defaults={"num_key_value_heads": 4, "norm_topk_prob": False},
    limits=rows.SOME_EXPERTS,
    scales_feed_forward=True,
)
