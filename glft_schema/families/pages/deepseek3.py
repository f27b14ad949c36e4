"""DeepSeek V3: DeepSeek V2 with expert groups, and a bias for choosing experts."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.page import F, K
from glft_schema.families.pages.deepseek2 import DEEPSEEK2

# fmt: off
OTHERWISE = ("norm_topk_prob", "n_group", "topk_method", "scoring_func")
DEEPSEEK3 = replace(
    DEEPSEEK2, architectures=("DeepseekV3ForCausalLM",), model_type="deepseek_v3",
    keys=tuple({key.key: key for key in (
        K("expert_used_count",         "num_experts_per_tok", 8),
        K("expert_gating_func",        "", 2, absent=1),  # sigmoid
        K("expert_group_count",        "n_group", 8, absent=1),
        K("expert_group_used_count",   "topk_group", 4, absent=1),
        K("leading_dense_block_count", "first_k_dense_replace", 3, absent=0),
        K("expert_shared_count",       "n_shared_experts", 1, "required"),
        K("expert_weights_scale",      "routed_scaling_factor", 2.5, absent=1.0),
        K("expert_weights_norm",       "norm_topk_prob", True, absent=False),
    )}.get(key.key, key) for key in DEEPSEEK2.keys),
    fields=(
        *(field for field in DEEPSEEK2.fields if field.name not in OTHERWISE),
        rows.USED_EXPERTS, F("rope_interleave", True), F("scoring_func", "sigmoid"), F("topk_method", "noaux_tc"),
    ),
    ignored=f"{DEEPSEEK2.ignored} num_nextn_predict_layers num_mtp_layers",
)
