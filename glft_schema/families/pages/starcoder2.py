"""StarCoder 2."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.page import F, Family, K, T

# fmt: off
STARCODER2 = Family(
    "starcoder2", ("Starcoder2ForCausalLM",), "starcoder2",
    tensors=(
        rows.EMBEDDING, rows.LM_HEAD,
        *rows.changed(rows.BLOCKS[1:], bias="required"), *rows.attention("embd", bias="required"),
        T("model.layers.{i}.mlp.c_fc",        "blk.{i}.ffn_up",   "embd ff", bias="required"),
        T("model.layers.{i}.mlp.c_proj",      "blk.{i}.ffn_down", "ff embd", bias="required"),
    ),
    keys=(
        *rows.SIZES, *rows.HEADS,
        K("attention.layer_norm_epsilon",     "norm_epsilon", 1e-5, "required"),
        rows.FILE_TYPE,
    ),
    fields=(
        F("hidden_act", "gelu_pytorch_tanh"),
        F("use_bias", True, "llama.cpp requires biases"),
        F("norm_type", "layer_norm"),
        F("mlp_type", "default"),
        rows.WINDOW, *rows.YARN,
    ),
    vocabularies=("bpe",),
    ignored="activation_function layer_norm_epsilon scale_attn_weights",  # of StarCoder
    defaults={"num_key_value_heads": 2},
)
