"""Qwen 3 Next: gated delta nets, gated attention in some blocks, and experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from glft_schema.families import rows
from glft_schema.families.config import Config
from glft_schema.families.operations import MoveRows, NegativeExponential
from glft_schema.families.page import F, K, T
from glft_schema.families.pages.qwen2moe import EXPERTS
from glft_schema.families.pages.qwen35 import ATTENTION, HERE, LENGTHS, NET, NET_KEYS, QWEN35
from glft_schema.storage.dtypes import Array


def parts_of_groups(rows: Array, config: Config) -> list[Array]:
    """Returns the rows of queries, keys and values, and those of gates."""
    groups = config["linear_num_key_heads"]
    values = config["linear_num_value_heads"] // groups
    grouped = rows.reshape(groups, 2 + 2 * values, -1)
    parts = [part.reshape(-1) for part in np.split(grouped, [1, 2, 2 + values], 1)]
    return [np.concatenate(parts[:-1]), parts[-1]]


# fmt: off
QKVZ = "embd k_state+k_state+v_state+v_state"
QWEN3NEXT = replace(
    QWEN35, arch="qwen3next", architectures=("Qwen3NextForCausalLM",), model_type="qwen3_next",
    tensors=(
        *ATTENTION, *EXPERTS,
        T(f"{NET}.in_proj_qkvz", ("blk.{i}.attn_qkv", "blk.{i}.attn_gate"), "", MoveRows(parts_of_groups)),
        T("", "blk.{i}.attn_qkv",   "embd k_state+k_state+v_state", required=False, when=HERE),
        T("", "blk.{i}.attn_gate",  "embd v_state", required=False, when=HERE),
        T("", "blk.{i}.ssm_in",     QKVZ, required=False, when=HERE),
        T(f"{NET}.in_proj_ba",  "blk.{i}.ssm_ba",     "embd rank+rank", when=HERE),
        T(f"{NET}.conv1d",      "blk.{i}.ssm_conv1d", "kernel k_state+k_state+v_state", rows.SQUEEZE, when=HERE),
        T(f"{NET}.dt",          "blk.{i}.ssm_dt",     "rank", bias="only", when=HERE, endings=rows.UNDERSCORED),
        T(f"{NET}.A_log",       "blk.{i}.ssm_a",      "rank", NegativeExponential(), "bare", when=HERE, endings=rows.BARE),
        T(f"{NET}.norm",        "blk.{i}.ssm_norm",   "state", when=HERE),
        T(f"{NET}.out_proj",    "blk.{i}.ssm_out",    "v_state embd", when=HERE),
    ),
    keys=(
        *rows.decoder(sizes=rows.SIZES_OF_EXPERTS),
        *rows.REQUIRED_EXPERTS, *LENGTHS, rows.FILE_TYPE, rows.EXPERT_ROWS,
        K("expert_shared_feed_forward_length", "shared_expert_intermediate_size", 512,
          absent=lambda config: config["intermediate_size"]),
        *NET_KEYS,
    ),
    fields=(
        *QWEN35.fields,
        F("norm_topk_prob", True, "llama.cpp normalizes the weights of the chosen experts"),
        *rows.NO_DENSE_BLOCKS,
    ),
    ignored=f"{QWEN35.ignored} use_sliding_window",
    defaults={"num_key_value_heads": 2},
    limits=rows.SOME_EXPERTS,
)
