"""AFM of Arcee: Llama with a feed-forward network of two matrices."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.page import F, T
from glft_schema.families.pages.llama import LLAMA, PERMUTED

# fmt: off
ARCEE = replace(
    LLAMA, arch="arcee", architectures=("ArceeForCausalLM",), model_type="arcee",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD, *PERMUTED, *rows.FEED_FORWARD[1:],
        T("model.layers.{i}.self_attn.o_proj", "blk.{i}.attn_output", "q embd"),
        T("", "rope_freqs",                    "pairs", required=False, type="F32"),
    ),
    fields=(
        F("hidden_act", "relu2"),
        F("attention_bias", False, rows.ONE_BIAS),
        F("mlp_bias", False),
        *rows.YARN,
    ),
    defaults={"rms_norm_eps": 1e-5},
    scales_feed_forward=False,
)
