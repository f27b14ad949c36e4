"""Llama, Mistral and models like them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from glft_schema.families import rows
from glft_schema.families.operations import PermuteRows
from glft_schema.families.page import Bias, F, Family, K, T
from glft_schema.families.requirements import limit
from glft_schema.families.rope_factors import llama3_config, llama3_factors

# fmt: off
permuted = partial(rows.attention, "q", "k", "v", PermuteRows("num_attention_heads"), PermuteRows("num_key_value_heads"))
LLAMA = Family(
    "llama", ("LlamaForCausalLM",), "llama",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD, *permuted(bias="optional"),
        *rows.changed(rows.FEED_FORWARD, bias="optional", when="no experts"),
        T("", "blk.{i}.ffn_gate_inp",  "embd experts", when="experts"),
        T("", "blk.{i}.ffn_gate_exps", "embd ff experts", required=False, when="experts"),
        T("", "blk.{i}.ffn_up_exps",   "embd ff experts", when="experts"),
        T("", "blk.{i}.ffn_down_exps", "ff embd experts", when="experts"),
        rows.ROPE_FREQS._replace(when="no longrope"), *rows.changed(rows.LONGROPE, when="longrope"),
    ),
    keys=(
        *rows.decoder(), *rows.HEAD_SIZE, rows.FILE_TYPE,
        K("vocab_size",                       "vocab_size"),
        K("rope.dimension_count",             "head_dim", rows.head_size, absent=None),
    ),
    fields=(
        rows.SILU,
        rows.ANY_BIAS,
        F("mlp_bias", Bias("blk.0.ffn_up.bias")),
        rows.WINDOW, *rows.YARN
    ),
    vocabularies=("sentencepiece", "bpe with bytes", "bpe"),
    limits=(limit("rope.dimension_count", "{key} (the key_length)", lambda n: n["rot"] == n["key"] or not n["heads"]),),
    dropped=("*.rotary_emb.inv_freq",),
    generated=llama3_factors,
    restored=llama3_config,
    ropes=("default", "linear", "yarn", "llama3"),
    scales_feed_forward=True,
)
MISTRAL = replace(
    LLAMA, architectures=("MistralForCausalLM",), model_type="mistral",
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
)
