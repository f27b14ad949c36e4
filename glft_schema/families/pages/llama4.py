"""The text model of Llama 4."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.config import Config
from glft_schema.families.operations import SPLIT_ROWS, Chain, Transpose
from glft_schema.families.page import F, Family, K, T
from glft_schema.families.pages.smollm3 import rotated_layers
from glft_schema.families.rope_factors import llama3_config, llama3_factors


def layers_with_experts(config: Config) -> list[int]:
    """Returns the numbers of the layers with experts, one in each period."""
    period = config["interleave_moe_layer_step"]
    return [*range(period - 1, config["num_hidden_layers"], period)] if period else []


# fmt: off
MLP = "model.layers.{i}.feed_forward"
LLAMA4 = Family(
    "llama4", ("Llama4ForCausalLM",), "llama4_text",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD, *rows.attention("q", "k", "v"),
        *rows.beside_dense(
            T(f"{MLP}.router", "blk.{i}.ffn_gate_inp", "embd experts"),
            *(T("", name, "embd ff_exp experts") for name in rows.GATE_UP),
            T(f"{MLP}.experts.gate_up_proj", rows.GATE_UP, operation=Chain((Transpose(3), SPLIT_ROWS)), endings=rows.BARE),
            T(f"{MLP}.experts.down_proj", rows.DOWN, "ff_exp embd experts", Transpose(3), endings=rows.BARE),
            *rows.shared_expert("ff_exp", f"{MLP}.shared_expert"), module=MLP,
        ),
        rows.ROPE_FREQS,
    ),
    keys=(
        rows.N_LAYER, rows.N_CTX, rows.N_EMBD, rows.N_FF._replace(field="intermediate_size_mlp", default=16384), rows.N_HEAD,
        *rows.heads(500_000.0), *rows.RMS,
        K("expert_count",                     "num_experts", 16),
        K("expert_used_count",                "num_experts_per_tok", 1),
        *rows.head_lengths(128), rows.FILE_TYPE,
        K("vocab_size",                       "vocab_size", loader="ignored"),
        K("rope.dimension_count",             "head_dim", 128, absent=None),
        K("interleave_moe_layer_step",        "interleave_moe_layer_step", 1, "required"),
        K("expert_feed_forward_length",       "intermediate_size", 8192, "required"),
        K("attention.sliding_window",         "", None),
        K("rope.freq_base_swa",               "", None, "sliding"),
    ),
    fields=(
        rows.SILU, rows.LOCAL_EXPERTS, rows.NO_BIAS,
        F("moe_layers", layers_with_experts),
        F("no_rope_layers", lambda config: rotated_layers(config) if config.get("no_rope_layers") else []),  # as by default
        F("no_rope_layer_interval", 4, "llama.cpp rotates all layers but every fourth"),
        F("attention_chunk_size", 8192, "llama.cpp attends within chunks of 8192 tokens"),
        F("layer_types", lambda config: rows.kinds(config, lambda i: i % 4 == 3, "chunked_attention")),
        F("use_qk_norm", lambda config: config["num_experts"] != 128, "llama.cpp decides it by the number of experts"),
        rows.choice("attn_temperature_tuning", True, 4),
        F("attn_scale", 0.1), F("floor_scale", 8192),
        *rows.YARN,
    ),
    vocabularies=("bpe",),
    limits=rows.SOME_EXPERTS,
    pattern=4,
    window=8192,
    generated=llama3_factors,
    restored=llama3_config,
    ropes=("default", "linear", "llama3"),
    ignored="for_llm_compressor",
    defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5},
)
