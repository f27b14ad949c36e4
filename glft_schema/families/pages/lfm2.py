"""LFM2: short convolutions, with attention in some blocks."""

from __future__ import annotations

from typing import Any

from glft_schema.families import rows
from glft_schema.families.config import Config
from glft_schema.families.page import F, Family, K, T


def layer_types(config: Config) -> list[str]:
    """Returns the kind of each block."""
    full = config.get("full_attn_idxs")
    return rows.layer_types(config, "conv", lambda i: full is None or i in full)


def kv_heads(config: Config) -> list[int]:
    """Returns the number of key and value heads of each block: 0 if it has a convolution."""
    return [config["num_key_value_heads"] * (kind != "conv") for kind in layer_types(config)]


def layers(counts: Any, config: Config) -> Config:
    """Returns the fields that `kv_heads` reads."""
    counts = rows.per_block(counts, config)
    return {"num_key_value_heads": max(counts), "layer_types": ["full_attention" if count else "conv" for count in counts]}


def feed_forward_rows(config: Config) -> int:
    """Returns the number of rows of a gate, which LFM2 adjusts to a multiple."""
    size: int = config.get("block_ff_dim") or config.get("intermediate_size", 12288)
    if not config.get("block_auto_adjust_ff_dim", True):
        return size
    multiple: int = config.get("block_multiple_of", 256)
    return -(-int(config.get("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3)) // multiple) * multiple


# fmt: off
CONV = "no attends"  # in GGUF, blocks with convolutions have no heads
LFM2 = Family(
    "lfm2", ("Lfm2ForCausalLM",), "lfm2",
    tensors=(
        rows.EMBEDDING, rows.LM_HEAD,
        T("model.embedding_norm",                   "token_embd_norm",            "embd"),
        T("model.layers.{i}.operator_norm",         "blk.{i}.attn_norm",          "embd"),
        T("model.layers.{i}.ffn_norm",              "blk.{i}.ffn_norm",           "embd"),
        *rows.feed_forward("model.layers.{i}.feed_forward", "w1 w3 w2"),
        T("model.layers.{i}.conv.conv",             "blk.{i}.shortconv.conv",     "conv embd", rows.SQUEEZE, when=CONV),
        T("model.layers.{i}.conv.in_proj",          "blk.{i}.shortconv.in_proj",  "embd embd+embd+embd", when=CONV),
        T("model.layers.{i}.conv.out_proj",         "blk.{i}.shortconv.out_proj", "embd embd", when=CONV),
        T("model.layers.{i}.self_attn.q_layernorm", "blk.{i}.attn_q_norm",        "head",      when="attends"),
        T("model.layers.{i}.self_attn.k_layernorm", "blk.{i}.attn_k_norm",        "head",      when="attends"),
        T("", "dense_2", "embd out", bias="optional", required=False),
        *rows.attention("embd", "kv_here", "kv_here", output="out_proj", when="attends"),
    ),
    keys=(
        rows.N_LAYER,
        K("context_length",                   "max_position_embeddings", 128_000, "required"),
        rows.N_EMBD, rows.N_HEAD,
        K("attention.head_count_kv",          "", kv_heads, absent=rows.head_count, fields=layers),
        *rows.SCALING, rows.theta(1_000_000.0), rows.FILE_TYPE,
        K("vocab_size",                       "vocab_size"),
        K("shortconv.l_cache",                "conv_L_cache", 3, "required"),
        K("attention.layer_norm_rms_epsilon", "norm_eps", 1e-5, "required"),
        K("feed_forward_length",              "", feed_forward_rows, "required",
          fields=lambda size, _: {"intermediate_size": size, "block_auto_adjust_ff_dim": False}),
    ),
    fields=(
        F("layer_types", layer_types),
        F("head_dim", rows.head_size, "llama.cpp expects a square output projection"),
        F("conv_bias", False, "llama.cpp loads no bias of convolutions"),
        F("theta", lambda config: config.get("rope.rope_theta", config.get("rope_theta"))),  # transformers 4 prefers it
        *rows.YARN,
    ),
    vocabularies=("bpe",),
    ignored="num_key_value_heads full_attn_idxs intermediate_size num_heads use_pos_enc block_* conv_dim* conv_use_xavier_init",
    defaults={"num_key_value_heads": 8},
    scales_feed_forward=True,
)
