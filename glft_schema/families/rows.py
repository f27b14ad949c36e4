"""Rows that several pages have."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from glft_schema.errors import FormatError, quote
from glft_schema.families.config import DIMENSIONS, LAYERS, Config, columns_of_head
from glft_schema.families.operations import KEEP, SPLIT_ROWS, MoveRows, PlusOne, SqueezeKernel, Stack, TensorOperation, by_kind
from glft_schema.families.page import ANY, BLOCK_COUNT, MOST_BLOCKS, F, K, T
from glft_schema.families.requirements import limit


def head_size(config: Config) -> int:
    """Returns the number of columns of a head."""
    return int(config["hidden_size"]) // int(config["num_attention_heads"])


def head_count(config: Config) -> int:
    """Returns the number of heads."""
    return int(config["num_attention_heads"])


def expert_rows(config: Config) -> int:
    """Returns the number of rows of an expert's gate that llama.cpp assumes without a key."""
    return int(config["intermediate_size"]) // int(config["num_experts_per_tok"])


def yarn_attention(config: Config) -> float:
    """Returns llama.cpp's factor of attention with yarn, or the config's own with other scaling."""
    return 0.1 * math.log(config["rope.factor"]) + 1 if config["rope.rope_type"] == "yarn" else config["rope.attention_factor"]


def kinds(config: Config, is_full: Callable[[int], object], other: str = LAYERS[1]) -> list[str]:
    """Returns full attention or another kind for each block that llama.cpp can load."""
    return [LAYERS[0] if is_full(i) else other for i in range(min(config["num_hidden_layers"], MOST_BLOCKS))]


def layer_types(config: Config, kind: str, is_full: Callable[[int], object]) -> list[str]:
    """Returns full attention or another kind for each block: the layer_types, or by `is_full`.

    Raises FormatError without both kinds: llama.cpp stops with an assertion.
    """
    stated = config.get("layer_types")
    found = kinds(config, lambda i: i >= len(stated) or stated[i] != kind, kind) if stated else kinds(config, is_full, kind)
    if {*found} != {kind, LAYERS[0]}:
        raise FormatError(f"expected layers of {kind} and {LAYERS[0]}, found {quote(found)}", "layer_types")
    return found


def per_block(value: Any, config: Config) -> list[Any]:
    """Returns the value of a key for each block."""
    return value if isinstance(value, list) else [value] * min(config["num_hidden_layers"], MOST_BLOCKS)


def used_experts(config: Config) -> int:
    """Returns how many experts a token uses, at most those of its groups."""
    of_groups = config["n_routed_experts"] * config["topk_group"] // (config["n_group"] or 1)
    return int(min(config["num_experts_per_tok"], of_groups))


def full_layers(config: Config) -> list[str]:
    """Returns the layer types of a model with full attention in every block."""
    return kinds(config, lambda i: True)


def no_window(config: Config) -> int | None:
    """Returns the sliding window if it has no effect, or None."""
    size: int = config["sliding_window"]
    return size if not 0 < size < config["max_position_embeddings"] else None


def gemma_scale(config: Config, of_27b: int) -> int:
    """Returns the query_pre_attn_scalar that llama.cpp assumes.

    The 27B model, recognized by its number of blocks, has another value.
    """
    return head_size(config) if config["num_hidden_layers"] == of_27b else int(config["head_dim"])


def sliding_layers(config: Config, period: int) -> list[str]:
    """Returns the kind of attention of each block: one in `period` is not sliding.

    A window of 0 is none.
    """
    return kinds(config, lambda i: config["sliding_window"] == 0 or i % period == period - 1)


def some_sliding(config: Config) -> list[str]:
    """Returns the layer types, or others if no layer has the window that the config states."""
    stated: list[str] = config["layer_types"]
    fits = LAYERS[1] in stated or not config.get("sliding_window")
    return stated if fits and {*stated} <= {*LAYERS} else sliding_layers(config, 4)


def rotated_columns(config: Config, default: float) -> int:
    """Returns how many columns of a head are rotated; `default` is a fraction of the head."""
    return int(columns_of_head(config) * config.get("rope.partial_rotary_factor", default))


def rotated(default: float) -> K:
    """Returns the key of the rotated columns, with the fraction that transformers assumes."""
    return K("rope.dimension_count", DIMENSIONS, partial(rotated_columns, default=default), absent=columns_of_head)


