"""Qwen 1.5 and 2 with experts."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.operations import OneRow
from glft_schema.families.page import Bias, F, Family, K, T

# fmt: off
MLP = "model.layers.{i}.mlp"
QWEN2MOE = Family(
    "qwen2moe", ("Qwen2MoeForCausalLM",), "qwen2_moe",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD._replace(required=True),
        *rows.attention("embd"),
        T("model.layers.{i}.self_attn.o_proj", "blk.{i}.attn_output",        "embd embd"),
        *rows.experts(),
        T(f"{MLP}.shared_expert_gate",         "blk.{i}.ffn_gate_inp_shexp", "embd", OneRow()),
        T(f"{MLP}.shared_expert.gate_proj",    "blk.{i}.ffn_gate_shexp",     "embd ff_shexp"),
        T(f"{MLP}.shared_expert.up_proj",      "blk.{i}.ffn_up_shexp",       "embd ff_shexp"),
        T(f"{MLP}.shared_expert.down_proj",    "blk.{i}.ffn_down_shexp",     "ff_shexp embd"),
    ),
    keys=(
        *rows.SIZES_OF_EXPERTS, *rows.HEADS, *rows.RMS,
        K("expert_count",                     "num_experts", loader="required"),
        K("expert_used_count",                "num_experts_per_tok", loader="required"),
        rows.FILE_TYPE,
        K("expert_feed_forward_length",       "moe_intermediate_size", absent=rows.expert_rows),
        K("expert_shared_feed_forward_length", "shared_expert_intermediate_size",
          absent=lambda config: config["intermediate_size"]),
    ),
    fields=(
        F("hidden_act", "silu"),
        F("tie_word_embeddings", False, rows.OWN_OUTPUT),
        F("norm_topk_prob", False, "llama.cpp does not normalize the weights of the chosen experts"),
        F("qkv_bias", Bias("blk.0.attn_q.bias")),
        *rows.NO_DENSE_BLOCKS,
        *rows.SLIDING_QWEN, *rows.YARN,
    ),
    vocabularies=("bpe",),
    defaults={"num_key_value_heads": 16},
    limits=rows.SOME_EXPERTS,
)
