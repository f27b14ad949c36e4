"""Types of four-bit floats: the OCP's MXFP4 and NVIDIA's NVFP4, as ggml stores them; and ggml's IQ4, four bits into a table.

Source: the block structs and tables of ggml-common.h and the formulas of ggml-quants.c, both of llama.cpp; checked against them
bit by bit. The formats of the scales: OCP Microscaling Formats v1.0 (E8M0), OCP 8-bit Floating Point v1.0 (E4M3).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from glft_schema.fields import Struct
from glft_schema.lazy import torch
from glft_schema.numbers import f16, u8, u16
from glft_schema.tensor_types.bits import by_words, looked_up, merge, split
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.c_arithmetic import nearest
from glft_schema.tensor_types.k_quants import by_block, float16, product
from glft_schema.tensor_types.legacy import Fields, halves, joined, less
from glft_schema.tensor_types.legacy import inverse as inverse_of
from glft_schema.tensor_types.scale_searches import by_importance, columns, farthest, scale_of_table
from glft_schema.tensor_types.scaled import Scaled
from glft_schema.tensor_types.tensor_type import Reserved

E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the value of each four-bit float
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def of_table(codes: torch.Tensor, table: tuple[int, ...]) -> torch.Tensor:
    """Returns the table's entries, int8 or for a compiler float32, for codes of four bits, of their shape."""
    if by_words(codes):
        return looked_up(_pairs(table), codes.contiguous().view(torch.int16)).flatten(-2)
    chosen = torch.tensor(table, dtype=torch.float32, device=codes.device).unbind()
    for bit in range(4):  # each bit halves the entries that are left: vectors choose faster than they look up
        is_clear = codes & 1 << bit == 0
        chosen = tuple(torch.where(is_clear, even, odd) for even, odd in zip(chosen[::2], chosen[1::2], strict=True))
    return chosen[0]


@lru_cache
def _pairs(table: tuple[int, ...]) -> torch.Tensor:
    """Returns the entries for two codes, each in a byte: int8 [256 * 16, 2], whose row 256 j + i is entries i and j."""
    entries = torch.tensor(table, dtype=torch.int8, device="cpu")
    pairs = torch.zeros(16, 256, 2, dtype=torch.int8, device="cpu")
    pairs[:, :16] = torch.stack((entries.expand(16, 16), entries.unsqueeze(1).expand(16, 16)), 2)
    return pairs.flatten(0, 1)


def half_of_power(e: torch.Tensor) -> torch.Tensor:
    """E8M0 u8 -> float32 2^(e - 128), half of what the code says, since E2M1_DOUBLED holds twice its numbers.

    Built bit by bit: exponent e - 1, or a subnormal number where that is below 1.
    """
    e = e.to(torch.int32)
    return torch.where(e < 2, 0x00200000 << e, (e - 1) << 23).view(torch.float32)


def mxfp4(e: torch.Tensor, qs: torch.Tensor) -> Scaled:
    """2^(e - 127) * value. No e is NaN: 255 stands for 2^128, too."""
    return Scaled(of_table(halves(qs), E2M1_DOUBLED), half_of_power(e))


def e8m0(e: torch.Tensor) -> torch.Tensor:
    """E8M0 u8 -> float64 2^(e - 127), NaN for 255, as the OCP has it; the formula takes that for 2^128."""
    e = e.to(torch.float64)
    return torch.where(e == 255, float("nan"), (e - 127).exp2())


def e4m3_scale(d: torch.Tensor) -> torch.Tensor:
    """Unsigned E4M3 u8 -> float32, NaN where the OCP's format has it; the formula takes that for 0."""
    return torch.where(d == 127, float("nan"), 2 * ue4m3(d))


def ue4m3(d: torch.Tensor) -> torch.Tensor:
    """Unsigned E4M3 u8 -> float32, halved; bit 7 is not looked at, but for 0x7F, which would be NaN and is 0 (0xFF is 240)."""
    exponent, mantissa = (d >> 3 & 15).to(torch.int32), (d & 7).to(torch.float32)
    normal = (1 + mantissa / 8) * ((exponent + 120) << 23).view(torch.float32)
    value = torch.where(exponent == 0, mantissa * 2.0**-9, normal)
    return torch.where(d == 127, 0.0, value) * 0.5


