"""Gemma 2."""

from __future__ import annotations

from glft_schema.families.config import Config
from glft_schema.families.operations import PlusOne
from glft_schema.families.page import ANY, BLOCK_COUNT, F, Family, K, T
from glft_schema.families.pages.shared import (
    EMBEDDING,
    FEED_FORWARD,
    FILE_TYPE,
    ONE_BIAS,
    RMS,
    YARN,
    attention,
    head_count,
    head_size,
)


def scale(config: Config) -> int:
    """Returns the square of the divisor of attention scores, by llama.cpp."""
    return head_size(config) if config["num_hidden_layers"] == 46 else int(config["head_dim"])


def layers(config: Config) -> list[str]:
    """Returns the kind of attention of each block: every second one is sliding."""
    return ["full_attention" if i % 2 else "sliding_attention" for i in range(config["num_hidden_layers"])]


# fmt: off
PLUS_ONE = PlusOne()
GEMMA2 = Family(
    "gemma2", ("Gemma2ForCausalLM",), "gemma2",
    tensors=(
        EMBEDDING,
        T("model.norm",                                  "output_norm",                 "embd", PLUS_ONE),
        T("model.layers.{i}.input_layernorm",            "blk.{i}.attn_norm",           "embd", PLUS_ONE),
        T("model.layers.{i}.post_attention_layernorm",   "blk.{i}.post_attention_norm", "embd", PLUS_ONE),
        T("model.layers.{i}.pre_feedforward_layernorm",  "blk.{i}.ffn_norm",            "embd", PLUS_ONE),
        T("model.layers.{i}.post_feedforward_layernorm", "blk.{i}.post_ffw_norm",       "embd", PLUS_ONE),
        T("model.layers.{i}.self_attn.o_proj",           "blk.{i}.attn_output",         "q embd"),
        *attention("q", "k", "v"), *FEED_FORWARD,
    ),
    keys=(
        K("context_length",                   "max_position_embeddings", loader="required"),
        K("embedding_length",                 "hidden_size", loader="required"),
        K(BLOCK_COUNT,                        "num_hidden_layers", loader="required"),
        K("feed_forward_length",              "intermediate_size", loader="required"),
        K("attention.head_count",             "num_attention_heads", loader="required"),
        K("attention.head_count_kv",          "num_key_value_heads", head_count),
        *RMS,
        K("attention.key_length",             "head_dim", 256),
        K("attention.value_length",           "head_dim", 256),
        FILE_TYPE,
        K("attn_logit_softcapping",           "attn_logit_softcapping"),
        K("final_logit_softcapping",          "final_logit_softcapping"),
        K("attention.sliding_window",         "sliding_window", 4096),
        K("rope.freq_base_swa",               "", None, "sliding"),
    ),
    fields=(
        F("hidden_activation", "gelu_pytorch_tanh"),
        F("hidden_act", ANY, stated=False),  # of no effect beside hidden_activation
        F("query_pre_attn_scalar", scale),
        F("layer_types", layers),
        F("rope.rope_theta", 10000.0, "llama.cpp has no key of it for this architecture", stated=False),
        F("attention_bias", False, ONE_BIAS, stated=False),
        F("use_bidirectional_attention", False, "llama.cpp attends to earlier tokens only", stated=False),
        F("tie_word_embeddings", True, "llama.cpp uses the token embedding for the output", stated=False),
        *YARN,
    ),
    vocabularies=("gemma sentencepiece",),
    pattern=2,
    window=4096,
    dropped=("lm_head.weight",),
    ropes=("default",),
)
