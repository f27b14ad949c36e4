"""Falcon 7B and 40B, and Falcon 2."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.config import Config
from glft_schema.families.page import F, Family, K, T
from glft_schema.families.pages.llama import LLAMA
from glft_schema.tensors.stored_tensor import StoredTensor


def groups(config: Config) -> int:
    """Returns the number of heads of keys. Only the newer layout reads num_kv_heads."""
    if config.get("new_decoder_architecture"):
        return int(config.get("num_kv_heads") or config["num_attention_heads"])
    return 1 if config.get("multi_query", True) else rows.head_count(config)


def newer_layout(tensors: dict[str, StoredTensor], config: Config) -> Config:
    """Returns the fields of the newer layout, which can state the older ones."""
    norms = 2 if "blk.0.attn_norm_2.weight" in tensors else 1
    return {"new_decoder_architecture": True, "num_kv_heads": config.pop(GROUPS), "num_ln_in_parallel_attn": norms}


# fmt: off
BLOCK, GROUPS = "transformer.h.{i}.", "own.groups"  # a field of this page alone
TWO_NORMS = "attn_norm_2.weight"
FALCON = Family(
    "falcon", ("FalconForCausalLM",), "falcon",
    tensors=(
        T("transformer.word_embeddings",            "token_embd",          "embd vocab"), rows.LM_HEAD,
        T("transformer.ln_f",                       "output_norm",         "embd", bias="required"),
        T(BLOCK + "input_layernorm",                "blk.{i}.attn_norm",   "embd", bias="required", when=f"no {TWO_NORMS}"),
        T(BLOCK + "ln_mlp",                         "blk.{i}.attn_norm",   "embd", bias="required", when=TWO_NORMS),
        T(BLOCK + "ln_attn",                        "blk.{i}.attn_norm_2", "embd", bias="optional", required=False),
        T(BLOCK + "self_attention.query_key_value", "blk.{i}.attn_qkv",    "embd embd+v+v", rows.fused_heads(groups)),
        T(BLOCK + "self_attention.dense",           "blk.{i}.attn_output", "embd embd"),
        T(BLOCK + "mlp.dense_h_to_4h",              "blk.{i}.ffn_up",      "embd ff"),
        T(BLOCK + "mlp.dense_4h_to_h",              "blk.{i}.ffn_down",    "ff embd"),
    ),
    keys=(
        K("context_length",                   "max_position_embeddings", 2048, "required"),
        K("tensor_data_layout",               "", "jploski", "ignored"),
        K("feed_forward_length",              "ffn_hidden_size", lambda config: 4 * int(config["hidden_size"]), "required"),
        rows.N_EMBD, rows.N_LAYER, rows.N_HEAD,
        K("attention.head_count_kv",          GROUPS, groups, absent=rows.head_count),
        *rows.HEADS[1:],
        K("attention.layer_norm_epsilon",     "layer_norm_epsilon", 1e-5, "required"),
        rows.FILE_TYPE,
    ),
    fields=(
        rows.choice("activation", *rows.GELU),
        F("alibi", False, "llama.cpp rotates queries and keys"),
        F("bias", False, "llama.cpp loads no biases of matrices"),
        F("parallel_attn", True, "llama.cpp computes attention and feed-forward network in parallel"),
        *rows.YARN,
    ),
    vocabularies=("bpe",),
    limits=LLAMA.limits,
    restored=newer_layout,
    ignored=(
        "new_decoder_architecture multi_query num_kv_heads num_ln_in_parallel_attn "  # see `groups`
        "apply_residual_connection_post_layernorm ff_factor"
    ),
)
