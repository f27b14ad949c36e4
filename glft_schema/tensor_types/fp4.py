"""Types of four-bit floats: the OCP's MXFP4 and NVIDIA's NVFP4, as ggml stores them; and ggml's IQ4, four bits into a table.

Source: the block structs and tables of ggml-common.h and the formulas of ggml-quants.c, both of llama.cpp; checked against them
bit by bit. The formats of the scales: OCP Microscaling Formats v1.0 (E8M0), OCP 8-bit Floating Point v1.0 (E4M3).
"""

from __future__ import annotations

from glft_schema.fields import Struct
from glft_schema.lazy import torch
from glft_schema.numbers import f16, u8, u16
from glft_schema.tensor_types.bits import merge, split
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.legacy import halves, joined
from glft_schema.tensor_types.tensor_type import Reserved

E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the value of each four-bit float
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def looked_up(codes: torch.Tensor, table: tuple[int, ...]) -> torch.Tensor:
    """Returns the table's entries, float32, of the shape of `codes`."""
    return torch.tensor(table, dtype=torch.float32, device=codes.device)[codes.to(torch.int32)]


def half_of_power(e: torch.Tensor) -> torch.Tensor:
    """E8M0 u8 -> float32 2^(e - 128), half of what the code says, since E2M1_DOUBLED holds twice its numbers.

    Built bit by bit: exponent e - 1, or a subnormal number where that is below 1.
    """
    e = e.to(torch.int32)
    return torch.where(e < 2, 0x00200000 << e, (e - 1) << 23).view(torch.float32)


def mxfp4(e: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """2^(e - 127) * value. No e is NaN: 255 stands for 2^128, too."""
    return looked_up(halves(qs), E2M1_DOUBLED) * half_of_power(e)


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


def nvfp4(d: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """d * value, for groups of 16; low nibbles of each 8 bytes are the first half of a group, high ones the second."""
    codes = split(qs.reshape(qs.shape[0], 4, 8), 4, 2).flatten(2)
    return (looked_up(codes, E2M1_DOUBLED) * ue4m3(d).unsqueeze(-1)).flatten(1)


def iq4_nl(d: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """d * value."""
    return looked_up(halves(qs), IQ4_VALUES) * d.to(torch.float32)


def iq4_xs(d: torch.Tensor, scales_h: torch.Tensor, scales_l: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """d * (scale - 32) * value, for groups of 32; the low four bits of a scale from scales_l, the high two from scales_h."""
    low, high = split(scales_l, 4, 2).flatten(1), split(scales_h, 2, 2).flatten(1)
    scale = d.to(torch.float32) * ((low | high << 4).to(torch.float32) - 32)
    codes = split(qs.reshape(qs.shape[0], 8, 16), 4, 2).flatten(2)
    return (looked_up(codes, IQ4_VALUES) * scale.unsqueeze(-1)).flatten(1)


def nearest(weights: torch.Tensor, scale: torch.Tensor, table: tuple[int, ...]) -> torch.Tensor:
    """Returns, as u8, which entry of the table times the scale is nearest to each weight, the first of equals."""
    best = torch.zeros_like(weights, dtype=torch.uint8)
    least = (table[0] * scale - weights).abs()
    for code in range(1, len(table)):
        error = (table[code] * scale - weights).abs()
        better = error < least
        best, least = torch.where(better, code, best), torch.where(better, error, least)
    return best.to(torch.uint8)


def to_mxfp4(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """The scale is the power of two at max |w|, over 4."""
    peak = weights.abs().amax(1, keepdim=True)
    exponent = torch.where(peak > 0, peak.log2().floor() - 2 + 127, 0.0)
    e = exponent.to(torch.int32).to(torch.uint8)
    return {"e": e, "qs": joined(nearest(weights, half_of_power(e), E2M1_DOUBLED))}


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
    codes = nearest(groups, ue4m3(d).unsqueeze(-1), E2M1_DOUBLED)
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
), iq4_nl)

IQ4_XS = block_type("IQ4_XS", 23, 256, Struct(
    "d"        / f16[1]  * "scale of the scales",
    "scales_h" / u16[1]  * "the high two bits of eight 6-bit scales",
    "scales_l" / u8[4]   * "the low four bits of them; scale - 32",
    "qs"       / u8[128] * "indices: per 16 bytes, low nibbles are the first 16 weights",
), iq4_xs)
# fmt: on
