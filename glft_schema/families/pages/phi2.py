"""Phi 1, 1.5 and 2."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import F, Family, T

# fmt: off
PHI2 = Family(
    "phi2", ("PhiForCausalLM",), "phi",
    tensors=(
        rows.EMBEDDING, rows.LM_HEAD._replace(required=True, bias="required"),
        T("model.final_layernorm",               "output_norm",         "embd",      bias="required"),
        T("model.layers.{i}.input_layernorm",    "blk.{i}.attn_norm",   "embd",      bias="required"),
        *rows.attention("embd", output="dense", bias="required"),
        T("model.layers.{i}.mlp.fc1",            "blk.{i}.ffn_up",      "embd ff",   bias="required"),
        T("model.layers.{i}.mlp.fc2",            "blk.{i}.ffn_down",    "ff embd",   bias="required"),
    ),
    keys=(
        *rows.SIZES, *rows.HEADS, rows.LAYER_NORM, rows.rotated(0.5), rows.FILE_TYPE,
    ),
    fields=(
        F("hidden_act", "gelu_new"),
        F("qk_layernorm", False, "llama.cpp loads no norms of queries and keys"),
        rows.OWN_OUTPUT,
        *rows.PARTIAL_YARN,
    ),
    vocabularies=("bpe",),
)
