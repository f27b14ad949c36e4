"""Rows that several pages have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import numpy as np

from glft_schema.errors import FormatError, quote
from glft_schema.families.config import DIMENSIONS, LAYERS, Config, columns_of_head
from glft_schema.families.operations import KEEP, SPLIT_ROWS, MoveRows, PlusOne, SqueezeKernel, Stack, TensorOperation, by_kind
from glft_schema.families.page import ANY, BLOCK_COUNT, MOST_BLOCKS, Bias, F, Family, K, T
from glft_schema.families.requirements import limit
from glft_schema.tensors.stored_tensor import StoredTensor


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


def gemma_scale(of_27b: int) -> F:
    """Returns the field of the query_pre_attn_scalar that llama.cpp assumes.

    The 27B model, recognized by its number of blocks, has another value.
    """
    return F(
        "query_pre_attn_scalar",
        lambda config: head_size(config) if config["num_hidden_layers"] == of_27b else int(config["head_dim"]),
    )


def sliding_layers(config: Config, period: int) -> list[str]:
    """Returns the kind of attention of each block: one in `period` is not sliding.

    A window of 0 is none.
    """
    return kinds(config, lambda i: config["sliding_window"] == 0 or i % period == period - 1)


def sliding(period: int) -> F:
    """Returns the field of `sliding_layers`."""
    return F("layer_types", partial(sliding_layers, period=period))


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


def restored_as(family: Family) -> Callable[[dict[str, StoredTensor], Config], Config]:
    """Returns a function that restores the class of another family, for configs without its own."""
    return lambda tensors, config: {"architectures": [*family.architectures], "model_type": family.model_type}


FULL = "llama.cpp attends to all tokens: the logits of texts longer than the window differ"
ONE_BIAS = "llama.cpp loads no bias of the output projection"
EXPERTS_EVERYWHERE = "llama.cpp expects experts in every block"
SOME_EXPERTS = (limit("expert_count", "at least 1", lambda n: n["experts"] > 0),)

# fmt: off
SILU = F("hidden_act", "silu")
NO_BIAS = F("attention_bias", False, ONE_BIAS)
ANY_BIAS = F("attention_bias", Bias("blk.0.attn_q.bias"))
OWN_OUTPUT = F("tie_word_embeddings", False, "llama.cpp requires an output matrix")
TIED_OUTPUT = F("tie_word_embeddings", True, "llama.cpp uses the token embedding for the output")
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
N_LAYER, N_CTX, N_EMBD, N_FF, N_HEAD = SIZES  # as llama.cpp names them
N_HEAD_KV = K("attention.head_count_kv",      "num_key_value_heads", head_count)
SIZES_OF_EXPERTS = (N_LAYER, N_CTX, N_EMBD, N_FF._replace(loader="read"), N_HEAD)
EXPERTS = (
    K("expert_count",                         "num_experts"),
    K("expert_used_count",                    "num_experts_per_tok"),
)
REQUIRED_EXPERTS = tuple(key._replace(loader="required") for key in EXPERTS)
EXPERT_ROWS = K("expert_feed_forward_length", "moe_intermediate_size", absent=expert_rows)
SCALING = (
    K("rope.scaling.type",                    "rope.scaling.rope_type", None),
    K("rope.scaling.factor",                  "rope.scaling.factor", None),
    K("rope.scaling.original_context_length", "rope.scaling.original_max_position_embeddings", None),
    K("rope.scaling.yarn_ext_factor",         "rope.scaling.extrapolation_factor", None, loader="ignored"),
    K("rope.scaling.yarn_attn_factor",        "rope.scaling.attention_factor", None, loader="ignored"),
    K("rope.scaling.yarn_beta_fast",          "rope.scaling.beta_fast", None, loader="ignored"),
    K("rope.scaling.yarn_beta_slow",          "rope.scaling.beta_slow", None, loader="ignored"),
)
HEADS = (N_HEAD_KV, *SCALING, theta(10_000.0))
SECTIONS = (  # of positions of images and videos; for texts, all positions are the same
    *HEADS[:-1],
    K("rope.dimension_sections",              "", lambda config: [*config["rope.mrope_section"], 0][:4], "required"),
    HEADS[-1],
)
RMS = (
    K("attention.layer_norm_rms_epsilon",     "rms_norm_eps", 1e-6, loader="required"),
)
LAYER_NORM = K("attention.layer_norm_epsilon", "layer_norm_eps", 1e-5, "required")
HEAD_SIZE = (
    K("attention.key_length",                 "head_dim", head_size),
    K("attention.value_length",               "head_dim", head_size),
)
OWN_HEAD_SIZE = (  # only if the config has it
    K("attention.key_length",                 "head_dim", None),
    K("attention.value_length",               "head_dim", None),
)
FILE_TYPE = K("general.file_type",            "", 0)  # set later; here for the order of keys


def heads(base: float) -> tuple[K, ...]:
    """Returns the keys of heads and of the rotary embedding, with transformers' default base."""
    return (*HEADS[:-1], theta(base))


