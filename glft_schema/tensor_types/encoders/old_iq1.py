"""Encoders of IQ1_S and IQ1_M on tensors.

Source: ggml-quants.c of llama.cpp; checked against it bit by bit.
"""

from __future__ import annotations

from glft_schema.lazy import torch
from glft_schema.tensor_types.encoders.grid_searches import by_blocks, digits
from glft_schema.tensor_types.encoders.iq1_searches import SplitSearch, shifted, sums_by_group, sums_by_half, ternary
from glft_schema.tensor_types.engine.arithmetic import total
from glft_schema.tensor_types.engine.bits import as_bytes, fields, from_fields, pack_neighbours
from glft_schema.tensor_types.engine.functions import Fields

IQ1_S = SplitSearch(4, 1e-12, 2, sums_by_group)
IQ1_M = SplitSearch(2, 1e-7, 4, sums_by_half)


def to_iq1_s(weights: torch.Tensor, importance: torch.Tensor) -> Fields:
    """561 splits of 32 weights in three, each with two shifts."""
    best = IQ1_S(weights, importance)
    d = best.largest / 15
    scales = digits(best.scales, 1 / d, 7) | (best.down[0] << 3) * (best.largest > 0)
    word = scales << 12 | from_fields(best.entries >> 8, 3, 0)
    return {
        "d": (d * 1.125).to(torch.float16).unsqueeze(1),
        "qs": by_blocks(best.entries & 255).to(torch.uint8),
        "qh": as_bytes(word.T, 2),
    }


def to_iq1_m(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """153 splits of 16 weights in three, with four shifts each. Last, d is fitted to them."""
    best = IQ1_M(weights, importance)
    d = best.largest / 15
    scales = digits(best.scales, 1 / d, 7)
    values = shifted(ternary(weights.device), best.words, best.down) * (2 * scales + 1).to(torch.float32)
    parts = best.counts * values
    fit, size = (total((parts * other).permute(2, 1, 0, 3).flatten(0, 2)) for other in (best.weights, values))
    nonzero = best.largest > 0
    d = torch.where(nonzero, torch.where((size > 0) & d.isfinite(), fit / size, d), 0.0)
    half = (d * 1.1125).to(torch.float16).view(torch.int16).to(torch.int32) & 0xFFFF
    high = by_blocks(best.entries >> 8 | (best.down << 3) * nonzero)
    scales = (scales * nonzero).T.reshape(len(weights), 4, 4)
    words = fields(half, 4, 4, 1) << 12 | from_fields(scales, 3, 2)
    return {
        "qs": by_blocks(best.entries & 255).to(torch.uint8),
        "qh": pack_neighbours(high, 4),
        "scales": as_bytes(words, 2),
    }
