"""Command R, R+ and Aya."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import F, Family, K, T

# fmt: off
COMMAND_R = Family(
    "command-r", ("CohereForCausalLM",), "cohere",
    tensors=(
        *rows.BLOCKS[:-1], *rows.attention("embd"), *rows.FEED_FORWARD,
        T("model.layers.{i}.self_attn.q_norm", "blk.{i}.attn_q_norm", "head heads", when="deep"),
        T("model.layers.{i}.self_attn.k_norm", "blk.{i}.attn_k_norm", "head groups", when="deep"),
    ),
    keys=(
        *rows.SIZES,
        K("context_length",                    "model_max_length", lambda config: config["max_position_embeddings"]),
        *rows.heads(500_000.0), rows.LAYER_NORM, rows.FILE_TYPE,
        K("logit_scale",                       "logit_scale", 0.0625, absent=1.0),
        K("rope.scaling.type",                 "rope.scaling.rope_type", "none", absent=None),
    ),
    fields=(
        rows.SILU,
        F("use_qk_norm", lambda config: config["num_hidden_layers"] >= 64, "llama.cpp has these norms from 64 blocks on"),
        rows.NO_BIAS,
        rows.TIED_OUTPUT,
        *rows.YARN,
    ),
    vocabularies=("bpe",),
    dropped=("lm_head.weight",),
)