def fused_heads(groups: Callable[[Config], int]) -> MoveRows:
    """Returns the operation on a matrix with the heads of one group after another, of which there
    are as many as heads of keys."""
    return MoveRows(lambda rows, config: [np.concatenate(by_kind(groups(config), head_count(config), rows))])


def choice(name: str, *values: Any, instead: str = "") -> F:
    """Returns a field with equivalent values, of which a config that we write has the first."""
    return F(name, lambda config: config[name] if config.get(name) in values else values[0], instead)


def head_lengths(default: int) -> tuple[K, ...]:
    """Returns the keys of the sizes of a head, with transformers' default."""
    names = ("attention.key_length", "attention.value_length")
    return tuple(K(name, "head_dim", default, absent=head_size) for name in names)


def theta(default: float) -> K:
    """Returns the key of the rotary embedding's base, with transformers' default."""
    return K("rope.freq_base", "rope.rope_theta", default, absent=10_000.0)


FULL = "llama.cpp attends to all tokens: the logits of texts longer than the window differ"
ONE_BIAS = "llama.cpp loads no bias of the output projection"
OWN_OUTPUT = "llama.cpp requires an output matrix"
EXPERTS_EVERYWHERE = "llama.cpp expects experts in every block"
SOME_EXPERTS = (limit("expert_count", "at least 1", lambda n: n["experts"] > 0),)

# fmt: off
INTERPOLATION = (
    F("rope.beta_fast",        32, "llama.cpp interpolates between other dims"),
    F("rope.beta_slow",        1, "llama.cpp interpolates between other dims"),
    F("rope.extrapolation_factor", 1, "llama.cpp extrapolates fully"),
    F("rope.truncate",         True, "llama.cpp rounds the dims between which yarn interpolates"),
)
ALL_COLUMNS = (
    F("rope.partial_rotary_factor", 1.0, "llama.cpp rotates all columns"),
    F("rope.sliding_attention.rope_type", "default", "llama.cpp scales no positions of sliding windows"),
    F("rope.sliding_attention.partial_rotary_factor", 1.0, "llama.cpp rotates all columns"),
)
NO_TEMPERATURE = F("rope.llama_4_scaling_beta", 0, "llama.cpp does not scale attention by the position")
SCALED_POSITIONS = (
    F("rope.attention_factor", yarn_attention, "llama.cpp computes it from the factor"),
    F("rope.mscale",           lambda config: (config.get("rope.mscale_all_dim") is None and config["rope.mscale"]) or 1,
      "llama.cpp computes the factor of attention from the factor"),
    F("rope.mscale_all_dim",   0, "llama.cpp computes the factor of attention from the factor"),
    NO_TEMPERATURE, *INTERPOLATION,
)
YARN = (*SCALED_POSITIONS, *ALL_COLUMNS)
PARTIAL_YARN = (*SCALED_POSITIONS, F("rope.partial_rotary_factor", ANY))  # of models that rotate some columns, see `rotated`
NO_DENSE_BLOCKS = (
    F("decoder_sparse_step",   1, EXPERTS_EVERYWHERE),
    F("mlp_only_layers",       [], EXPERTS_EVERYWHERE),
)
LOCAL_EXPERTS = F("num_local_experts", lambda config: config["num_experts"])  # in config.json, of which num_experts is an alias
WINDOW = F("sliding_window", no_window, FULL, warns=True)
SLIDING_QWEN = (
    F("use_sliding_window",    False, FULL, warns=True),
    F("layer_types",           full_layers, FULL, warns=True),
    F("sliding_window",        ANY),  # used only with use_sliding_window
    F("max_window_layers",     ANY),
)
SIZES = (
    K(BLOCK_COUNT,                            "num_hidden_layers", loader="required"),
    K("context_length",                       "max_position_embeddings", loader="required"),
    K("embedding_length",                     "hidden_size", loader="required"),
    K("feed_forward_length",                  "intermediate_size", loader="required"),
    K("attention.head_count",                 "num_attention_heads", loader="required"),
)
SIZES_OF_EXPERTS = tuple(key._replace(loader="read") if key.key == "feed_forward_length" else key for key in SIZES)
SCALING = (
    K("rope.scaling.type",                    "rope.scaling.rope_type", None),
    K("rope.scaling.factor",                  "rope.scaling.factor", None),
    K("rope.scaling.original_context_length", "rope.scaling.original_max_position_embeddings", None),
    K("rope.scaling.yarn_ext_factor",         "rope.scaling.extrapolation_factor", None, loader="ignored"),
    K("rope.scaling.yarn_attn_factor",        "rope.scaling.attention_factor", None, loader="ignored"),
    K("rope.scaling.yarn_beta_fast",          "rope.scaling.beta_fast", None, loader="ignored"),
    K("rope.scaling.yarn_beta_slow",          "rope.scaling.beta_slow", None, loader="ignored"),
)
HEADS = (
    K("attention.head_count_kv",              "num_key_value_heads", head_count),
    *SCALING,
    K("rope.freq_base",                       "rope.rope_theta", 10000.0),
)
SECTIONS = (  # of positions of images and videos; for texts, all positions are the same
    *HEADS[:-1],
    K("rope.dimension_sections",              "", lambda config: [*config["rope.mrope_section"], 0][:4], "required"),
    HEADS[-1],
)
RMS = (
    K("attention.layer_norm_rms_epsilon",     "rms_norm_eps", 1e-6, loader="required"),
)
HEAD_SIZE = (
    K("attention.key_length",                 "head_dim", head_size),
    K("attention.value_length",               "head_dim", head_size),
)
OWN_HEAD_SIZE = (  # only if the config has it
    K("attention.key_length",                 "head_dim", None),
    K("attention.value_length",               "head_dim", None),
)
FILE_TYPE = K("general.file_type",            "", 0)  # set later; here for the order of keys

