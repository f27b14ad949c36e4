"""ggml's k-quants: super-blocks of 256 weights with small integer scales, which one or two float16 scales multiply.

Source: the block structs of ggml-common.h and the formulas of ggml-quants.c, both of llama.cpp; checked against them bit by
bit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from glft_schema.fields import Struct
from glft_schema.lazy import torch
from glft_schema.numbers import f16, f32, i8, i16, u8
from glft_schema.tensor_types.bits import as_bytes, merge, split, stack, words
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.c_arithmetic import nearest, root, total
from glft_schema.tensor_types.code_searches import scale_by_single_codes, scale_of_positives
from glft_schema.tensor_types.legacy import Fields, less
from glft_schema.tensor_types.scale_searches import (
    TINY,
    Fit,
    Found,
    by_importance,
    columns,
    divided,
    farthest,
    of_columns,
    over,
    scale_alone,
    scale_and_minimum,
    tries,
    unless_zero,
)
from glft_schema.tensor_types.scaled import Scaled


def planes(qs: torch.Tensor, width: int) -> torch.Tensor:
    """Unpacks bytes whose fields of `width` bits belong to weights 32 apart: u8 [blocks, 32 k] -> [blocks, 32 k f].

    With f = 8 / `width` fields in a byte, weight 32 (f j + s) + l of a block is field s of byte 32 j + l.
    """
    return split(qs.reshape(qs.shape[0], -1, 32), width, 2)


def six_bits(scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unpacks the 12 bytes of Q4_K and Q5_K into eight 6-bit scales and eight 6-bit minima, each u8 [blocks, 8].

    With s and m for the bits of a scale and a minimum, g for one of the first four groups::

        byte g      ssSSSSSS  SSSSSS is scale g,   ss the high bits of scale g + 4
        byte g + 4  mmMMMMMM  MMMMMM is minimum g, mm the high bits of minimum g + 4
        byte g + 8  mmmmssss  the low bits of scale and minimum g + 4
    """
    low, middle, high = words(scales, 4).unbind(1)  # four groups at once
    scale = stack((low & 0x3F3F3F3F, high & 0x0F0F0F0F | low >> 2 & 0x30303030), 1)
    minimum = stack((middle & 0x3F3F3F3F, high >> 4 & 0x0F0F0F0F | middle >> 2 & 0x30303030), 1)
    return as_bytes(scale, 4), as_bytes(minimum, 4)