def decoder(base: float = 10_000.0, sizes: tuple[K, ...] = SIZES) -> tuple[K, ...]:
    """Returns the keys of sizes, heads, rotary embedding and RMS norms; see `heads`."""
    return (*sizes, *heads(base), *RMS)


BARE, UNDERSCORED = ("", ""), ("", "_bias")  # endings of names
GATE_UP, DOWN = ("blk.{i}.ffn_gate_exps", "blk.{i}.ffn_up_exps"), "blk.{i}.ffn_down_exps"


def changed(rows: Iterable[T], **fields: Any) -> tuple[T, ...]:
    """Returns rows with other values of some fields."""
    return tuple(row._replace(**fields) for row in rows)


def feed_forward(
    module: str = "model.layers.{i}.mlp", names: str = "gate_proj up_proj down_proj", ff: str = "ff", kind: str = "",
) -> tuple[T, ...]:
    """Returns the rows of a feed-forward network with a gate."""
    gate, up, down = (f"{module}.{name}" for name in names.split())
    return (
        T(gate,                               f"blk.{{i}}.ffn_gate{kind}", f"embd {ff}"),
        T(up,                                 f"blk.{{i}}.ffn_up{kind}",   f"embd {ff}"),
        T(down,                               f"blk.{{i}}.ffn_down{kind}", f"{ff} embd"),
    )


EMBEDDING = T("model.embed_tokens",           "token_embd",  "embd vocab")
LM_HEAD = T("lm_head",                        "output",      "embd vocab", required=False)
OWN_LM_HEAD = LM_HEAD._replace(required=True)
ROPE_FREQS, *LONGROPE = (
    T("", name, "pairs", required=False, type="F32") for name in ("rope_freqs", "rope_factors_long", "rope_factors_short")
)
BLOCKS = (
    EMBEDDING,
    T("model.norm",                           "output_norm", "embd"),
    T("model.layers.{i}.input_layernorm",     "blk.{i}.attn_norm", "embd"),
    T("model.layers.{i}.post_attention_layernorm", "blk.{i}.ffn_norm", "embd"),
)
POST_NORMS = (  # norms after attention and feed-forward
    T("model.norm",                           "output_norm", "embd"),
    T("model.layers.{i}.post_attention_layernorm",   "blk.{i}.post_attention_norm", "embd"),
    T("model.layers.{i}.post_feedforward_layernorm", "blk.{i}.post_ffw_norm",       "embd"),
)
HEAD_NORMS = (
    T("model.layers.{i}.self_attn.q_norm",    "blk.{i}.attn_q_norm", "head"),
    T("model.layers.{i}.self_attn.k_norm",    "blk.{i}.attn_k_norm", "head"),
)
FEED_FORWARD = feed_forward()
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
GELU = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh")  # llama.cpp approximates the first as the others are


