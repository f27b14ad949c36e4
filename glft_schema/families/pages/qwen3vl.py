"""Qwen 3 VL: the text model, whose positions have interleaved sections for images."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.config import Config
from glft_schema.families.page import F, K
from glft_schema.families.pages.qwen3 import QWEN3


def deepstack_layers(config: Config) -> int:
    """Returns how many layers add features of an image."""
    return len(config.get("vision_config", {}).get("deepstack_visual_indexes", ()))


# fmt: off
QWEN3VL = replace(
    QWEN3, arch="qwen3vl", architectures=("Qwen3VLForConditionalGeneration",), model_type="qwen3_vl_text",
    keys=(
        *rows.SIZES, *rows.SECTIONS, *rows.RMS, *rows.head_lengths(128), rows.FILE_TYPE,
        K("n_deepstack_layers",               "", deepstack_layers),
    ),
    fields=(*QWEN3.fields, F("rope.mrope_interleaved", True)),
    restored=rows.restored_as(QWEN3),
    ignored="rope.mrope_section",
    scales_feed_forward=False,
)
