"""Phi 3 and 4."""

from __future__ import annotations

import math

from glft_schema.families import rows
from glft_schema.families.config import Config
from glft_schema.families.page import F, Family, K, T
from glft_schema.families.rope_factors import longrope_config, longrope_factors
from glft_schema.tensors.stored_tensor import StoredTensor


def length_ratio(config: Config) -> float:
    """Returns the ratio of the context length to the original one."""
    return float(config["max_position_embeddings"] / config["original_max_position_embeddings"])


def longrope_attention(config: Config) -> float | None:
    """Returns the factor of attention with longrope scaling, or None without it."""
    if "rope.long_factor" not in config:
        return None
    context, scale = config["original_max_position_embeddings"], length_ratio(config)
    return math.sqrt(1 + math.log(scale) / math.log(context)) if scale > 1 else 1.0


def phi3_config(tensors: dict[str, StoredTensor], config: Config) -> Config:
    """Returns the fields of `longrope_config`, with a factor of attention that is not computed."""
    factor, fields = config.pop("rope.attention_factor"), longrope_config(tensors, config)
    if scaling := fields.get("rope_scaling"):
        implied = longrope_attention(config | {"rope.long_factor": scaling["long_factor"]}) or 1.0
        scaling |= {} if math.isclose(factor, implied, rel_tol=1e-6) else {"attention_factor": factor}
    return fields


# fmt: off
PHI3 = Family(
    "phi3", ("Phi3ForCausalLM",), "phi3",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD, *rows.LONGROPE, *rows.attention("embd", required=False, names=""),
        T("model.layers.{i}.self_attn.qkv_proj", "blk.{i}.attn_qkv"),
        T("model.layers.{i}.mlp.gate_up_proj",   "blk.{i}.ffn_up",      "embd ff+ff"),
        T("model.layers.{i}.mlp.down_proj",      "blk.{i}.ffn_down",    "ff embd"),
    ),
    keys=(
        K("rope.scaling.attn_factor",         "rope.attention_factor", longrope_attention, absent=1.0),
        rows.N_CTX,
        K("rope.scaling.original_context_length", "original_max_position_embeddings", 4096,
          absent=lambda config: config["max_position_embeddings"]),
        rows.N_EMBD, rows.N_FF, rows.N_LAYER, rows.N_HEAD, rows.N_HEAD_KV, *rows.RMS, rows.rotated(1.0),
        rows.HEADS[-1], rows.FILE_TYPE,
        K("attention.sliding_window",         "sliding_window", 0),
    ),
    fields=(
        rows.SILU,
        F("full_attn_mod", 1),
        F("interpolate_factor", 1),
        rows.WINDOW,
        F("rope.attention_factor", longrope_attention, "llama.cpp computes it from the lengths"),
        F("rope.factor", length_ratio, "llama.cpp computes it from the lengths"),
    ),
    vocabularies=("phi3 sentencepiece", "bpe"),
    generated=longrope_factors,
    restored=phi3_config,
    ropes=("default", "longrope"),
    ignored="rope.partial_rotary_factor",  # see `rows.rotated`
    defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
)