def experts(
    ff: str = "ff_exp", module: str = "model.layers.{i}.mlp", names: str = "gate_proj up_proj down_proj",
    count: str = "num_experts",
) -> tuple[T, ...]:
    """Returns the rows of a router and its experts, which transformers' modules stack."""
    parts = feed_forward(f"{module}.experts.{{part}}", names, ff, "_exps")
    own = "model.layers.{i}.mlp"
    return (
        T(f"{module}.gate",              "blk.{i}.ffn_gate_inp", "embd experts"),
        *(row._replace(dims=f"{row.dims} experts", operation=Stack(count)) for row in parts),
        *changed(feed_forward(f"{module}.switch_mlp", kind="_exps"), dims="", written=None),  # of MLX
        *([T(f"{own}.gate",              "blk.{i}.ffn_gate_inp", written=False)] if module != own else []),
        T(f"{own}.experts.down_proj",    DOWN, endings=BARE, written=False),
        T(f"{own}.experts.gate_up_proj", GATE_UP, operation=SPLIT_ROWS, endings=BARE, written=False),
    )


def shared_expert(ff: str, module: str = "model.layers.{i}.mlp.shared_experts") -> tuple[T, ...]:
    """Returns the rows of an expert for all tokens."""
    return feed_forward(module, ff=ff, kind="_shexp")


def beside_dense(*rows: T, module: str = "model.layers.{i}.mlp") -> tuple[T, ...]:
    """Returns the rows of a feed-forward network in dense blocks, and these rows in the others."""
    others = (row._replace(when=f"no dense, {row.when}".removesuffix(", ")) for row in rows)
    return (*changed(feed_forward(module), when="dense"), *others)


def correction(module: str) -> T:
    """Returns the row of the bias that is added to scores for choosing experts only."""
    return T(f"{module}.e_score_correction", "blk.{i}.exp_probs_b", "experts", bias="only", endings=UNDERSCORED)


def attention(
    q: str = "q", k: str = "v", v: str = "v", of_q: TensorOperation = KEEP, of_k: TensorOperation = KEEP, required: bool = True,
    module: str = "model.layers.{i}.self_attn", names: str = "q_proj k_proj v_proj", output: str = "o_proj", o: str = "",
    bias: Literal["none", "optional", "required"] = "none", when: str = "",
) -> tuple[T, ...]:
    """Returns the rows of queries, keys and values, which GGUF stores as one matrix or three, and
    of the output projection.

    Args:
        q: the rows of queries.
        k: the rows of keys.
        v: the rows of values.
        of_q: the operation on queries.
        of_k: the operation on keys.
        required: whether the loader refuses a model without one matrix or three.
        module: the start of all names.
        names: of queries, keys and values; empty if the folder has other matrices.
        output: the name of the output projection.
        o: its columns; by default, as many as `q`.
        bias: of the output projection.
        when: see `T`.
    """
    of_queries, of_keys, of_values = (f"{module}.{name}" for name in names.split()) if names else ("", "", "")
    apart = f"{when}, {FUSED}" if when else FUSED
    return (
        T("",         "blk.{i}.attn_qkv", f"embd {q}+{k}+{v}", bias="optional", required=False, when=when),
        T(of_queries, "blk.{i}.attn_q",   f"embd {q}", of_q, "optional", required, apart),
        T(of_keys,    "blk.{i}.attn_k",   f"embd {k}", of_k, "optional", required, apart),
        T(of_values,  "blk.{i}.attn_v",   f"embd {v}", KEEP, "optional", required, apart),
        T(f"{module}.{output}", "blk.{i}.attn_output", f"{o or q} embd", bias=bias, when=when),
    )


PLUS_ONE = PlusOne()
GEMMA = (
    EMBEDDING,
    T("model.norm",                                  "output_norm",                 "embd", PLUS_ONE),
    T("model.layers.{i}.input_layernorm",            "blk.{i}.attn_norm",           "embd", PLUS_ONE),
    T("model.layers.{i}.post_attention_layernorm",   "blk.{i}.post_attention_norm", "embd", PLUS_ONE),
    T("model.layers.{i}.pre_feedforward_layernorm",  "blk.{i}.ffn_norm",            "embd", PLUS_ONE),
    T("model.layers.{i}.post_feedforward_layernorm", "blk.{i}.post_ffw_norm",       "embd", PLUS_ONE),
    *attention("q", "k", "v"), *FEED_FORWARD,
)
