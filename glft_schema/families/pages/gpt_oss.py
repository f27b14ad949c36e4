"""gpt-oss of OpenAI, whose experts are in MXFP4."""

from __future__ import annotations

from glft_schema.families import rows
from glft_schema.families.config import Config
from glft_schema.families.operations import ALTERNATE_ROWS, Chain, PackMXFP4, Transpose
from glft_schema.families.page import F, Family, K, T
from glft_schema.tensors.stored_tensor import StoredTensor


def without_truncation(tensors: dict[str, StoredTensor], config: Config) -> Config:
    """Returns yarn's scaling with ``truncate``, false in all published models; GGUF lacks it."""
    scaling = config.get("rope_scaling", {})
    return {"rope_scaling": scaling | {"truncate": False}} if scaling.get("rope_type") == "yarn" else {}


# fmt: off
EXPERTS, GATE_UP, DOWN, WITH_BIAS = "model.layers.{i}.mlp.experts", rows.GATE_UP, rows.DOWN, rows.UNDERSCORED
GPT_OSS = Family(
    "gpt-oss", ("GptOssForCausalLM",), "gpt_oss",
    tensors=(
        *rows.BLOCKS[:-1], rows.POST_NORMS[1], rows.OWN_LM_HEAD,
        *rows.attention("q_rot", "kv_rot", "kv_rot", bias="required"),
        T("model.layers.{i}.self_attn.sinks", "blk.{i}.attn_sinks",   "heads", endings=rows.BARE),
        T("model.layers.{i}.mlp.router",      "blk.{i}.ffn_gate_inp", "embd experts", bias="required"),
        *(T("", name, "embd ff_exp experts", bias="required") for name in GATE_UP),
        T(f"{EXPERTS}.gate_up_proj", GATE_UP, "", Chain((Transpose(3), ALTERNATE_ROWS)), "required", endings=WITH_BIAS),
        T(f"{EXPERTS}.down_proj", DOWN, "ff_exp embd experts", Transpose(3), "required", endings=WITH_BIAS),
        T(f"{EXPERTS}.gate_up_proj_{{part}}", GATE_UP, operation=PackMXFP4(ALTERNATE_ROWS), endings=rows.BARE),
        T(f"{EXPERTS}.down_proj_{{part}}", DOWN, operation=PackMXFP4(), endings=rows.BARE),
    ),
    keys=(
        *rows.SIZES_OF_EXPERTS, *rows.heads(150_000.0),
        K("rope.freq_base_swa",               "", None),
        *rows.RMS, *rows.EXPERTS, *rows.head_lengths(64), rows.FILE_TYPE,
        K("attention.sliding_window",         "sliding_window", loader="required"),
        K("attention.sliding_window_pattern", "", None),  # also read if the window is 0
        K("expert_feed_forward_length",       "intermediate_size", loader="required"),
    ),
    fields=(
        rows.SILU, rows.LOCAL_EXPERTS, rows.OWN_OUTPUT,
        F("attention_bias", True, "llama.cpp requires biases"),
        rows.sliding(2),
        F("swiglu_limit", 7.0),
        F("swiglu_alpha", 1.702),
        *(field._replace(warns=True) if field.name == "rope.truncate" else field for field in rows.YARN),
    ),
    vocabularies=("bpe",),
    limits=rows.SOME_EXPERTS,
    pattern=2,
    restored=without_truncation,
    ignored="experts_per_token initial_context_length",  # known by other names
    defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5},
    rope={"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0,
          "truncate": False},
)
