"""Nomic Embed, without experts."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.operations import JoinRows
from glft_schema.families.page import F, Family, T
from glft_schema.families.pages.bert import BERT

# fmt: off
LAYER, MODULE = "encoder.layers.{i}.", "layers.{i}."
NAMES = {  # of the code in published folders
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_inner": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps", "rotary_emb_base": "rope_theta",
}
FALSE = (
    "causal mlp_fc1_bias mlp_fc2_bias qkv_proj_bias parallel_block parallel_block_tied_norm prenorm rotary_emb_interleaved "
    "scale_attn_by_inverse_layer_idx use_rms_norm"
)
NOMIC_BERT = Family(
    "nomic-bert", ("NomicBertModel",), "nomic_bert",
    tensors=(
        T("embeddings.word_embeddings",       "token_embd",               "embd vocab"),
        T("embeddings.token_type_embeddings", "token_types",              "embd types", required=False),
        T("emb_ln",                           "token_embd_norm",          "embd", bias="required"),
        *rows.attention("embd", module=LAYER + "attn", names="", output="out_proj", bias="optional")[1:],
        T(LAYER + "attn.Wqkv",                "blk.{i}.attn_qkv",         "embd embd+v+v", required=False),
        T(LAYER + "norm1",                    "blk.{i}.attn_output_norm", "embd", bias="required"),
        T(LAYER + "mlp.fc11",                 "blk.{i}.ffn_up",           "embd ff", bias="optional"),
        T(LAYER + "mlp.fc12",                 "blk.{i}.ffn_gate",         "embd ff"),
        T(LAYER + "mlp.fc2",                  "blk.{i}.ffn_down",         "ff embd", bias="optional"),
        T(LAYER + "norm2",                    "blk.{i}.layer_output_norm", "embd", bias="required"),
        T("embeddings.LayerNorm",             "token_embd_norm",          bias="required", written=False),
        T(MODULE + "self_attn.o_proj",        "blk.{i}.attn_output",      written=False),
        T(MODULE + "self_attn.{part}_proj",   "blk.{i}.attn_qkv",         operation=JoinRows(), written=False),
        T(MODULE + "post_attention_layernorm", "blk.{i}.attn_output_norm", bias="required", written=False),
        T(MODULE + "mlp.up_proj",             "blk.{i}.ffn_up",           written=False),
        T(MODULE + "mlp.gate_proj",           "blk.{i}.ffn_gate",         written=False),
        T(MODULE + "mlp.down_proj",           "blk.{i}.ffn_down",         written=False),
        T(MODULE + "post_mlp_layernorm",      "blk.{i}.layer_output_norm", bias="required", written=False),
    ),
    keys=(*BERT.keys, rows.theta(1000.0), *rows.HEAD_SIZE),
    fields=(
        rows.SILU,
        F("activation_function", "swiglu"),
        F("head_dim", rows.head_size),
        F("rotary_emb_fraction", 1.0, "llama.cpp rotates all columns"),
        F("scale_attn_weights", True),
        *(F(name, False) for name in FALSE.split()),
        *(F(name, None, "llama.cpp scales no positions") for name in ("rotary_emb_scale_base", "rotary_scaling_factor")),
    ),
    vocabularies=("wordpiece",),
    limits=BERT.limits,
    names=NAMES,
    ignored=(
        "dense_seq_output fused_bias_fc fused_dropout_add_ln max_trained_positions n_positions pad_vocab_size_multiple "
        "reorder_and_upcast_attn summary_activation summary_proj_to_labels summary_type summary_use_proj type_vocab_size "
        "use_flash_attn use_xentropy classifier_dropout"
    ),
    ropes=("default",),
    defaults={"max_position_embeddings": 2048, "type_vocab_size": 2},
)