EMBEDDING = T("model.embed_tokens",           "token_embd",  "embd vocab")
LM_HEAD = T("lm_head",                        "output",      "embd vocab", required=False)
BLOCKS = (
    EMBEDDING,
    T("model.norm",                           "output_norm", "embd"),
    T("model.layers.{i}.input_layernorm",     "blk.{i}.attn_norm", "embd"),
    T("model.layers.{i}.post_attention_layernorm", "blk.{i}.ffn_norm", "embd"),
)
POST_NORMS = (  # of blocks that normalize the results of their parts
    T("model.norm",                           "output_norm", "embd"),
    T("model.layers.{i}.post_attention_layernorm",   "blk.{i}.post_attention_norm", "embd"),
    T("model.layers.{i}.post_feedforward_layernorm", "blk.{i}.post_ffw_norm",       "embd"),
)
HEAD_NORMS = (
    T("model.layers.{i}.self_attn.q_norm",    "blk.{i}.attn_q_norm", "head"),
    T("model.layers.{i}.self_attn.k_norm",    "blk.{i}.attn_k_norm", "head"),
)
FEED_FORWARD = (
    T("model.layers.{i}.mlp.gate_proj",       "blk.{i}.ffn_gate", "embd ff"),
    T("model.layers.{i}.mlp.up_proj",         "blk.{i}.ffn_up",   "embd ff"),
    T("model.layers.{i}.mlp.down_proj",       "blk.{i}.ffn_down", "ff embd"),
)
NEXTN = (  # of blocks that predict further tokens
    T("model.layers.{i}.eh_proj",             "blk.{i}.nextn.eh_proj", "embd+embd embd", when="nextn"),
    T("model.layers.{i}.enorm",               "blk.{i}.nextn.enorm", "embd", when="nextn"),
    T("model.layers.{i}.hnorm",               "blk.{i}.nextn.hnorm", "embd", when="nextn"),
    T("model.layers.{i}.embed_tokens",        "blk.{i}.nextn.embed_tokens", "embd vocab", required=False, when="nextn"),
    T("model.layers.{i}.shared_head.head",    "blk.{i}.nextn.shared_head_head", "embd vocab", required=False, when="nextn"),
    T("model.layers.{i}.shared_head.norm",    "blk.{i}.nextn.shared_head_norm", "embd", required=False, when="nextn"),
)
USED_EXPERTS = F("num_experts_per_tok", used_experts, "llama.cpp chooses other experts outside the groups of a token")
FUSED = "no attn_qkv.weight"
SQUEEZE = SqueezeKernel()
BARE = ("", "")  # endings of names
GELU = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh")  # llama.cpp approximates the first as the others are


