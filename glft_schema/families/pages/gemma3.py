"""Gemma 3, its text model."""

from __future__ import annotations

from glft_schema.families.config import Config
from glft_schema.families.operations import PlusOne
from glft_schema.families.page import BLOCK_COUNT, F, Family, K, T
from glft_schema.families.pages.shared import (
    EMBEDDING,
    FEED_FORWARD,
    FILE_TYPE,
    LM_HEAD,
    ONE_BIAS,
    RMS,
    SCALING,
    YARN,
    attention,
    head_size,
)


def scale(config: Config) -> int:
    """Returns the square of the divisor of attention scores, by llama.cpp."""
    return head_size(config) if config["num_hidden_layers"] == 62 else int(config["head_dim"])


def layers(config: Config) -> list[str]:
    """Returns the kind of attention of each block: one in six is not sliding."""
    return ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(config["num_hidden_layers"])]


# fmt: off
PLUS_ONE = PlusOne()
GEMMA3 = Family(
    "gemma3", ("Gemma3ForCausalLM",), "gemma3_text",
    tensors=(
        EMBEDDING, LM_HEAD,
        T("model.norm",                                  "output_norm",                 "embd", PLUS_ONE),
        T("model.layers.{i}.input_layernorm",            "blk.{i}.attn_norm",           "embd", PLUS_ONE),
        T("model.layers.{i}.post_attention_layernorm",   "blk.{i}.post_attention_norm", "embd", PLUS_ONE),
        T("model.layers.{i}.pre_feedforward_layernorm",  "blk.{i}.ffn_norm",            "embd", PLUS_ONE),
        T("model.layers.{i}.post_feedforward_layernorm", "blk.{i}.post_ffw_norm",       "embd", PLUS_ONE),
        T("model.layers.{i}.self_attn.q_norm",           "blk.{i}.attn_q_norm",         "head", PLUS_ONE),
        T("model.layers.{i}.self_attn.k_norm",           "blk.{i}.attn_k_norm",         "head", PLUS_ONE),
        T("model.layers.{i}.self_attn.o_proj",           "blk.{i}.attn_output",         "q embd"),
        *attention("q", "k", "v"), *FEED_FORWARD,
    ),
    keys=(
        K(BLOCK_COUNT,                        "num_hidden_layers", loader="required"),
        K("context_length",                   "max_position_embeddings", 131072, "required"),
        K("embedding_length",                 "hidden_size", loader="required"),
        K("feed_forward_length",              "intermediate_size", loader="required"),
        K("attention.head_count",             "num_attention_heads", 8, "required"),
        K("attention.head_count_kv",          "num_key_value_heads", 4),
        *SCALING,
        K("rope.freq_base",                   "rope.rope_theta", 1_000_000.0),
        K("rope.freq_base_swa",               "rope.swa_theta", 10_000.0, "sliding"),
        *RMS,
        K("attention.key_length",             "head_dim", 256),
        K("attention.value_length",           "head_dim", 256),
        FILE_TYPE,
        K("final_logit_softcapping",          "final_logit_softcapping", None),
        K("attention.sliding_window",         "sliding_window", 4096),
    ),
    fields=(
        F("hidden_activation", "gelu_pytorch_tanh"),
        F("query_pre_attn_scalar", scale),
        F("sliding_window_pattern", 6),
        F("_sliding_window_pattern", 6, stated=False),
        F("layer_types", layers),
        F("attention_bias", False, ONE_BIAS, stated=False),
        F("attn_logit_softcapping", None, "llama.cpp has no cap of attention scores", stated=False),
        F("use_bidirectional_attention", False, "llama.cpp attends to earlier tokens only", stated=False),
        *YARN
    ),
    vocabularies=("gemma sentencepiece", "bpe"),
    pattern=6,
)
