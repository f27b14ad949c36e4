"""Encoders of ggml's k-quants.

Source: ggml-quants.c of llama.cpp; checked against it bit by bit.

The encoders search for the scales of all groups, whose weights are columns [n, groups]; then for
the scale of each block's scales, which are rows [groups of a block, blocks]. Last, codes are
computed from the scales as stored.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from glft_schema.lazy import torch
from glft_schema.tensor_types.encoders.code_searches import scale_by_single_codes, scale_of_positives
from glft_schema.tensor_types.encoders.scale_searches import (
    TINY,
    Affine,
    Signed,
    by_block,
    by_importance,
    columns,
    of_columns,
    scale_alone,
    scale_and_minimum,
)
from glft_schema.tensor_types.encoders.trials import tries
from glft_schema.tensor_types.engine.arithmetic import (
    codes_unless_zero,
    divided,
    farthest,
    float16,
    nearest,
    over,
    product,
    root,
    total,
)
from glft_schema.tensor_types.engine.bits import once, pack, pack_planes
from glft_schema.tensor_types.engine.functions import Fields
from glft_schema.tensor_types.engine.steps import row_step, step


def to_q2_k(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """Searches for scales and minima of 16 weights in 15 steps. By default, errors count |w|."""
    x = columns(weights, 16)
    if importance is None:
        best = scale_and_minimum(x, x.abs(), 3, tries(-0.5, 0.1, range(16), 3), absolute=True)
        stored = in_steps(best, 16, 15)
    else:
        best, stored = fit_and_steps(x, by_importance(weights, importance, 16, 256), 3, 15)
    codes = codes_above(x, best, stored, 3)
    scales = stored.scales | stored.minima << 4
    return {"scales": scales.to(torch.uint8).t(), "qs": pack_planes(codes, 2), "d": stored.d, "dmin": stored.dmin}


def to_q3_k(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """Searches for scales of 16 weights, stored in steps of d; the farthest from zero is -32."""
    x = columns(weights, 16)
    if importance is None:
        best = scale_by_single_codes(x, 4)
        d, scales = in_signed_steps(best.scale, 32, 0)
        scales.add_(32).masked_fill_(d == 0, 0)
    else:
        counts = by_importance(weights, importance, 16, 256, 2)
        best = scale_alone(x, counts, 4)
        of_scales = scale_alone(by_block(best.scale, 16), by_block(total(counts), 16), 32)
        d, scales = of_scales.scale, of_scales.codes()  # already plus 32
    d = float16(d, best.scale)
    codes = signed_codes(x, best, product(d, scales.t() - 32), 4)
    low = scales[:8] & 15 | (scales[8:] & 15) << 4
    high = pack((scales >> 4).view(4, 4, -1), 2, 0)
    six = torch.cat((low.to(torch.uint8), high)).t()
    return {"hmask": pack_planes(codes >> 2, 1), "qs": pack_planes(codes & 3, 2), "scales": six, "d": d}


def to_q4_k(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """Searches for scales and minima of 32 weights, stored in 63 steps."""
    fields, codes = _to_q4_k(weights, importance, 15, tries(-1.0, 0.1, range(21), 15))
    return {**fields, "qs": pack_planes(codes, 4)}


def to_q5_k(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """Like Q4_K."""
    fields, codes = _to_q4_k(weights, importance, 31, tries(-0.5, 0.1, range(16), 31))
    return {**fields, "qh": pack_planes(codes >> 4, 1), "qs": pack_planes(codes & 15, 4)}


def _to_q4_k(
    weights: torch.Tensor, importance: torch.Tensor | None, top: int, parts: torch.Tensor
) -> tuple[Fields, torch.Tensor]:
    """Returns all other fields, and the codes. By default, errors count |w| + sqrt(mean w^2)."""
    x = columns(weights, 32)
    if importance is None:
        best = scale_and_minimum(x, x.abs().add_(root(total(x * x) / 32)), top, parts)
        stored = in_steps(best, 8, 63)
    else:
        best, stored = fit_and_steps(x, by_importance(weights, importance, 32, 256, 2), top, 63)
    scales = in_six_bits(stored.scales, stored.minima)
    return {"d": stored.d, "dmin": stored.dmin, "scales": scales}, codes_above(x, best, stored, top)


def to_q6_k(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """Searches for scales of 16 weights, stored in steps of d; the farthest from zero is -128."""
    x = columns(weights, 16)
    best = scale_alone(x, x * x if importance is None else columns(importance, 16), 32)
    d, scales = in_signed_steps(best.scale, 128, TINY)
    zeros, d = d == 0, float16(d, best.scale)
    scales = scales.to(torch.int8).t()
    codes = signed_codes(x, best, product(d, scales), 32).masked_fill_(zeros.unsqueeze(1), 0)
    ql = pack((codes & 15).view(-1, 2, 2, 64), 4, 2).flatten(1)
    return {"ql": ql, "qh": pack_planes(codes >> 4, 2), "scales": scales, "d": d}


def to_q8_k(weights: torch.Tensor) -> Fields:
    """d gives the weight farthest from zero code -127."""
    d, codes, sums = _in_eight_bits_with_sums(weights)
    return {"d": d, "qs": codes, "bsums": sums.to(torch.int16)}


@row_step
def _in_eight_bits_with_sums(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns d, codes, and their sums of 16, float32."""
    peak = farthest(weights, 1)
    inverse = divided(-127, peak)
    d = (1 / inverse).masked_fill_(peak == 0, 0)
    codes = (weights * once(inverse.masked_fill(inverse.isinf(), 0))).round_().clamp_(max=127)  # 0 if 127 / w overflows
    return d, codes.to(torch.int8), codes.view(-1, 16, 16).sum(2)


