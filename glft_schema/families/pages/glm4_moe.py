"""GLM 4.5 and later, with blocks that predict further tokens."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import Bias, F, Family, K

# fmt: off
GLM4_MOE = Family(
    "glm4moe", ("Glm4MoeForCausalLM",), "glm4_moe",
    tensors=(
        *rows.BLOCKS[:-1], rows.POST_NORMS[1], rows.LM_HEAD, *rows.attention("q", "k", "v"),
        *rows.changed(rows.HEAD_NORMS, required=False),
        *rows.beside_dense(
            *rows.experts(count="n_routed_experts"), rows.correction("model.layers.{i}.mlp.gate"),
            *rows.shared_expert("ff_count"),
        ),
        *rows.NEXTN,
    ),
    keys=(
        *rows.decoder(),
        K("expert_count",                     "n_routed_experts", 128),
        K("expert_used_count",                "num_experts_per_tok", 8),
        K("expert_group_count",               "n_group", 1),
        K("expert_group_used_count",          "topk_group", 1),
        *rows.OWN_HEAD_SIZE, rows.FILE_TYPE, rows.rotated(0.5),
        K("expert_feed_forward_length",       "moe_intermediate_size", 1408, "required"),
        K("expert_shared_count",              "n_shared_experts", 1, "required"),
        K("leading_dense_block_count",        "first_k_dense_replace", 1, absent=0),
        K("expert_gating_func",               "", 2),  # sigmoid
        K("expert_weights_scale",             "routed_scaling_factor", 1.0),
        K("expert_weights_norm",              "norm_topk_prob", True, absent=False),
        K("nextn_predict_layers",             "num_nextn_predict_layers", None, absent=0),
    ),
    fields=(
        rows.SILU, rows.USED_EXPERTS, rows.ANY_BIAS,
        F("use_qk_norm", Bias("blk.0.attn_q_norm.weight")),
        *rows.PARTIAL_YARN,
    ),
    vocabularies=("glm bpe",),
    limits=rows.SOME_EXPERTS,
    defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5},
)
