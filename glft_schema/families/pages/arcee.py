"""AFM of Arcee: Llama with a feed-forward network of two matrices."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.page import F
from glft_schema.families.pages.llama import LLAMA, permuted

# fmt: off
ARCEE = replace(
    LLAMA, arch="arcee", architectures=("ArceeForCausalLM",), model_type="arcee",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD, *permuted(), *rows.FEED_FORWARD[1:], rows.ROPE_FREQS,
    ),
    fields=(
        F("hidden_act", "relu2"),
        rows.NO_BIAS,
        F("mlp_bias", False),
        *rows.YARN,
    ),
    defaults={"rms_norm_eps": 1e-5},
    scales_feed_forward=False,
)
