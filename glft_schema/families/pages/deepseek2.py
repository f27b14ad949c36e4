"""DeepSeek V2, whose keys and values come from a latent vector."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.config import Config
from glft_schema.families.operations import SplitKeysAndValues
from glft_schema.families.page import F, Family, K, T
from glft_schema.families.requirements import limit
from glft_schema.tensors.stored_tensor import StoredTensor


def mscale_of(tensors: dict[str, StoredTensor], config: Config) -> Config:
    """Returns yarn's scaling with both factors of attention, of which the key is a tenth."""
    scaling = config.get("rope_scaling", {})
    mscale = round(10 * scaling.pop("log_multiplier", 0), 6)
    return {"rope_scaling": scaling | {"mscale": mscale, "mscale_all_dim": mscale}} if scaling else {}


def supported_rope(config: Config) -> str:
    """Returns the config's rope type, or another if llama.cpp scales attention otherwise."""
    mscale, of_all = (config.get(f"rope.{name}") for name in ("mscale", "mscale_all_dim"))
    return str(config["rope.rope_type"]) if config["rope.rope_type"] != "yarn" or (mscale and mscale == of_all) else "default"


# fmt: off
ATTENTION, FUSED = "model.layers.{i}.self_attn", "no ffn_gate_up_exps.weight"
DEEPSEEK2 = Family(
    "deepseek2", ("DeepseekV2ForCausalLM",), "deepseek_v2",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD,
        T(f"{ATTENTION}.q_proj",             "blk.{i}.attn_q",         "embd mla_q", when="no q_lora"),
        T(f"{ATTENTION}.q_a_proj",           "blk.{i}.attn_q_a",       "embd q_lora", when="q_lora"),
        T(f"{ATTENTION}.q_a_layernorm",      "blk.{i}.attn_q_a_norm",  "q_lora", when="q_lora"),
        T(f"{ATTENTION}.q_b_proj",           "blk.{i}.attn_q_b",       "q_lora mla_q", when="q_lora"),
        T(f"{ATTENTION}.kv_a_proj_with_mqa", "blk.{i}.attn_kv_a_mqa",  "embd kv_lora+rot"),
        T(f"{ATTENTION}.kv_a_layernorm",     "blk.{i}.attn_kv_a_norm", "kv_lora"),
        T(f"{ATTENTION}.kv_b_proj",          ("blk.{i}.attn_k_b", "blk.{i}.attn_v_b"), operation=SplitKeysAndValues()),
        T("",                                "blk.{i}.attn_k_b",       "mla_key kv_lora heads", when="mla"),
        T("",                                "blk.{i}.attn_v_b",       "kv_lora mla_value heads", when="mla"),
        T("",                                "blk.{i}.attn_kv_b",      "kv_lora mla_k+mla_v", when="no mla"),
        T(f"{ATTENTION}.o_proj",             "blk.{i}.attn_output",    "mla_v embd"),
        *rows.beside_dense(
            *(row._replace(when=FUSED if row.gguf in rows.GATE_UP else "") for row in rows.experts(count="n_routed_experts")),
            T("", "blk.{i}.ffn_gate_up_exps", "embd ff_exp+ff_exp experts", required=False), *rows.shared_expert("ff_count"),
            rows.correction("model.layers.{i}.mlp.gate")._replace(required=False),
        ),
        *rows.changed(rows.NEXTN, name=""),
    ),
    keys=(
        *rows.SIZES,
        K("attention.head_count_kv",          "", 1),
        *rows.HEADS[1:], *rows.RMS,
        K("expert_count",                     "n_routed_experts"),
        K("expert_used_count",                "num_experts_per_tok"),
        K("expert_group_count",               "n_group", None),
        K("expert_group_used_count",          "topk_group", None),
        K("expert_gating_func",               "", 1),  # softmax
        rows.FILE_TYPE,
        K("leading_dense_block_count",        "first_k_dense_replace", 0),
        K("vocab_size",                       "vocab_size"),
        K("attention.q_lora_rank",            "q_lora_rank", None),
        K("attention.kv_lora_rank",           "kv_lora_rank", 512, "required"),
        K("rope.dimension_count",             "qk_rope_head_dim", 64),
        K("attention.key_length",             "", lambda config: config["kv_lora_rank"] + config["qk_rope_head_dim"]),
        K("attention.value_length",           "", lambda config: config["kv_lora_rank"]),
        K("attention.key_length_mla",         "qk_head_dim",
          lambda config: config.get("qk_nope_head_dim", 128) + config["qk_rope_head_dim"]),
        K("attention.value_length_mla",       "v_head_dim", 128),
        K("expert_feed_forward_length",       "moe_intermediate_size", loader="required"),
        K("expert_shared_count",              "n_shared_experts", 2, "required"),
        K("expert_weights_scale",             "routed_scaling_factor", 1.0),
        K("expert_weights_norm",              "", None),
        K("rope.scaling.yarn_log_multiplier", "rope.scaling.log_multiplier",
          lambda config: 0.1 * config["rope.mscale_all_dim"] if "rope.mscale_all_dim" in config else None),
        *(K(f"attention.temperature_{part}", "", None) for part in ("scale", "length")),
    ),
    fields=(
        rows.SILU,
        F("attention_bias", False, "llama.cpp loads no biases"), F("mlp_bias", False),
        F("num_key_value_heads", rows.head_count),
        F("q_lora_rank", lambda config: config.get("q_lora_rank")),  # stated even if null
        F("qk_nope_head_dim", lambda config: config["qk_head_dim"] - config["qk_rope_head_dim"]),
        F("rms_norm_eps", 1e-6, "llama.cpp adds it to latents, too, where transformers adds 1e-6", warns=True),
        F("norm_topk_prob", False, "transformers does not normalize the weights of the chosen experts"),
        F("n_group", lambda config: min(config.get("n_group") or 1, 1), "llama.cpp rates a group by two experts, not one"),
        rows.choice("topk_method", "greedy", "group_limited_greedy"),  # the same without groups
        F("scoring_func", "softmax"), F("moe_layer_freq", 1, rows.EXPERTS_EVERYWHERE),
        F("rope.rope_type", supported_rope, "llama.cpp scales attention by mscale, which must be mscale_all_dim"),
        F("rope.attention_factor", 1.0),
        rows.NO_TEMPERATURE, *rows.INTERPOLATION, *rows.ALL_COLUMNS,
    ),
    vocabularies=("bpe",),
    limits=(
        *rows.SOME_EXPERTS,
        limit("attention.q_lora_rank", "a rank, except in models of 26 or 27 blocks, or of 48 with 128256 tokens",
              lambda n: n["is lite"] or n["q_lora"]),
    ),
    restored=mscale_of,
    ignored="head_dim ep_size aux_loss_alpha seq_aux rope.mscale*",
    ropes=("default", "yarn"),
)
