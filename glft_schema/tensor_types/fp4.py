"""Types of four-bit floats: the OCP's MXFP4 and NVIDIA's NVFP4, as ggml stores them; and ggml's IQ4, four bits into a table.

Source: the block structs and tables of ggml-common.h and the formulas of ggml-quants.c, both of llama.cpp; checked against them
bit by bit. The formats of the scales: OCP Microscaling Formats v1.0 (E8M0), OCP 8-bit Floating Point v1.0 (E4M3).
"""

from __future__ import annotations

from glft_schema.fields import Struct, f16, u8
from glft_schema.lazy import torch
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.legacy import halves

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
    """2^(e - 127) * value. No NaN: e = 255 is 2^128 / 2 times twice the value."""
    return looked_up(halves(qs), E2M1_DOUBLED) * half_of_power(e)


def ue4m3(d: torch.Tensor) -> torch.Tensor:
    """Unsigned E4M3 u8 -> float32, halved; bit 7 is not looked at, but for 0x7F, which would be NaN and is 0 (0xFF is 240)."""
    exponent, mantissa = (d >> 3 & 15).to(torch.int32), (d & 7).to(torch.float32)
    normal = (1 + mantissa / 8) * ((exponent + 120) << 23).view(torch.float32)
    value = torch.where(exponent == 0, mantissa * 2.0**-9, normal)
    return torch.where(d == 127, 0.0, value) * 0.5


def nvfp4(d: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """d * value, for groups of 16; low nibbles of each 8 bytes are the first half of a group, high ones the second."""
    groups = qs.reshape(qs.shape[0], 4, 8)
    codes = torch.cat((groups & 15, groups >> 4), 2)
    return (looked_up(codes, E2M1_DOUBLED) * ue4m3(d).unsqueeze(-1)).flatten(1)


def iq4_nl(d: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """d * value."""
    return looked_up(halves(qs), IQ4_VALUES) * d.to(torch.float32)


def iq4_xs(d: torch.Tensor, scales_h: torch.Tensor, scales_l: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """d * (scale - 32) * value, for groups of 32; the low four bits of a scale from scales_l, the high two from scales_h."""
    low = torch.stack((scales_l & 15, scales_l >> 4), 2).flatten(1)
    high = torch.stack([scales_h >> 2 * part & 3 for part in range(4)], 2).flatten(1)
    scale = d.to(torch.float32) * ((low | high << 4).to(torch.float32) - 32)
    groups = qs.reshape(qs.shape[0], 8, 16)
    return (looked_up(torch.cat((groups & 15, groups >> 4), 2), IQ4_VALUES) * scale.unsqueeze(-1)).flatten(1)


# fmt: off
MXFP4 = block_type("MXFP4", 39, 32, Struct(
    "e"  / u8[1]   * "E8M0 scale: 2^(e - 127)",
    "qs" / u8[16]  * "E2M1: low nibbles are weights 0..15, high nibbles 16..31",
), mxfp4)

NVFP4 = block_type("NVFP4", 40, 64, Struct(
    "d"  / u8[4]   * "unsigned E4M3 scale of 16 weights each",
    "qs" / u8[32]  * "E2M1, eight bytes a group: low nibbles are its first eight weights",
), nvfp4)

IQ4_NL = block_type("IQ4_NL", 20, 32, Struct(
    "d"  / f16[1]  * "scale",
    "qs" / u8[16]  * "indices: low nibbles are weights 0..15, high nibbles 16..31",
), iq4_nl)

IQ4_XS = block_type("IQ4_XS", 23, 256, Struct(
    "d"        / f16[1]  * "scale of the scales",
    "scales_h" / u8[2]   * "the high two bits of eight 6-bit scales",
    "scales_l" / u8[4]   * "the low four bits of them; scale - 32",
    "qs"       / u8[128] * "indices: per 16 bytes, low nibbles are the first 16 weights",
), iq4_xs)
# fmt: on
