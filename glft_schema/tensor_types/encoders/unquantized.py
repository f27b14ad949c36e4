"""Rounding to float16 and bfloat16, with NaN as in llama.cpp on every processor.

Source: ggml-impl.h of llama.cpp; checked against it bit by bit.
"""

from __future__ import annotations

from glft_schema.lazy import torch


def to_f16(weights: torch.Tensor) -> torch.Tensor:
    """Rounds to float16. NaN becomes the quiet NaN of its sign."""
    rounded = weights.to(torch.float16)
    wide = weights.to(torch.float32) if weights.dtype.itemsize == 1 else weights
    if bool(wide.isnan().any()):
        quiet = torch.where(wide.signbit(), -0x0200, 0x7E00).to(torch.int16).view(torch.float16)
        rounded = torch.where(wide.isnan(), quiet, rounded)
    return rounded


def to_bf16(weights: torch.Tensor) -> torch.Tensor:
    """Rounds to bfloat16. NaN keeps its upper bits and becomes quiet."""
    rounded = weights.to(torch.bfloat16)
    wide = weights.to(torch.float32)
    if bool(wide.isnan().any()):
        quiet = (wide.view(torch.int32) >> 16 | 0x40).to(torch.int16).view(torch.bfloat16)
        rounded = torch.where(wide.isnan(), quiet, rounded)
    return rounded
