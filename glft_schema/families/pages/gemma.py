"""Gemma, the first generation."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.page import SCALED, F, T
from glft_schema.families.pages.gemma2 import GEMMA2

# fmt: off
NORM = "model.layers.{i}.post_attention_layernorm"
GEMMA = replace(
    GEMMA2, arch="gemma", architectures=("GemmaForCausalLM",), model_type="gemma",
    tensors=(
        *(row for row in rows.GEMMA if "layernorm" not in row.name or "input" in row.name),
        T(NORM, "blk.{i}.ffn_norm", "embd", rows.PLUS_ONE),
    ),
    keys=(*GEMMA2.keys[:10], *rows.HEADS[1:]),
    fields=(
        rows.choice("hidden_act", "gelu_pytorch_tanh", "gelu"),  # this class treats both as gelu_pytorch_tanh
        F("hidden_activation", "gelu_pytorch_tanh"),
        *(field for field in GEMMA2.fields if field.name in ("attention_bias", "use_bidirectional_attention")),
        rows.TIED_OUTPUT,
        *rows.YARN,
    ),
    pattern=0,
    window=0,
    ropes=SCALED,
    defaults={"num_key_value_heads": 16},
)
