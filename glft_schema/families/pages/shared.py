"""Rows that several pages have."""

from __future__ import annotations

from glft_schema.families.config import Config
from glft_schema.families.operations import KEEP, Operation
from glft_schema.families.page import BLOCK_COUNT, K, T


def head_size(config: Config) -> int:
    """Returns the columns of a head."""
    return int(config["hidden_size"]) // int(config["num_attention_heads"])


def head_count(config: Config) -> int:
    """Returns the number of heads."""
    return int(config["num_attention_heads"])


# fmt: off
SIZES = (
    K(BLOCK_COUNT,                            "num_hidden_layers", loader="required"),
    K("context_length",                       "max_position_embeddings", loader="required"),
    K("embedding_length",                     "hidden_size", loader="required"),
    K("feed_forward_length",                  "intermediate_size", loader="required"),
    K("attention.head_count",                 "num_attention_heads", loader="required"),
)
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
HEAD_NORMS = (
    T("model.layers.{i}.self_attn.q_norm",    "blk.{i}.attn_q_norm", "head"),
    T("model.layers.{i}.self_attn.k_norm",    "blk.{i}.attn_k_norm", "head"),
)
FEED_FORWARD = (
    T("model.layers.{i}.mlp.gate_proj",       "blk.{i}.ffn_gate", "embd ff"),
    T("model.layers.{i}.mlp.up_proj",         "blk.{i}.ffn_up",   "embd ff"),
    T("model.layers.{i}.mlp.down_proj",       "blk.{i}.ffn_down", "ff embd"),
)
FUSED = "no attn_qkv.weight"


def attention(
    q: str = "q", k: str = "v", v: str = "v", of_q: Operation = KEEP, of_k: Operation = KEEP, required: bool = True,
    names: str = "model.layers.{i}.self_attn.q_proj model.layers.{i}.self_attn.k_proj model.layers.{i}.self_attn.v_proj",
) -> tuple[T, ...]:
    """Returns the rows of queries, keys and values: in GGUF in one matrix, or else in three."""
    of_queries, of_keys, of_values = names.split() if names else ("", "", "")
    return (
        T("",         "blk.{i}.attn_qkv", f"embd {q}+{k}+{v}", bias="optional", required=False),
        T(of_queries, "blk.{i}.attn_q",   f"embd {q}", of_q, "optional", required, FUSED),
        T(of_keys,    "blk.{i}.attn_k",   f"embd {k}", of_k, "optional", required, FUSED),
        T(of_values,  "blk.{i}.attn_v",   f"embd {v}", KEEP, "optional", required, FUSED),
    )
