"""Qwen 1.5 and 2 with experts."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.operations import OneRow
from glft_schema.families.page import Bias, F, Family, K, T

# fmt: off
EXPERTS = (
    *rows.experts(), *rows.shared_expert("ff_shexp", "model.layers.{i}.mlp.shared_expert"),
    T("model.layers.{i}.mlp.shared_expert_gate", "blk.{i}.ffn_gate_inp_shexp", "embd", OneRow()),
)
QWEN2MOE = Family(
    "qwen2moe", ("Qwen2MoeForCausalLM",), "qwen2_moe",
    tensors=(
        *rows.BLOCKS, rows.OWN_LM_HEAD, *rows.attention("embd"), *EXPERTS,
    ),
    keys=(
        *rows.decoder(sizes=rows.SIZES_OF_EXPERTS),
        *rows.REQUIRED_EXPERTS, rows.FILE_TYPE, rows.EXPERT_ROWS,
        K("expert_shared_feed_forward_length", "shared_expert_intermediate_size",
          absent=lambda config: config["intermediate_size"]),
    ),
    fields=(
        rows.SILU,
        rows.OWN_OUTPUT,
        F("norm_topk_prob", False, "llama.cpp does not normalize the weights of the chosen experts"),
        F("qkv_bias", Bias("blk.0.attn_q.bias")),
        *rows.NO_DENSE_BLOCKS,
        *rows.SLIDING_QWEN, *rows.YARN,
    ),
    vocabularies=("bpe",),
    defaults={"num_key_value_heads": 16},
    limits=rows.SOME_EXPERTS,
)
