"""Qwen 2 and 2.5 VL: the text model, whose positions have sections for images."""

from __future__ import annotations

from dataclasses import replace

from glft_schema.families import rows
from glft_schema.families.pages.qwen2 import QWEN2

# fmt: off
QWEN2VL = replace(
    QWEN2, arch="qwen2vl", architectures=("Qwen2_5_VLForConditionalGeneration", "Qwen2VLForConditionalGeneration"),
    model_type="qwen2_5_vl_text",
    keys=(*rows.SIZES, *rows.SECTIONS, *rows.RMS, rows.FILE_TYPE),
    ignored=f"{QWEN2.ignored} rope.mrope_section",
    restored=rows.restored_as(QWEN2),
)
