"""GPT-NeoX, Pythia and models like them."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.config import Config
from glft_schema.families.page import F, Family, K, T
from glft_schema.tensors.stored_tensor import StoredTensor


def own_names(tensors: dict[str, StoredTensor], config: Config) -> Config:
    """Returns the fields of the rotary embedding by the names of this class."""
    return {"rotary_pct": config.pop("partial_rotary_factor"), "rotary_emb_base": config.pop("rope_theta")}


# fmt: off
BLOCK, GATHER = "gpt_neox.layers.{i}.", rows.fused_heads(rows.head_count)
GPTNEOX = Family(
    "gptneox", ("GPTNeoXForCausalLM",), "gpt_neox",
    tensors=(
        T("gpt_neox.embed_in",                  "token_embd",          "embd vocab"),
        T("gpt_neox.final_layer_norm",          "output_norm",         "embd",                 bias="required"),
        T("embed_out",                          "output",              "embd vocab"),
        rows.LM_HEAD._replace(dims="", written=False),
        T(BLOCK + "input_layernorm",            "blk.{i}.attn_norm",   "embd",                 bias="required"),
        T(BLOCK + "post_attention_layernorm",   "blk.{i}.ffn_norm",    "embd",                 bias="required"),
        T(BLOCK + "attention.query_key_value",  "blk.{i}.attn_qkv",    "embd embd+v+v", GATHER, "required"),
        T(BLOCK + "attention.dense",            "blk.{i}.attn_output", "embd embd",            bias="required"),
        T(BLOCK + "mlp.dense_h_to_4h",          "blk.{i}.ffn_up",      "embd ff",              bias="required"),
        T(BLOCK + "mlp.dense_4h_to_h",          "blk.{i}.ffn_down",    "ff embd",              bias="required"),
    ),
    keys=(
        *rows.SIZES, rows.rotated(0.25), *rows.HEADS[1:],
        K("use_parallel_residual",              "use_parallel_residual", True, "required"),
        rows.LAYER_NORM, rows.FILE_TYPE,
    ),
    fields=(
        rows.choice("hidden_act", *rows.GELU),
        F("attention_bias", True, "llama.cpp requires biases"),
        rows.OWN_OUTPUT,
        *rows.PARTIAL_YARN,
    ),
    vocabularies=("bpe",),
    dropped=("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"),
    names={"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"},
    restored=own_names,
    ignored="is_decoder",
)