def experts(
    ff: str = "ff_exp", module: str = "model.layers.{i}.mlp", names: str = "gate_proj up_proj down_proj",
    count: str = "num_experts",
) -> tuple[T, ...]:
    """Returns the rows of a router and its experts, which transformers' modules stack."""
    gate, up, down = (f"{module}.experts.{{part}}.{name}" for name in names.split())
    gguf = {"gate": "blk.{i}.ffn_gate_exps", "up": "blk.{i}.ffn_up_exps", "down": "blk.{i}.ffn_down_exps"}
    own = "model.layers.{i}.mlp"
    return (
        T(f"{module}.gate",             "blk.{i}.ffn_gate_inp", "embd experts"),
        T(gate,                         gguf["gate"], f"embd {ff} experts", Stack(count)),
        T(up,                           gguf["up"],   f"embd {ff} experts", Stack(count)),
        T(down,                         gguf["down"], f"{ff} embd experts", Stack(count)),
        *(T(f"{module}.switch_mlp.{key}_proj", name, written=None) for key, name in gguf.items()),  # of MLX
        *([T(f"{own}.gate",             "blk.{i}.ffn_gate_inp", written=False)] if module != own else []),
        T(f"{own}.experts.down_proj",   gguf["down"], endings=BARE, written=False),
        T(f"{own}.experts.gate_up_proj", (gguf["gate"], gguf["up"]), operation=SPLIT_ROWS, endings=BARE, written=False),
    )


def shared_expert(ff: str, module: str = "model.layers.{i}.mlp.shared_experts") -> tuple[T, ...]:
    """Returns the rows of an expert for all tokens."""
    return (
        T(f"{module}.gate_proj", "blk.{i}.ffn_gate_shexp", f"embd {ff}"),
        T(f"{module}.up_proj", "blk.{i}.ffn_up_shexp", f"embd {ff}"),
        T(f"{module}.down_proj", "blk.{i}.ffn_down_shexp", f"{ff} embd"),
    )


def beside_dense(*rows: T, module: str = "mlp") -> tuple[T, ...]:
    """Returns the rows of a feed-forward network in dense blocks, and these rows in the others."""
    dense = (row._replace(name=row.name.replace("mlp", module), when="dense") for row in FEED_FORWARD)
    return (*dense, *(row._replace(when=f"no dense, {row.when}".removesuffix(", ")) for row in rows))


def correction(module: str) -> T:
    """Returns the row of numbers that choose experts and do not weight them."""
    return T(f"{module}.e_score_correction", "blk.{i}.exp_probs_b", "experts", bias="only", endings=("", "_bias"))


def attention(
    q: str = "q", k: str = "v", v: str = "v", of_q: TensorOperation = KEEP, of_k: TensorOperation = KEEP, required: bool = True,
    names: str = "model.layers.{i}.self_attn.q_proj model.layers.{i}.self_attn.k_proj model.layers.{i}.self_attn.v_proj",
    when: str = "",
) -> tuple[T, ...]:
    """Returns the rows of queries, keys and values, which GGUF stores as one matrix or three."""
    of_queries, of_keys, of_values = names.split() if names else ("", "", "")
    apart = f"{when}, {FUSED}" if when else FUSED
    return (
        T("",         "blk.{i}.attn_qkv", f"embd {q}+{k}+{v}", bias="optional", required=False, when=when),
        T(of_queries, "blk.{i}.attn_q",   f"embd {q}", of_q, "optional", required, apart),
        T(of_keys,    "blk.{i}.attn_k",   f"embd {k}", of_k, "optional", required, apart),
        T(of_values,  "blk.{i}.attn_v",   f"embd {v}", KEEP, "optional", required, apart),
    )


PLUS_ONE = PlusOne()
GEMMA = (
    EMBEDDING,
    T("model.norm",                                  "output_norm",                 "embd", PLUS_ONE),
    T("model.layers.{i}.input_layernorm",            "blk.{i}.attn_norm",           "embd", PLUS_ONE),
    T("model.layers.{i}.post_attention_layernorm",   "blk.{i}.post_attention_norm", "embd", PLUS_ONE),
    T("model.layers.{i}.pre_feedforward_layernorm",  "blk.{i}.ffn_norm",            "embd", PLUS_ONE),
    T("model.layers.{i}.post_feedforward_layernorm", "blk.{i}.post_ffw_norm",       "embd", PLUS_ONE),
    T("model.layers.{i}.self_attn.o_proj",           "blk.{i}.attn_output",         "q embd"),
    *attention("q", "k", "v"), *FEED_FORWARD,
)
