"""Mistral 3, its text model, and Ministral 3."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.config import Config
from glft_schema.families.page import F, K
from glft_schema.families.pages.llama import LLAMA, MISTRAL
from glft_schema.tensors.stored_tensor import StoredTensor


def mistral3_config(tensors: dict[str, StoredTensor], config: Config) -> Config:
    """Returns yarn's scaling with ``mscale``, or the class of models without yarn, the default of
    Ministral 3."""
    if scaling := config.get("rope_scaling"):
        return {"rope_scaling": scaling | {"mscale": 1.0}}
    return rows.restored_as(MISTRAL)(tensors, config) | {"sliding_window": None}  # not its default


# fmt: off
MISTRAL3 = replace(
    LLAMA, arch="mistral3", architectures=("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"),
    model_type="ministral3",
    keys=(
        *LLAMA.keys,
        K("rope.scaling.yarn_log_multiplier", "rope.scaling.mscale_all_dim", None),
        K("attention.temperature_scale",      "rope.scaling.llama_4_scaling_beta", None),
    ),
    fields=(
        rows.SILU,
        F("rope.mscale", 1.0, "llama.cpp computes with 1"),
        F("rope.attention_factor", None, "llama.cpp computes it from the factor"),
        rows.WINDOW, *rows.INTERPOLATION, *rows.ALL_COLUMNS,
    ),
    restored=mistral3_config,
)
