"""ERNIE 4.5 with experts."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.config import BLOCKS, Config
from glft_schema.families.page import EXPERT_COUNT, F, K
from glft_schema.families.pages.ernie4_5 import ERNIE4_5


def shared_rows(config: Config) -> int | None:
    """Returns the number of rows of the shared experts, which are one; None without them."""
    return config["moe_intermediate_size"] * config["moe_num_shared_experts"] or None


def last_block(config: Config) -> int:
    """Returns the last block with experts, -1 for the last one of all."""
    return -1 if config.get("moe_layer_end_index", -1) == -1 else config[BLOCKS] - 1


# fmt: off
MLP = "model.layers.{i}.mlp"
ROUTER, GATE, *OTHERS = rows.experts(count="moe_num_experts")
ERNIE4_5_MOE = replace(
    ERNIE4_5, arch="ernie4_5-moe", architectures=("Ernie4_5_MoeForCausalLM",), model_type="ernie4_5_moe",
    tensors=(
        *(row for row in ERNIE4_5.tensors if row not in rows.FEED_FORWARD),
        *rows.beside_dense(
            ROUTER, GATE._replace(required=False), *OTHERS, rows.correction(f"{MLP}.moe_statics")._replace(required=False),
        ),
        rows.correction(f"{MLP}.gate.moe_statics")._replace(dims="", written=False),
        *rows.changed(rows.shared_expert("ff_shared"), when="no dense, shared"),
    ),
    keys=(
        *rows.decoder(500_000.0), *rows.OWN_HEAD_SIZE, rows.FILE_TYPE,
        K(EXPERT_COUNT,                       "moe_num_experts", 64),
        K("expert_used_count",                "moe_k", 6),
        K("interleave_moe_layer_step",        "moe_layer_interval", 1, "required"),
        K("leading_dense_block_count",        "moe_layer_start_index", 1, absent=0),
        K("expert_feed_forward_length",       "moe_intermediate_size", 1536, "required"),
        K("expert_shared_count",              "moe_num_shared_experts", 2, "ignored"),
        K("expert_shared_feed_forward_length", "", shared_rows),
    ),
    fields=(
        *ERNIE4_5.fields,
        F("moe_layer_interval", 1, rows.EXPERTS_EVERYWHERE),
        F("moe_layer_end_index", last_block, rows.EXPERTS_EVERYWHERE),
        F("moe_norm_min", 1e-12),
    ),
    limits=rows.SOME_EXPERTS,
    dropped=("model.mtp_*",),
    ignored="use_rmsnorm moe_gate moe_capacity moe_use_aux_free num_nextn_predict_layers",
    defaults={"num_key_value_heads": 4, "rms_norm_eps": 1e-5},
)
