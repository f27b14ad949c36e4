"""Encoders of MXFP4, NVFP4 and ggml's IQ4.

Source: ggml-quants.c of llama.cpp; checked against it bit by bit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from glft_schema.lazy import torch
from glft_schema.tensor_types.encoders.scale_searches import by_block, by_importance, columns, scale_of_table
from glft_schema.tensor_types.engine.arithmetic import farthest, float16, nearest, reciprocal
from glft_schema.tensor_types.engine.bits import once, ones, pack, pack_halves
from glft_schema.tensor_types.engine.functions import Fields
from glft_schema.tensor_types.engine.steps import row_step
from glft_schema.tensor_types.small_floats import IQ4_VALUES, half_of_power, to_ue4m3, ue4m3

HALF_WAY = (0.5, 1.5, 2.5, 3.5, 5, 7, 10)  # between the numbers of E2M1_DOUBLED; ties go to the smaller one


def to_iq4_nl(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """Searches for the scale; by default, an error counts w^2."""
    x = columns(weights, 32)
    scale = iq4_scales(x, x * x if importance is None else by_importance(weights, importance, 32, 32, 2))
    codes = nearest_iq4(x.mul_(reciprocal(scale)), iq4_table(range(16), torch.uint8, x.device))
    return {"d": scale.to(torch.float16).unsqueeze(1), "qs": pack(codes.view(2, 16, -1), 4, 0).t()}


def to_iq4_xs(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """Searches for scales of 32 weights, stored in steps of d; the farthest from zero is -32."""
    x = columns(weights, 32)
    best = iq4_scales(x, x * x if importance is None else by_importance(weights, importance, 32, 256, 2))
    rows = by_block(best, 8)
    d = farthest(rows).squeeze(0) / -32
    scales = nearest(rows * reciprocal(d)).clamp_(-32, 31)
    inverse = reciprocal(d * scales).t().flatten()
    codes = nearest_iq4(x.mul_(inverse), iq4_table(range(16), torch.uint8, x.device))
    scales = (scales + 32).to(torch.uint8).t()
    return {
        "d": float16(d, best),
        "scales_h": pack((scales >> 4).view(-1, 2, 4), 2, 2),
        "scales_l": pack((scales & 15).view(-1, 4, 2), 4, 2),
        "qs": pack(codes.t().reshape(-1, 8, 2, 16), 4, 2).flatten(1),
    }


def to_mxfp4(weights: torch.Tensor) -> Fields:
    """The scale is the power of two at max |w|, divided by 4."""
    e, codes = _by_power(weights)
    return {"e": e, "qs": pack_halves(codes)}


@row_step
def _by_power(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns e of MXFP4, u8 [blocks, 1], and the codes of weights [blocks, 32]."""
    peak = weights.abs().amax(1, keepdim=True)
    exponent = torch.where(peak > 0, peak.log2().floor() - 2 + 127, 0.0)
    e = exponent.to(torch.int32).to(torch.uint8)
    return e, nearest_e2m1(weights, half_of_power(e))


def to_nvfp4(weights: torch.Tensor) -> Fields:
    """The scale of 16 weights is max |w| / 6."""
    groups = weights.reshape(weights.shape[0], 4, 16)
    d = to_ue4m3(groups.abs().amax(2) / 6)
    codes = nearest_e2m1(groups, ue4m3(d).unsqueeze(-1))
    return {"d": d, "qs": pack(codes.reshape(-1, 4, 2, 8), 4, 2).flatten(1)}


def iq4_scales(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Searches for the scale of each group, for weights x and counts [32, groups] each."""
    table = iq4_table(IQ4_VALUES, torch.float32, x.device)
    return scale_of_table(x, counts, lambda numbers: nearest_iq4(numbers, table), IQ4_VALUES[0])


def iq4_table(entries: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns the entry for each number n / 2, n from -256 to 255, at n modulo 512. Ties go up."""
    borders = [(low + high) / 2 for low, high in pairwise(IQ4_VALUES)]
    codes = [bisect_right(borders, n / 2) for n in (*range(256), *range(-256, 0))]
    return torch.tensor([entries[code] for code in codes], dtype=dtype, device=device)


def nearest_iq4(numbers: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Returns the entries of an `iq4_table` nearest to the numbers, which it overwrites."""
    twice = numbers.mul_(2).clamp_(-256, 255).floor_()  # all borders are multiples of a half
    return table.index_select(0, nearest(twice).bitwise_and_(511).flatten()).view(numbers.shape)


def nearest_e2m1(weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Returns, as u8, the code of E2M1_DOUBLED nearest to each weight / scale, or 0 if the scale is
    0.

    The products are exact: no scale has more than four bits. A weight beyond the last code gets the
    last code. llama.cpp gives it the first one if it is so large, from 2^25 scales on, that
    rounding makes all errors equal.
    """
    scale = torch.where(scale == 0, float("inf"), scale)
    borders, sizes = [once(border * scale) for border in HALF_WAY], weights.abs()
    codes = ones(weights < -borders[0]) << 3  # zero has no sign
    for border in borders:
        codes += ones(sizes > border)
    return codes.to(torch.uint8)
