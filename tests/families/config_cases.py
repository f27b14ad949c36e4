"""Configs with the fields of the rotary embedding in all places, and configs that lack a field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.families.tiny_folders import CONFIGS, FOLDERS

Config = dict[str, Any]
SIZES: Config = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "vocab_size": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MOE = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
OF_TYPES: dict[str, Config] = {  # fields that llama.cpp needs, and sizes as small
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {"head_dim": 8, "query_pre_attn_scalar": 8, "num_hidden_layers": 6},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": {"head_dim": 8, "norm_topk_prob": True, **MOE},
    "qwen2_moe": {"shared_expert_intermediate_size": 32, **MOE},
    "mixtral": {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
    "gpt_oss": {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 32},
}


def _bases() -> Iterator[tuple[str, Config]]:
    for name, (architecture, _) in CONFIGS.items():
        type_ = json.loads((FOLDERS / name / "config.json").read_text())["model_type"]
        yield architecture, {"architectures": [architecture], "model_type": type_, **SIZES, **OF_TYPES.get(type_, {})}


BASES = {name: base for name, base in _bases() if base["model_type"] not in ("gpt2", "bert")}  # which have no such embedding

CONTEXT = "original_max_position_embeddings"
LLAMA3 = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, CONTEXT: 64}
EMBEDDINGS: dict[str, Config] = {
    "nothing": {},
    "theta": {"rope_theta": 5e5},
    "linear": {"rope_theta": 5e5, "type": "linear", "factor": 4.0},
    "yarn": {"rope_theta": 5e5, "type": "yarn", "factor": 4.0, CONTEXT: 64},
    "yarn without context": {"rope_theta": 5e5, "type": "yarn", "factor": 4.0},
    "llama3": {"rope_theta": 5e5, **LLAMA3},
    "llama3 without context": {"rope_theta": 5e5, **{field: value for field, value in LLAMA3.items() if field != CONTEXT}},
    "longrope": {"rope_theta": 5e5, "type": "longrope", "short_factor": [1.5] * 4, "long_factor": [2.5] * 4, CONTEXT: 64},
    "su": {"rope_theta": 5e5, "type": "su", "short_factor": [1.5] * 4, "long_factor": [2.5] * 4, CONTEXT: 64},
    "half": {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
}
TOP = ("rope_theta", "partial_rotary_factor")
OF_SLIDING = {"full_attention": {}, "sliding_attention": {"rope_theta": 2e4}}
SLIDING = {"rope_type": "default", "rope_theta": 2e4}


def _split(fields: Config, *top: str, type_: str = "rope_type") -> tuple[Config, Config]:
    """Returns the fields at the top, and those in an object, with the type under a name."""
    inner = {type_ if field == "type" else field: value for field, value in fields.items() if field not in top}
    return {field: value for field, value in fields.items() if field in top}, inner


def _in(place: str, *top: str, type_: str = "rope_type") -> Callable[[Config], Config]:
    def placed(fields: Config) -> Config:
        outer, inner = _split(fields, *top, type_=type_)
        return outer | ({place: inner} if inner else {})

    return placed


def _by_layer(*top: str, sliding: Config | None = None) -> Callable[[Config], Config]:
    def placed(fields: Config) -> Config:
        outer, inner = _split(fields, *top)
        layers = {"full_attention": {"rope_type": "default"} | inner, "sliding_attention": sliding}
        return outer | {"rope_parameters": {layer: value for layer, value in layers.items() if value is not None}}

    return placed


def _twice(fields: Config) -> Config:
    _, inner = _split(fields)
    return {"rope_scaling": inner, "rope_parameters": inner} | {field: fields[field] for field in TOP if field in fields}


def _beside(fields: Config) -> Config:
    outer, inner = _split(fields, *TOP)
    return {"rope_scaling": inner, "rope_parameters": outer}


def _other(place: str, **other: Any) -> Callable[[Config], Config]:
    def placed(fields: Config) -> Config:
        outer, inner = _split(fields, *TOP)
        return outer | {"rope_scaling": inner} | ({place: other} if place else other)

    return placed


PLACES: dict[str, Callable[[Config], Config]] = {
    "rope_scaling, type":             _in("rope_scaling", *TOP, type_="type"),
    "rope_scaling":                   _in("rope_scaling", *TOP),
    "all in rope_scaling":            _in("rope_scaling"),
    "all in rope_parameters":         _in("rope_parameters"),
    "rope_parameters, type":          _in("rope_parameters", type_="type"),
    "rope_parameters, theta at top":  _in("rope_parameters", "rope_theta"),
    "rope_parameters, partial at top": _in("rope_parameters", "partial_rotary_factor"),
    "context at top":                 _in("rope_scaling", *TOP, CONTEXT),
    "context at top, type":           _in("rope_scaling", *TOP, CONTEXT, type_="type"),
    "rope_parameters, context at top": _in("rope_parameters", *TOP, CONTEXT),
    "default in rope_parameters":     lambda fields: {"rope_parameters": {"rope_type": "default"}} | _split(fields, *TOP)[0],
    "by layer":                       _by_layer(sliding=SLIDING),
    "by layer, theta at top":         _by_layer("rope_theta", sliding={"rope_type": "default"}),
    "by layer, one layer":            _by_layer(),
    "by layer, local at top":         lambda fields: _by_layer("rope_theta")(fields) | {"rope_local_base_freq": 2e4},
    "by layer, rope_scaling":         lambda fields: _in("rope_scaling")(fields) | {"rope_parameters": OF_SLIDING},
    "local at top":                   lambda fields: _in("rope_scaling", *TOP)(fields) | {"rope_local_base_freq": 2e4},
    "twice":                          _twice,
    "theta beside rope_scaling":      _beside,
    "null":                           lambda fields: {"rope_scaling": None, "rope_parameters": None} | _split(fields, *TOP)[0],
    "another theta":                  _other("rope_parameters", rope_theta=3e4),
    "another type":                   _other("rope_parameters", rope_type="default"),
    "another context":                _other("", original_max_position_embeddings=128),
    "another theta by layer":         _other("rope_parameters", full_attention={"rope_theta": 3e4}, sliding_attention=SLIDING),
    "both types":                     _other("rope_scaling", rope_type="default", type="linear"),
}  # fmt: skip


def cases(architecture: str) -> Iterator[tuple[str, Config]]:
    """Yields the name and the config of each case."""
    seen = list[Config]()
    for embedding, fields in EMBEDDINGS.items():
        for place, put in PLACES.items():
            config = BASES[architecture] | put(fields)
            if config not in seen:
                seen.append(config)
                yield f"{embedding}: {place}", config
