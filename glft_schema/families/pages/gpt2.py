"""GPT-2."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.operations import Transpose
from glft_schema.families.page import BLOCK_COUNT, F, Family, K, T

# fmt: off
FLIP = Transpose()
GPT2 = Family(
    "gpt2", ("GPT2LMHeadModel",), "gpt2",
    tensors=(
        T("wte",               "token_embd",          "embd vocab"),
        T("wpe",               "position_embd",       "embd ctx"),
        T("ln_f",              "output_norm",         "embd",              bias="required"),
        T("h.{i}.ln_1",        "blk.{i}.attn_norm",   "embd",              bias="required"),
        T("h.{i}.ln_2",        "blk.{i}.ffn_norm",    "embd",              bias="required"),
        T("h.{i}.attn.c_attn", "blk.{i}.attn_qkv",    "embd embd+v+v", FLIP, "required"),
        T("h.{i}.attn.c_proj", "blk.{i}.attn_output", "embd embd",     FLIP, "required"),
        T("h.{i}.mlp.c_fc",    "blk.{i}.ffn_up",      "embd ff",       FLIP, "required"),
        T("h.{i}.mlp.c_proj",  "blk.{i}.ffn_down",    "ff embd",       FLIP, "required"),
        T("lm_head",           "output",              "embd vocab",    required=False),
    ),
    keys=(
        K(BLOCK_COUNT,                        "n_layer", loader="required"),
        K("context_length",                   "n_positions", loader="required"),
        K("embedding_length",                 "n_embd", loader="required"),
        K("feed_forward_length",              "n_inner", lambda config: 4 * int(config["n_embd"]), "required"),
        K("attention.head_count",             "n_head", loader="required"),
        K("attention.layer_norm_epsilon",     "layer_norm_epsilon", 1e-5, "required"),
        rows.FILE_TYPE,
    ),
    fields=(
        F("activation_function", "gelu_new"),
        F("scale_attn_weights", True, "llama.cpp divides scores by the square root of the head size"),
        F("scale_attn_by_inverse_layer_idx", False, "llama.cpp does not divide scores by the layer"),
    ),
    vocabularies=("bpe",),
    dropped=("*.attn.bias", "*.attn.masked_bias"),
    prefix="transformer.",
    ignored="reorder_and_upcast_attn summary_* n_ctx",  # the same scores, in float32
    ropes=("default",),
)
