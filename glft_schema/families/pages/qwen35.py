"""Qwen 3.5: gated delta nets, and gated attention in some blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from glft_schema.errors import FormatError, quote
from glft_schema.families import rows
from glft_schema.families.config import Config
from glft_schema.families.operations import Chain, MoveRows, NegativeExponential
from glft_schema.families.page import F, Family, K, T
from glft_schema.families.requirements import limit
from glft_schema.storage.dtypes import Array

KIND, EPSILON = "linear_attention", 1e-6


def layer_types(config: Config) -> list[str]:
    """Returns the kind of each block."""
    return rows.layer_types(config, KIND, lambda i: (i + 1) % config["full_attention_interval"] == 0)


def recurrent_layers(config: Config) -> list[bool]:
    """Returns whether each block has a delta net.

    Raises FormatError if rms_norm_eps differs from the epsilon of queries and keys in the nets,
    which is constant in transformers: llama.cpp has one epsilon for all norms.
    """
    if (epsilon := config["rms_norm_eps"]) != EPSILON:
        raise FormatError(f"expected {EPSILON}, as llama.cpp assumes, found {quote(epsilon)}", "rms_norm_eps")
    return [kind == KIND for kind in layer_types(config)]


def layers(recurrent: Any, config: Config) -> Config:
    """Returns the field that `recurrent_layers` reads."""
    return {"layer_types": [KIND if flag else "full_attention" for flag in rows.per_block(recurrent, config)]}


def value_heads(rows: Array, config: Config) -> list[Array]:
    """Returns the rows of value heads, the first of each key head before all second ones."""
    groups = config["linear_num_key_heads"]
    return [rows.reshape(groups, config["linear_num_value_heads"] // groups, -1).swapaxes(0, 1).reshape(-1)]


def after_keys(rows: Array, config: Config) -> list[Array]:
    """Returns the rows of queries and keys, and those of `value_heads`."""
    first = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    return [np.concatenate([rows[:first], *value_heads(rows[first:], config)])]


def inner_size(config: Config) -> int:
    """Returns the number of columns of all value heads."""
    return int(config["linear_key_head_dim"] * config["linear_num_value_heads"])


def sections(config: Config) -> list[int]:
    """Returns how many pairs of columns rotate by time, height and width, which are equal in texts.

    Raises FormatError if there are more pairs, which llama.cpp would not rotate, or if the sum
    exceeds the head: llama.cpp stops with an assertion.
    """
    stated, pairs = config.get("rope.mrope_section", [11, 11, 10]), rows.rotated_columns(config, 0.25) // 2
    if sum(stated) > config["head_dim"] or any((pairs - i + 2) // 3 > section for i, section in enumerate(stated)):
        problem = f"expected sections for {pairs} pairs of columns of {config['head_dim']}, found {quote(stated)}"
        raise FormatError(problem, "mrope_section")
    return [*stated, 0]


# fmt: off
HERE, ELSEWHERE = "recurrent", "no recurrent"
VALUES, AFTER_KEYS = MoveRows(value_heads), MoveRows(after_keys)
DECAY, KERNEL = Chain((VALUES, NegativeExponential())), Chain((rows.SQUEEZE, AFTER_KEYS))
NET = "model.layers.{i}.linear_attn"
ATTENTION = (
    *rows.GEMMA[:4],  # the embedding and norms
    rows.LM_HEAD, *rows.changed(rows.NEXTN, name=""),
    *rows.changed(rows.HEAD_NORMS, operation=rows.PLUS_ONE, when=ELSEWHERE),
    *rows.attention("q+q", "k", "v", o="q", when=ELSEWHERE),
)
LENGTHS = rows.head_lengths(256)
NET_KEYS = (
    K("ssm.conv_kernel",                  "linear_conv_kernel_dim", 4, "required"),
    K("ssm.state_size",                   "linear_key_head_dim", 128, "required"),
    K("ssm.group_count",                  "linear_num_key_heads", 16, "required"),
    K("ssm.time_step_rank",               "linear_num_value_heads", 32, "required"),
    K("ssm.inner_size",                   "", inner_size, "required"),
    K("full_attention_interval",          "full_attention_interval", 4),
    K("attention.recurrent_layers",       "", recurrent_layers, fields=layers),
    rows.rotated(0.25),
)
QWEN35 = Family(
    "qwen35", ("Qwen3_5ForCausalLM",), "qwen3_5_text",
    tensors=(
        *ATTENTION, *rows.FEED_FORWARD,
        T(f"{NET}.in_proj_qkv", "blk.{i}.attn_qkv",   "embd k_state+k_state+v_state", AFTER_KEYS, required=False, when=HERE),
        T(f"{NET}.in_proj_z",   "blk.{i}.attn_gate",  "embd v_state", VALUES, required=False, when=HERE),
        T(f"{NET}.in_proj_b",   "blk.{i}.ssm_beta",   "embd rank", VALUES, when=HERE),
        T(f"{NET}.in_proj_a",   "blk.{i}.ssm_alpha",  "embd rank", VALUES, when=HERE),
        T(f"{NET}.conv1d",      "blk.{i}.ssm_conv1d", "kernel k_state+k_state+v_state", KERNEL, when=HERE),
        T(f"{NET}.dt",          "blk.{i}.ssm_dt",     "rank", VALUES, "only", when=HERE, endings=rows.UNDERSCORED),
        T(f"{NET}.A_log",       "blk.{i}.ssm_a",      "rank", DECAY, "bare", when=HERE, endings=rows.BARE),
        T(f"{NET}.norm",        "blk.{i}.ssm_norm",   "state", when=HERE),
        T(f"{NET}.out_proj",    "blk.{i}.ssm_out",    "v_state embd", MoveRows(value_heads, -1, 3), when=HERE),
        T("", "cls.output",     "embd out", bias="optional", required=False),
    ),
    keys=(
        *rows.decoder(), *LENGTHS, rows.FILE_TYPE, *NET_KEYS,
        K("rope.dimension_sections",          "", sections, "required"),
    ),
    fields=(
        rows.SILU,
        rows.NO_BIAS,
        F("layer_types", layer_types),
        F("linear_value_head_dim", lambda config: config["linear_key_head_dim"], "llama.cpp has one size for both heads"),
        *rows.PARTIAL_YARN,
    ),
    vocabularies=("bpe",),
    defaults={"num_key_value_heads": 4},
    dropped=("mtp.*",),
    ignored="rope.mrope_* mtp_* attn_output_gate mlp_only_layers mamba_ssm_dtype",
    limits=(limit("rope.dimension_sections", "4 numbers", lambda n: n.count("rope.dimension_sections") in (0, 4)),),
    scales_feed_forward=True,
)
