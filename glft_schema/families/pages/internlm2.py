"""InternLM 2 and 2.5, whose code is in the folder: Llama with one matrix for all heads."""

from __future__ import annotations

from collections.abc import Sequence

from glft_schema.families import rows
from glft_schema.families.config import Config
from glft_schema.families.operations import MoveRows, by_kind, pairs
from glft_schema.families.page import F, Family, T
from glft_schema.families.pages.llama import LLAMA
from glft_schema.storage.dtypes import Array


def heads(rows: Array, config: Config) -> Sequence[Array]:
    """Returns the rows of queries, keys and values, those of queries and keys in pairs."""
    queries, keys = config["num_attention_heads"], config["num_key_value_heads"]
    of_q, of_k, of_v = by_kind(keys, queries, rows)
    return [pairs(queries, of_q), pairs(keys, of_k), of_v]


# fmt: off
INTERNLM2 = Family(
    "internlm2", ("InternLM2ForCausalLM",), "internlm2",
    tensors=(
        T("model.tok_embeddings",                "token_embd",           "embd vocab"),
        T("output",                              "output",               "embd vocab"),
        T("model.norm",                          "output_norm",          "embd"),
        T("model.layers.{i}.attention_norm",     "blk.{i}.attn_norm",    "embd"),
        T("model.layers.{i}.ffn_norm",           "blk.{i}.ffn_norm",     "embd"),
        *rows.attention("embd", module="model.layers.{i}.attention", names="", output="wo"),
        T("model.layers.{i}.attention.wqkv",     tuple(f"blk.{{i}}.attn_{name}" for name in "qkv"), operation=MoveRows(heads)),
        *rows.feed_forward("model.layers.{i}.feed_forward", "w1 w3 w2"),
    ),
    keys=(*rows.decoder(), rows.FILE_TYPE),
    fields=(
        rows.SILU,
        F("bias", False, rows.ONE_BIAS),
        rows.OWN_OUTPUT,
        F("rope.partial_rotary_factor", 1.0),
    ),
    vocabularies=LLAMA.vocabularies[:-1],
    ropes=("default", "linear", "dynamic"),
    ignored="attn_implementation rope.factor",  # the factor of dynamic scaling
)
