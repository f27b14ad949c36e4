"""Encoders of ggml's i-quants: the search of each type, and the layout of its result in a block.

Source: ggml-quants.c of llama.cpp; checked against it bit by bit.
"""

from __future__ import annotations

from glft_schema.lazy import torch
from glft_schema.tensor_types.encoders.grid_searches import (
    BLOCK,
    BestEntries,
    GridSearch,
    all_vectors,
    by_blocks,
    digits,
    groups_of_moved,
    moved,
)
from glft_schema.tensor_types.encoders.iq1_searches import SplitSearch, shifted, sums_by_group, sums_by_half, ternary
from glft_schema.tensor_types.encoders.scale_searches import mean_square
from glft_schema.tensor_types.engine.arithmetic import total
from glft_schema.tensor_types.engine.bits import as_bytes, fields, from_fields, pack_neighbours
from glft_schema.tensor_types.engine.functions import Fields


def squares(blocks: torch.Tensor) -> torch.Tensor:
    """Returns the counts w^2: [blocks, 256] -> the same shape."""
    return blocks * blocks


def squares_and_mean(blocks: torch.Tensor) -> torch.Tensor:
    """Returns the counts w^2 plus half the mean square of the block: small weights count, too."""
    return squares(blocks).add_(mean_square(blocks, BLOCK, 2).mul_(0.25).unsqueeze(1))


# fmt: off
#               grid, shells, values, vectors, tries, step, least, factor, counts, even, fits, again
IQ3_XXS = GridSearch("iq3_xxs", 2, 4, 8, 15, 0.2, 1e-8,  1.0125, squares,          True,  False, moved)
IQ3_S   = GridSearch("iq3_s",   3, 4, 8,  9, 0.2, 1e-45, 1.033,  squares,          False, False, groups_of_moved)
IQ2_XXS = GridSearch("iq2_xxs", 2, 8, 4,  6, 0.1, 1e-15, 1.0,    None,             True,  True,  all_vectors)
IQ2_XS  = GridSearch("iq2_xs",  2, 8, 2,  9, 0.1, 1e-15, 1.0,    None,             True,  False, moved)
IQ2_S   = GridSearch("iq2_s",   1, 8, 2,  9, 0.1, 1e-8,  0.9875, squares_and_mean, False, False, moved)
# fmt: on


def sevens_and_scales(signs: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Returns words of 4 x 7 sign bits and a 4-bit scale as int64 [blocks, 8]."""
    seven = signs.to(torch.int64).reshape(len(signs), -1, 4) & 127
    return from_fields(seven, 7, 2) | scales.to(torch.int64) << 28


def to_iq3_xxs(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """31 trials per 32 weights."""
    best = IQ3_XXS(weights, importance)
    words = sevens_and_scales(best.signs, best.scales)
    return {"d": best.d, "qs": best.entries.to(torch.uint8), "scales_and_signs": as_bytes(words, 4)}


def to_iq3_s(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """19 trials per 32 weights."""
    return _with_sign_bytes(IQ3_S(weights, importance), 1)


def to_iq2_s(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """19 trials per 16 weights."""
    return _with_sign_bytes(IQ2_S(weights, importance), 2)


def _with_sign_bytes(best: BestEntries, high: int) -> Fields:
    """Stores the low eight bits of indices in qs, and the `high` ones above in qh."""
    return {
        "d": best.d,
        "qs": (best.entries & 255).to(torch.uint8),
        "qh": pack_neighbours(best.entries >> 8, high),
        "sign_bits": best.signs,
        "scales": pack_neighbours(best.scales, 4),
    }


def to_iq2_xxs(weights: torch.Tensor, importance: torch.Tensor) -> Fields:
    """13 trials per 32 weights."""
    best = IQ2_XXS(weights, importance)
    index = best.entries.reshape(len(weights), 8, 4)
    words = as_bytes(sevens_and_scales(best.signs, best.scales), 4).reshape(len(weights), 8, 4)
    return {"d": best.d, "qs": torch.cat((index.to(torch.uint8), words), 2).flatten(1)}


def to_iq2_xs(weights: torch.Tensor, importance: torch.Tensor) -> Fields:
    """19 trials per 16 weights."""
    best = IQ2_XS(weights, importance)
    words = best.entries | (best.signs & 127).to(torch.int32) << 9
    return {"d": best.d, "qs": as_bytes(words, 2), "scales": pack_neighbours(best.scales, 4)}


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
