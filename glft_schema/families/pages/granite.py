"""Granite 3."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import Bias, F, Family, K
from glft_schema.families.pages.llama import LLAMA

# fmt: off
GRANITE = Family(
    "granite", ("GraniteForCausalLM",), "granite",
    tensors=(
        *LLAMA.tensors, *rows.changed(rows.shared_expert("ff_shared"), name="", when="shared"),
    ),
    keys=(
        *rows.decoder(), rows.FILE_TYPE,
        K("vocab_size",                       "vocab_size", loader="ignored"),
        K("rope.dimension_count",             "", rows.head_size),
        K("attention.scale",                  "attention_multiplier", 1.0,
          absent=lambda config: rows.head_size(config) ** -0.5),
        K("embedding_scale",                  "embedding_multiplier", 1.0),
        K("residual_scale",                   "residual_multiplier", 1.0),
        K("logit_scale",                      "logits_scaling", 1.0, "required"),
        K("expert_shared_feed_forward_length", "", None),
    ),
    fields=(
        rows.SILU,
        rows.ANY_BIAS,
        F("mlp_bias", Bias("blk.0.ffn_up.bias")),
        F("head_dim", rows.head_size, "llama.cpp divides the embedding by the heads"),
        *rows.YARN,
    ),
    vocabularies=LLAMA.vocabularies,
)
