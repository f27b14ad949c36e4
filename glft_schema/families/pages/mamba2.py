"""Mamba 2."""

from __future__ import annotations

from typing import Any

from glft_schema.families import rows
from glft_schema.families.config import Config
from glft_schema.families.operations import AsMatrix, Chain, NegativeExponential
from glft_schema.families.page import F, Family, K, T


def inner_size(config: Config) -> int:
    """Returns the number of columns of all heads."""
    return int(config.get("expand", 2) * config["hidden_size"])


def expansion(size: Any, config: Config) -> Config:
    """Returns the field that `inner_size` reads."""
    return {"expand": size // config["hidden_size"]}


def heads(config: Config) -> int:
    """Returns the number of heads."""
    return inner_size(config) // int(config.get("head_dim", 64))


def head_fields(count: Any, config: Config) -> Config:
    """Returns the number and the size of heads."""
    return {"num_heads": count, "head_dim": inner_size(config) // count}


# fmt: off
DECAY = Chain((AsMatrix(), NegativeExponential()))
NO_LIMIT = [0.0, float("inf")], [0.0, {"__float__": "Infinity"}]  # as transformers 4 and 5 write it
MIXER = "backbone.layers.{i}.mixer"
MAMBA2 = Family(
    "mamba2", ("Mamba2ForCausalLM",), "mamba2",
    tensors=(
        T("backbone.embeddings",       "token_embd",         "embd vocab"),
        T("backbone.norm_f",           "output_norm",        "embd"),
        T("backbone.layers.{i}.norm",  "blk.{i}.attn_norm",  "embd"),
        T(f"{MIXER}.in_proj",          "blk.{i}.ssm_in",     "embd inner+inner+k_state+k_state+rank"),
        T(f"{MIXER}.conv1d",           "blk.{i}.ssm_conv1d", "kernel inner+k_state+k_state", rows.SQUEEZE, "required"),
        T(f"{MIXER}.dt",               "blk.{i}.ssm_dt",     "rank", bias="only", endings=rows.UNDERSCORED),
        T(f"{MIXER}.A_log",            "blk.{i}.ssm_a",      "1 rank", DECAY, "bare", endings=rows.BARE),
        T(f"{MIXER}.D",                "blk.{i}.ssm_d",      "1 rank", AsMatrix(), "bare", endings=rows.BARE),
        T(f"{MIXER}.norm",             "blk.{i}.ssm_norm",   "of_group ssm_groups", AsMatrix("n_groups")),
        T(f"{MIXER}.out_proj",         "blk.{i}.ssm_out",    "inner embd"),
        rows.LM_HEAD,
    ),
    keys=(
        K("context_length",                   "", lambda config: 1 << 20, "required"),
        rows.N_EMBD,
        K("feed_forward_length",              "", 0),
        K("attention.head_count",             "", 0),
        rows.N_LAYER,
        K("ssm.conv_kernel",                  "conv_kernel", 4, "required"),
        K("ssm.inner_size",                   "", inner_size, "required", fields=expansion),
        K("ssm.state_size",                   "state_size", 128, "required"),
        K("ssm.time_step_rank",               "", heads, "required", fields=head_fields),
        K("ssm.group_count",                  "n_groups", 8, "required"),
        K("attention.layer_norm_rms_epsilon", "layer_norm_epsilon", 1e-5, "required"),
        rows.FILE_TYPE,
    ),
    fields=(
        rows.SILU,
        F("use_bias", False, "llama.cpp loads no bias of projections"),
        F("use_conv_bias", True, "llama.cpp requires a bias"),
        rows.choice("time_step_limit", *NO_LIMIT, instead="llama.cpp does not limit time steps"),
    ),
    vocabularies=("bpe",),
    prefix="model.",
    ignored=(
        "expand head_dim num_heads time_step_* rms_norm norm_before_gate residual_in_fp32 rescale_prenorm_residual chunk_size "
        "pad_vocab_size_multiple"
    ),
    ropes=("default",),
)
