"""Command R7B, A, and Tiny Aya."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.page import F, K
from glft_schema.families.pages.command_r import COMMAND_R

# fmt: off
COHERE2 = replace(
    COMMAND_R, arch="cohere2", architectures=("Cohere2ForCausalLM",), model_type="cohere2",
    tensors=tuple(row for row in COMMAND_R.tensors if row.when != "deep"),
    keys=(
        *rows.SIZES, *rows.HEADS, *rows.HEAD_SIZE, rows.LAYER_NORM, rows.FILE_TYPE,
        K("logit_scale",                       "logit_scale", 0.0625, "required"),
        K("attention.sliding_window",          "sliding_window", loader="required"),
        K("vocab_size",                        "vocab_size"),
        K("rope.dimension_count",              "", rows.head_size),
        K("rope.freq_base_swa",                "", None),
        K("attention.sliding_window_pattern",  "", None),  # also read if the window is 0
        K("rope.scaling.type",                 "rope.scaling.rope_type", "none", absent=None),
    ),
    fields=(
        *(field for field in COMMAND_R.fields if field.name != "use_qk_norm"),
        F("use_qk_norm", False, "this architecture has no norms of queries and keys"),
        rows.sliding(4),
        *(F(name, 4) for name in ("sliding_window_pattern", "_sliding_window_pattern", "layer_switch")),
    ),
    ignored="order_of_interleaved_layers position_embedding_type rotary_pct use_embedding_* use_gated_* use_parallel_*",
    pattern=4,
)
