"""Granite 3 with experts."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.operations import SPLIT_ROWS
from glft_schema.families.page import F, K, T
from glft_schema.families.pages.granite import GRANITE

# fmt: off
EXPERTS = "model.layers.{i}.block_sparse_moe"
GRANITEMOE = replace(
    GRANITE, arch="granitemoe", architectures=("GraniteMoeForCausalLM",), model_type="granitemoe",
    tensors=(
        *(row._replace(name="") if ".mlp." in row.name else row for row in GRANITE.tensors),
        T(f"{EXPERTS}.router.layer",         "blk.{i}.ffn_gate_inp"),
        T(f"{EXPERTS}.input_linear",         rows.GATE_UP, operation=SPLIT_ROWS),
        T(f"{EXPERTS}.output_linear",        rows.DOWN),
        T(f"{EXPERTS}.router",               "blk.{i}.ffn_gate_inp", written=False),
        T(f"{EXPERTS}.experts.gate_up_proj", rows.GATE_UP, operation=SPLIT_ROWS, endings=rows.BARE, written=False),
        T(f"{EXPERTS}.experts.down_proj",    rows.DOWN, endings=rows.BARE, written=False),
    ),
    keys=(
        *rows.decoder(),
        K("expert_count",                     "num_local_experts", 8),
        K("expert_used_count",                "num_experts_per_tok", 2),
        *GRANITE.keys[GRANITE.keys.index(rows.FILE_TYPE):],
    ),
    fields=(
        *GRANITE.fields,
        F("mlp_bias", False),
    ),
)
