"""SmolLM 3."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.config import Config
from glft_schema.families.page import F, K
from glft_schema.families.pages.llama import LLAMA, permuted


def rotated_layers(config: Config) -> list[int]:
    """Returns 1 for each layer with a rotary embedding, and 0 for every fourth."""
    return [int(i % 4 < 3) for i in range(config["num_hidden_layers"])]


# fmt: off
SMOLLM3 = replace(
    LLAMA, arch="smollm3", architectures=("SmolLM3ForCausalLM",), model_type="smollm3",
    tensors=(
        *rows.BLOCKS, rows.LM_HEAD, *permuted(), *rows.FEED_FORWARD,
    ),
    keys=(
        *rows.decoder(2_000_000.0), *rows.OWN_HEAD_SIZE, rows.FILE_TYPE,
        K("vocab_size",                       "vocab_size"),
        K("rope.dimension_count",             "", rows.head_size),
    ),
    fields=(
        rows.SILU,
        rows.NO_BIAS,
        F("mlp_bias", False),
        F("no_rope_layers", rotated_layers, "llama.cpp rotates all layers but every fourth"),
        F("no_rope_layer_interval", 4),
        *rows.SLIDING_QWEN, *rows.YARN,
    ),
    vocabularies=("bpe",),
    defaults={"num_key_value_heads": 4},
    scales_feed_forward=False,
)