def product(d: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Returns float16 d [blocks, 1] times small integers [blocks, groups], in float32."""
    return d.to(torch.float32) * scales.to(torch.float32)


def q2_k(scales: torch.Tensor, qs: torch.Tensor, d: torch.Tensor, dmin: torch.Tensor) -> Scaled:
    """d * scale * code - dmin * minimum, for groups of 16; low nibbles of scales are scales, high ones minima."""
    return Scaled(planes(qs, 2), product(d, scales & 15), -product(dmin, scales >> 4))


def q3_k(hmask: torch.Tensor, qs: torch.Tensor, scales: torch.Tensor, d: torch.Tensor) -> Scaled:
    """d * (scale - 32) * (code - 4), for groups of 16; the third bit of weight 32 k + l is bit k of hmask[l].

    The 12 bytes hold sixteen 6-bit scales: low nibbles of bytes 0..7 begin scales 0..7, high nibbles scales 8..15, and
    bytes 8..11 hold their two high bits: of scale g, bits 2 (g // 4) of byte 8 + g % 4.
    """
    low, high = split(scales[:, :8], 4, 1).flatten(1), split(scales[:, 8:], 2, 1).flatten(1)
    codes = planes(qs, 2)
    codes = codes | planes(hmask, 1).view(codes.shape) << 2
    return Scaled(less(codes, 4), product(d, less(low | high << 4, 32)))


def q4_k(d: torch.Tensor, dmin: torch.Tensor, scales: torch.Tensor, qs: torch.Tensor) -> Scaled:
    """d * scale * code - dmin * minimum, for groups of 32."""
    return _with_minimum(planes(qs, 4), d, dmin, scales)


def q5_k(d: torch.Tensor, dmin: torch.Tensor, scales: torch.Tensor, qh: torch.Tensor, qs: torch.Tensor) -> Scaled:
    """d * scale * code - dmin * minimum, for groups of 32, as in Q4_K; the fifth bit of weight 32 k + l is bit k of qh[l]."""
    codes = planes(qs, 4)
    return _with_minimum(codes | planes(qh, 1).view(codes.shape) << 4, d, dmin, scales)


def _with_minimum(codes: torch.Tensor, d: torch.Tensor, dmin: torch.Tensor, scales: torch.Tensor) -> Scaled:
    scale, minimum = six_bits(scales)
    return Scaled(codes, product(d, scale), -product(dmin, minimum))


def q6_k(ql: torch.Tensor, qh: torch.Tensor, scales: torch.Tensor, d: torch.Tensor) -> Scaled:
    """d * scale * (code - 32), for groups of 16; the low four bits of a code from ql, the high two from qh.

    In each half of 128 weights, byte l of 64 in ql is weight l low and weight 64 + l high, and the 2-bit fields of byte l of
    32 in qh are weights l, 32 + l, 64 + l and 96 + l.
    """
    high = planes(qh, 2)
    low = split(ql.reshape(ql.shape[0], 2, 2, 32), 4, 2).view(high.shape)
    return Scaled(less(low | high << 4, 32), product(d, scales))


def q8_k(d: torch.Tensor, qs: torch.Tensor, bsums: torch.Tensor) -> Scaled:
    """d * code; bsums are there for products."""
    return Scaled(qs, d)


# The encoders search the scales of all groups, whose weights are columns [n, groups]; then, for each block, what its scales are
# multiples of: these are rows [groups of a block, blocks]. Codes are made last of all, anew, for scales as they are stored.


def to_q2_k(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """Scales and minima of 16 weights are searched for, and stored in 15 steps; an error counts as much as its weight."""
    x = columns(weights, 16)
    if importance is None:
        fit = scale_and_minimum(x, x.abs(), 3, tries(-0.5, 0.1, range(16), 3), absolute=True)
        stored = in_steps(fit, 16, 15)
    else:
        fit, stored = fit_and_steps(x, by_importance(weights, importance, 16, 256), 3, 15)
    codes = codes_above(x, fit, stored, 3)
    scales = stored.scales | stored.minima << 4
    return {"scales": scales.to(torch.uint8).t(), "qs": in_planes(codes, 2), **stored.tops()}


def to_q3_k(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """Scales of 16 weights are searched for, and stored in steps of which -32 is for the one farthest from zero."""
    x = columns(weights, 16)
    if importance is None:
        found = scale_by_single_codes(x, 4)
        d, scales = in_signed_steps(found.scale, 32, 0)
        scales.add_(32).masked_fill_(d == 0, 0)
    else:
        counts = by_importance(weights, importance, 16, 256, 2)
        found = scale_alone(x, counts, 4)
        of_scales = scale_alone(by_block(found.scale, 16), by_block(total(counts), 16), 32)
        d, scales = of_scales.scale, of_scales.codes()  # which have 32 added
    d = float16(d, found.scale)
    codes = signed_codes(x, found, product(d, scales.t() - 32), 4)
    low = scales[:8] & 15 | (scales[8:] & 15) << 4
    high = merge((scales >> 4).view(4, 4, -1), 2, 0)
    six = torch.cat((low.to(torch.uint8), high)).t()
    return {"hmask": in_planes(codes >> 2, 1), "qs": in_planes(codes & 3, 2), "scales": six, "d": d}


def to_q4_k(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """Scales and minima of 32 weights are searched for, and stored in 63 steps."""
    fields, codes = _to_q4_k(weights, importance, 15, tries(-1.0, 0.1, range(21), 15))
    return {**fields, "qs": in_planes(codes, 4)}


def to_q5_k(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """As Q4_K."""
    fields, codes = _to_q4_k(weights, importance, 31, tries(-0.5, 0.1, range(16), 31))
    return {**fields, "qh": in_planes(codes >> 4, 1), "qs": in_planes(codes & 15, 4)}


def _to_q4_k(
    weights: torch.Tensor, importance: torch.Tensor | None, top: int, parts: list[float]
) -> tuple[Fields, torch.Tensor]:
    """Returns the fields but for codes, and the codes; an error counts as much as its weight and the group's mean together."""
    x = columns(weights, 32)
    if importance is None:
        fit = scale_and_minimum(x, x.abs().add_(root(total(x * x) / 32)), top, parts)
        stored = in_steps(fit, 8, 63)
    else:
        fit, stored = fit_and_steps(x, by_importance(weights, importance, 32, 256, 2), top, 63)
    return {**stored.tops(), "scales": in_six_bits(stored.scales, stored.minima)}, codes_above(x, fit, stored, top)


def to_q6_k(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """Scales of 16 weights are searched for, and stored in steps of which -128 is for the one farthest from zero."""
    x = columns(weights, 16)
    found = scale_alone(x, x * x if importance is None else columns(importance, 16), 32)
    d, scales = in_signed_steps(found.scale, 128, TINY)
    zeros, d = d == 0, float16(d, found.scale)
    scales = scales.to(torch.int8).t()
    codes = signed_codes(x, found, product(d, scales), 32).masked_fill_(zeros.unsqueeze(1), 0)
    ql = merge((codes & 15).view(-1, 2, 2, 64), 4, 2).flatten(1)
    return {"ql": ql, "qh": in_planes(codes >> 4, 2), "scales": scales, "d": d}


def to_q8_k(weights: torch.Tensor) -> Fields:
    """d puts the weight farthest from zero at -127."""
    peak = farthest(weights, 1)
    inverse = divided(-127, peak)
    d = (1 / inverse).masked_fill_(peak == 0, 0)
    codes = (weights * inverse.masked_fill(inverse.isinf(), 0)).round_().clamp_(max=127)  # by 0 where 127 / w overflows
    return {"d": d, "qs": codes.to(torch.int8), "bsums": codes.view(-1, 16, 16).sum(2).to(torch.int16)}


class Stored(NamedTuple):
    """Scales and minima of groups as a block holds them: d * scales and dmin * minima.

    Attributes:
        d: float16 [blocks, 1].
        scales: int32 [groups of a block, blocks].
        dmin: as d.
        minima: as scales.
    """

    d: torch.Tensor
    scales: torch.Tensor
    dmin: torch.Tensor
    minima: torch.Tensor

    def tops(self) -> Fields:
        """Returns d and dmin, by name."""
        return {"d": self.d, "dmin": self.dmin}


def in_steps(fit: Fit, groups: int, last: int) -> Stored:
    """Stores scales and minima of so many groups a block such that the greatest of each is `last` steps."""

    def step(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = by_block(numbers, groups)
        greatest = rows.amax(0).clamp_(min=0) + 0.0  # which makes 0 of -0
        inverse = divided(last, greatest).masked_fill_(greatest == 0, 0)
        return over(greatest, last).to(torch.float16).unsqueeze(1), nearest(rows * inverse).clamp_(0, last)

    return Stored(*step(fit.scale), *step(-fit.minimum))


def fit_and_steps(x: torch.Tensor, counts: torch.Tensor, top: int, last: int) -> tuple[Fit, Stored]:
    """Searches scales and minima, and then the steps, at most `last`, in which they are stored with the least error.

    Args:
        x: [n, groups].
        counts: how much the error of each x counts; that of a scale or a minimum as much as all of its group.
        top: the largest code.
        last: the largest scale and minimum.
    """
    fit = scale_and_minimum(x, counts, top, tries(-0.9, 0.05, range(37), top))
    groups = 256 // len(x)  # of a block
    sums = by_block(total(counts), groups)
    d, scales = scale_of_positives(by_block(fit.scale, groups), sums, last)
    dmin, minima = scale_of_positives(by_block(-fit.minimum, groups), sums, last)
    lost = ~by_block(total(counts * x * x), groups).isfinite().all(0)  # errors overflow, so that nothing was found
    d = d.masked_fill(lost, math.inf)
    return fit, Stored(d.to(torch.float16).unsqueeze(1), scales, dmin.to(torch.float16).unsqueeze(1), minima)


def in_signed_steps(scale: torch.Tensor, last: int, tiny: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Writes scales of 16 weights as d * code, so that the one farthest from zero gets -last.

    Returns:
        d [blocks], float32, 0 where all are at most `tiny`, and codes, int32 [16, blocks].
    """
    rows = by_block(scale, 16)
    peak = farthest(rows).squeeze(0)
    zeros = ~(peak.abs() >= tiny) | (peak == 0)
    inverse = divided(-last, peak).masked_fill_(zeros, 0)
    return (1 / inverse).masked_fill_(zeros, 0), nearest(rows * inverse).clamp_(-last, last - 1)


def float16(d: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Returns d [blocks] of the scales of groups; infinite if one is not finite, which would pass for a block of zeros."""
    finite = scale.view(len(d), -1).isfinite().all(1)
    return d.masked_fill(~finite, math.inf).to(torch.float16).unsqueeze(1)


def codes_above(x: torch.Tensor, fit: Fit, stored: Stored, top: int) -> torch.Tensor:
    """Returns codes, u8 [blocks, 256], for scales and minima as they are stored."""
    scale, minimum = (product(d, codes.t()).flatten() for d, codes in ((stored.d, stored.scales), (stored.dmin, stored.minima)))
    codes = nearest((x + minimum).div_(scale)).clamp_(0, top)
    return of_columns(unless_zero(scale, codes, fit.codes), 256)


def signed_codes(x: torch.Tensor, found: Found, scale: torch.Tensor, top: int) -> torch.Tensor:
    """Returns codes + top, u8 [blocks, 256], for scales [blocks, 16] as they are stored."""
    codes = nearest(x / scale.flatten()).clamp_(-top, top - 1).add_(top)
    return of_columns(unless_zero(scale.flatten(), codes, found.codes), 256)


def by_block(numbers: torch.Tensor, groups: int) -> torch.Tensor:
    """One number a group -> rows [groups of a block, blocks]."""
    return numbers.view(-1, groups).t().contiguous()


def in_planes(codes: torch.Tensor, width: int) -> torch.Tensor:
    """u8 [blocks, 256] -> u8 [blocks, 32 width], the inverse of `planes`."""
    return merge(codes.view(len(codes), -1, 8 // width, 32), width, 2).flatten(1)


def in_six_bits(scales: torch.Tensor, minima: torch.Tensor) -> torch.Tensor:
    """Packs int32 [8, blocks] each into u8 [blocks, 12], the inverse of `six_bits`."""
    (scale, high_scale), (minimum, high_minimum) = scales.view(2, 4, -1), minima.view(2, 4, -1)
    low = high_scale & 15 | (high_minimum & 15) << 4
    return torch.cat((scale | high_scale >> 4 << 6, minimum | high_minimum >> 4 << 6, low)).to(torch.uint8).t()


# fmt: off
Q2_K = block_type("Q2_K", 10, 256, Struct(
    "scales" / u8[16]  * "scale (low nibble) and minimum (high nibble) of 16 weights each",
    "qs"     / u8[64]  * "two bits a weight",
    "d"      / f16[1]  * "scale of the scales",
    "dmin"   / f16[1]  * "scale of the minima",
), q2_k, to_q2_k, searches=True, weighted=to_q2_k)

Q3_K = block_type("Q3_K", 11, 256, Struct(
    "hmask"  / u8[32]  * "the third bit of each weight",
    "qs"     / u8[64]  * "two bits a weight",
    "scales" / u8[12]  * "sixteen 6-bit scales of 16 weights each; scale - 32",
    "d"      / f16[1]  * "scale of the scales",
), q3_k, to_q3_k, searches=True, weighted=to_q3_k)

Q4_K = block_type("Q4_K", 12, 256, Struct(
    "d"      / f16[1]  * "scale of the scales",
    "dmin"   / f16[1]  * "scale of the minima",
    "scales" / u8[12]  * "eight 6-bit scales and eight 6-bit minima of 32 weights each",
    "qs"     / u8[128] * "four bits a weight",
), q4_k, to_q4_k, searches=True, weighted=to_q4_k)

Q5_K = block_type("Q5_K", 13, 256, Struct(
    "d"      / f16[1]  * "scale of the scales",
    "dmin"   / f16[1]  * "scale of the minima",
    "scales" / u8[12]  * "eight 6-bit scales and eight 6-bit minima of 32 weights each",
    "qh"     / u8[32]  * "the fifth bit of each weight",
    "qs"     / u8[128] * "four bits a weight",
), q5_k, to_q5_k, searches=True, weighted=to_q5_k)

Q6_K = block_type("Q6_K", 14, 256, Struct(
    "ql"     / u8[128] * "the low four bits of each weight",
    "qh"     / u8[64]  * "the high two bits of each weight; code - 32",
    "scales" / i8[16]  * "scale of 16 weights each",
    "d"      / f16[1]  * "scale of the scales",
), q6_k, to_q6_k, searches=True, weighted=to_q6_k)

Q8_K = block_type("Q8_K", 15, 256, Struct(
    "d"      / f32[1]  * "scale",
    "qs"     / i8[256] * "signed codes",
    "bsums"  / i16[16] * "sums of 16 codes each",
), q8_k, to_q8_k)
# fmt: on