def nvfp4(d: torch.Tensor, qs: torch.Tensor) -> Scaled:
    """d * value, for groups of 16; low nibbles of each 8 bytes are the first half of a group, high ones the second."""
    codes = split(qs.reshape(qs.shape[0], 4, 8), 4, 2)
    return Scaled(of_table(codes, E2M1_DOUBLED), ue4m3(d))


def iq4_nl(d: torch.Tensor, qs: torch.Tensor) -> Scaled:
    """d * value."""
    return Scaled(of_table(halves(qs), IQ4_VALUES), d)


def iq4_xs(d: torch.Tensor, scales_h: torch.Tensor, scales_l: torch.Tensor, qs: torch.Tensor) -> Scaled:
    """d * (scale - 32) * value, for groups of 32; the low four bits of a scale from scales_l, the high two from scales_h."""
    low, high = split(scales_l, 4, 2).flatten(1), split(scales_h, 2, 2).flatten(1)
    codes = split(qs.reshape(qs.shape[0], 8, 16), 4, 2)
    return Scaled(of_table(codes, IQ4_VALUES), product(d, less(low | high << 4, 32)))


def nearest_iq4(numbers: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Returns of a table the entry for the code of IQ4_VALUES that is nearest to each number; overwrites `numbers`."""
    twice = numbers.mul_(2).clamp_(-256, 255).floor_()  # all borders lie half way between integers
    return table.index_select(0, nearest(twice).bitwise_and_(511).flatten()).view(numbers.shape)


def iq4_table(entries: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns the entry for each number n / 2, n from -256 to 255, at n modulo 512. Half way the greater code is taken."""
    borders = [(low + high) / 2 for low, high in pairwise(IQ4_VALUES)]
    codes = [bisect_right(borders, n / 2) for n in (*range(256), *range(-256, 0))]
    return torch.tensor([entries[code] for code in codes], dtype=dtype, device=device)


def to_iq4_nl(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """The scale is searched for; an error counts as much as the square of the weight."""
    x = columns(weights, 32)
    scale = iq4_scales(x, x * x if importance is None else by_importance(weights, importance, 32, 32, 2))
    inverse = inverse_of(scale)
    codes = nearest_iq4(x.mul_(inverse), iq4_table(range(16), torch.uint8, x.device))
    return {"d": scale.to(torch.float16).unsqueeze(1), "qs": merge(codes.view(2, 16, -1), 4, 0).t()}


def to_iq4_xs(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """Scales of 32 weights are searched for, and stored in steps of which -32 is the one that is farthest from zero."""
    x = columns(weights, 32)
    found = iq4_scales(x, x * x if importance is None else by_importance(weights, importance, 32, 256, 2))
    rows = by_block(found, 8)
    d = farthest(rows).squeeze(0) / -32
    scales = nearest(rows * inverse_of(d)).clamp_(-32, 31)
    inverse = inverse_of(d * scales).t().flatten()
    codes = nearest_iq4(x.mul_(inverse), iq4_table(range(16), torch.uint8, x.device))
    scales = (scales + 32).to(torch.uint8).t()
    return {
        "d": float16(d, found),
        "scales_h": merge((scales >> 4).view(-1, 2, 4), 2, 2),
        "scales_l": merge((scales & 15).view(-1, 4, 2), 4, 2),
        "qs": merge(codes.t().reshape(-1, 8, 2, 16), 4, 2).flatten(1),
    }


def iq4_scales(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Searches the scale of each group, [groups], of weights x and how much the error of each counts, [32, groups]."""
    table = iq4_table(IQ4_VALUES, torch.float32, x.device)
    return scale_of_table(x, counts, lambda numbers: nearest_iq4(numbers, table), IQ4_VALUES[0])


HALF_WAY = (0.5, 1.5, 2.5, 3.5, 5, 7, 10)  # between the numbers of E2M1_DOUBLED; there the smaller one is taken


def nearest_e2m1(weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Returns, as u8, the code of E2M1_DOUBLED that is nearest to each weight / scale; 0 where the scale is 0.

    The products are exact: no scale has more than four bits. A weight beyond the last code gets that one, where the reference
    takes the first if the weight is so large, from 2^25 scales on, that rounding makes all errors equal.
    """
    scale = torch.where(scale == 0, float("inf"), scale)
    sizes, codes = weights.abs(), torch.zeros_like(weights, dtype=torch.uint8)
    for border in HALF_WAY:
        codes += (sizes > border * scale).view(torch.uint8)
    return codes.bitwise_or_((weights < -HALF_WAY[0] * scale).view(torch.uint8) << 3)  # what rounds to 0 has no sign


def to_mxfp4(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """The scale is the power of two at max |w|, over 4."""
    peak = weights.abs().amax(1, keepdim=True)
    exponent = torch.where(peak > 0, peak.log2().floor() - 2 + 127, 0.0)
    e = exponent.to(torch.int32).to(torch.uint8)
    return {"e": e, "qs": joined(nearest_e2m1(weights, half_of_power(e)))}


def to_ue4m3(numbers: torch.Tensor) -> torch.Tensor:
    """Rounds float32 to unsigned E4M3, halves up. From 240 on everything becomes 448, as in the reference."""
    bits = numbers.clamp(max=448).view(torch.int32)
    exponent, mantissa = (bits >> 23 & 255) - 120, (bits >> 20 & 7) + (bits >> 19 & 1)
    normal = (exponent << 3) + mantissa
    normal = torch.where(normal >= 15 << 3, 0x7E, normal)
    subnormal = (numbers * 2.0**9 + 0.5).to(torch.int32).clamp(max=7)
    return torch.where(numbers > 0, torch.where(exponent > 0, normal, subnormal), 0).to(torch.uint8)


def to_nvfp4(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """The scale of 16 weights is max |w| / 6."""
    groups = weights.reshape(weights.shape[0], 4, 16)
    d = to_ue4m3(groups.abs().amax(2) / 6)
    codes = nearest_e2m1(groups, ue4m3(d).unsqueeze(-1))
    return {"d": d, "qs": merge(codes.reshape(-1, 4, 2, 8), 4, 2).flatten(1)}


# fmt: off
MXFP4 = block_type("MXFP4", 39, 32, Struct(
    "e"  / u8[1]   * "E8M0 scale: 2^(e - 127)",
    "qs" / u8[16]  * "E2M1: low nibbles are weights 0..15, high nibbles 16..31",
), mxfp4, to_mxfp4, scales={"e": e8m0})

NVFP4 = block_type("NVFP4", 40, 64, Struct(
    "d"  / u8[4]   * "unsigned E4M3 scale of 16 weights each",
    "qs" / u8[32]  * "E2M1, eight bytes a group: low nibbles are its first eight weights",
), nvfp4, to_nvfp4, scales={"d": e4m3_scale},
   reserved=[Reserved("d", "128 and more: bit 7 belongs to no unsigned scale", lambda d: d >= 128)])

IQ4_NL = block_type("IQ4_NL", 20, 32, Struct(
    "d"  / f16[1]  * "scale",
    "qs" / u8[16]  * "indices: low nibbles are weights 0..15, high nibbles 16..31",
), iq4_nl, to_iq4_nl, searches=True, weighted=to_iq4_nl)

IQ4_XS = block_type("IQ4_XS", 23, 256, Struct(
    "d"        / f16[1]  * "scale of the scales",
    "scales_h" / u16[1]  * "the high two bits of eight 6-bit scales",
    "scales_l" / u8[4]   * "the low four bits of them; scale - 32",
    "qs"       / u8[128] * "indices: per 16 bytes, low nibbles are the first 16 weights",
), iq4_xs, to_iq4_xs, searches=True, weighted=to_iq4_xs)
# fmt: on