class StoredScales(NamedTuple):
    """Scales and minima of groups as a block stores them: d * scales and dmin * minima.

    d and dmin are float16 [blocks, 1], scales and minima int32 [groups of a block, blocks].
    """

    d: torch.Tensor
    scales: torch.Tensor
    dmin: torch.Tensor
    minima: torch.Tensor


def in_steps(best: Affine, groups: int, last: int) -> StoredScales:
    """Stores scales and minima, `groups` per block; the greatest of each is `last` steps."""

    def step(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = by_block(numbers, groups)
        greatest = rows.amax(0).clamp_(min=0) + 0.0  # turns -0 into 0
        inverse = divided(last, greatest).masked_fill_(greatest == 0, 0)
        return over(greatest, last).to(torch.float16).unsqueeze(1), nearest(rows * inverse).clamp_(0, last)

    return StoredScales(*step(best.scale), *step(-best.minimum))


def fit_and_steps(x: torch.Tensor, counts: torch.Tensor, top: int, last: int) -> tuple[Affine, StoredScales]:
    """Searches for scales and minima, and then for the steps, at most `last`, that store them with
    the least error.

    The error of a scale or a minimum counts the sum of its group.
    """
    best = scale_and_minimum(x, counts, top, tries(-0.9, 0.05, range(37), top))
    groups = 256 // len(x)  # of a block
    sums = by_block(total(counts), groups)
    d, scales = scale_of_positives(by_block(best.scale, groups), sums, last)
    dmin, minima = scale_of_positives(by_block(-best.minimum, groups), sums, last)
    lost = ~by_block(total(counts * x * x), groups).isfinite().all(0)  # errors overflowed, so that every trial failed
    d = d.masked_fill(lost, math.inf)
    return best, StoredScales(d.to(torch.float16).unsqueeze(1), scales, dmin.to(torch.float16).unsqueeze(1), minima)


def in_signed_steps(scale: torch.Tensor, last: int, tiny: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns scales of 16 weights as float32 d [blocks] and codes, int32 [16, blocks].

    The scale farthest from zero is -last * d. If all scales are below `tiny`, d is 0.
    """
    rows = by_block(scale, 16)
    peak = farthest(rows).squeeze(0)
    zeros = ~(peak.abs() >= tiny) | (peak == 0)
    inverse = divided(-last, peak).masked_fill_(zeros, 0)
    return (1 / inverse).masked_fill_(zeros, 0), nearest(rows * inverse).clamp_(-last, last - 1)


def codes_above(x: torch.Tensor, best: Affine, stored: StoredScales, top: int) -> torch.Tensor:
    """Returns codes, u8 [blocks, 256], for scales and minima as stored."""
    scale, minimum = (product(d, codes.t()).flatten() for d, codes in ((stored.d, stored.scales), (stored.dmin, stored.minima)))
    (codes,) = _stored_codes(x, scale, minimum, least=0, top=top)
    return of_columns(codes_unless_zero(scale, codes, best.codes), 256)


def signed_codes(x: torch.Tensor, best: Signed, scale: torch.Tensor, top: int) -> torch.Tensor:
    """Returns codes + top, u8 [blocks, 256], for scales [blocks, 16] as stored."""
    (codes,) = _stored_codes(x, scale.flatten(), least=-top, top=top - 1)
    return of_columns(codes_unless_zero(scale.flatten(), codes, best.codes), 256)


@step
def _stored_codes(x: torch.Tensor, scale: torch.Tensor, *minimum: torch.Tensor, least: int, top: int) -> tuple[torch.Tensor]:
    """Returns the codes from `least` to `top` for scales, and minima if any, as int8 from 0 on."""
    quotient = sum(minimum, x) / scale
    return (nearest(quotient).clamp_(least, top).sub_(least).to(torch.int8),)


def in_six_bits(scales: torch.Tensor, minima: torch.Tensor) -> torch.Tensor:
    """Packs int32 [8, blocks] each into u8 [blocks, 12], the inverse of `six_bits`."""
    (scale, high_scale), (minimum, high_minimum) = scales.view(2, 4, -1), minima.view(2, 4, -1)
    low = high_scale & 15 | (high_minimum & 15) << 4
    return torch.cat((scale | high_scale >> 4 << 6, minimum | high_minimum >> 4 << 6, low)).to(torch.uint8).t()
