"""MiniMax M2."""

from __future__ import annotations

from functools import partial

from glft_schema.families import rows
from glft_schema.families.config import columns_of_head
from glft_schema.families.page import F, Family, K, T

# fmt: off
MINIMAX_M2 = Family(
    "minimax-m2", ("MiniMaxM2ForCausalLM",), "minimax_m2",
    tensors=(
        *rows.BLOCKS, rows.OWN_LM_HEAD,
        T("model.layers.{i}.self_attn.q_norm", "blk.{i}.attn_q_norm", "q"),
        T("model.layers.{i}.self_attn.k_norm", "blk.{i}.attn_k_norm", "k"),
        *rows.attention(), *rows.experts("ff", "model.layers.{i}.block_sparse_moe", "w1 w3 w2"),
        rows.correction("model.layers.{i}.block_sparse_moe"),
        rows.correction("model.layers.{i}.mlp")._replace(dims="", written=False),
    ),
    keys=(
        *rows.decoder(5_000_000.0),
        K("expert_count",                     "num_experts", 256),
        K("expert_used_count",                "num_experts_per_tok", 8),
        K("expert_gating_func",               "", 2),  # sigmoid
        *rows.head_lengths(128), rows.FILE_TYPE,
        K("expert_feed_forward_length",       "intermediate_size", loader="required"),
        K("rope.dimension_count",             "rotary_dim", partial(rows.rotated_columns, default=1.0), absent=columns_of_head),
    ),
    fields=(
        rows.SILU, rows.LOCAL_EXPERTS, rows.OWN_OUTPUT,
        F("rope.partial_rotary_factor", lambda config: config["rotary_dim"] / config["head_dim"]),
        F("scoring_func", "sigmoid"), F("qk_norm_type", "per_layer"), F("shared_intermediate_size", 0),
        *(F(name, True) for name in ("use_qk_norm", "use_routing_bias")),
        *rows.SCALED_POSITIONS,
    ),
    vocabularies=("bpe",),
    ignored=(
        "attn_type_list mlp_intermediate_size sliding_window shared_moe_mode use_mtp num_mtp_modules mtp_transformer_layers "
        "layernorm_*_beta"
    ),
    defaults={"num_key_value_heads": 8},
)
