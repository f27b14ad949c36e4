"""ggml's k-quants: super-blocks of 256 weights with small integer scales, which one or two float16 scales multiply.

Source: the block structs of ggml-common.h and the formulas of ggml-quants.c, both of llama.cpp; checked against them bit by
bit.
"""

from __future__ import annotations

from glft_schema.fields import Struct
from glft_schema.lazy import torch
from glft_schema.numbers import f16, f32, i8, i16, u8
from glft_schema.tensor_types.bits import split
from glft_schema.tensor_types.blocks import block_type


def planes(qs: torch.Tensor, width: int) -> torch.Tensor:
    """Unpacks bytes whose fields of `width` bits belong to weights 32 apart: u8 [blocks, 32 k] -> [blocks, 32 k f].

    With f = 8 / `width` fields in a byte, weight 32 (f j + s) + l of a block is field s of byte 32 j + l.
    """
    return split(qs.reshape(qs.shape[0], -1, 32), width, 2).flatten(1)


def scaled(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Multiplies codes [blocks, 256] by scales [blocks, groups] of equal neighbours; both float32."""
    return (codes.view(*scales.shape, -1) * scales.unsqueeze(-1)).flatten(1)


def six_bits(scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unpacks the 12 bytes of Q4_K and Q5_K into eight 6-bit scales and eight 6-bit minima, each u8 [blocks, 8].

    With s and m for the bits of a scale and a minimum, g for one of the first four groups::

        byte g      ssSSSSSS  SSSSSS is scale g,   ss the high bits of scale g + 4
        byte g + 4  mmMMMMMM  MMMMMM is minimum g, mm the high bits of minimum g + 4
        byte g + 8  mmmmssss  the low bits of scale and minimum g + 4
    """
    low, middle, high = scales[:, 0:4], scales[:, 4:8], scales[:, 8:12]
    scale = torch.cat((low & 63, high & 15 | low >> 6 << 4), 1)
    minimum = torch.cat((middle & 63, high >> 4 | middle >> 6 << 4), 1)
    return scale, minimum


def q2_k(scales: torch.Tensor, qs: torch.Tensor, d: torch.Tensor, dmin: torch.Tensor) -> torch.Tensor:
    """d * scale * code - dmin * minimum, for groups of 16; low nibbles of scales are scales, high ones minima."""
    codes = planes(qs, 2).to(torch.float32)
    scale = d.to(torch.float32) * (scales & 15).to(torch.float32)
    minimum = dmin.to(torch.float32) * (scales >> 4).to(torch.float32)
    return scaled(codes, scale) - minimum.repeat_interleave(16, 1)


def q3_k(hmask: torch.Tensor, qs: torch.Tensor, scales: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """d * (scale - 32) * (code - 4), for groups of 16; the third bit of weight 32 k + l is bit k of hmask[l].

    The 12 bytes hold sixteen 6-bit scales: low nibbles of bytes 0..7 begin scales 0..7, high nibbles scales 8..15, and
    bytes 8..11 hold their two high bits: of scale g, bits 2 (g // 4) of byte 8 + g % 4.
    """
    low, high = split(scales[:, :8], 4, 1).flatten(1), split(scales[:, 8:], 2, 1).flatten(1)
    factor = d.to(torch.float32) * ((low | high << 4).to(torch.float32) - 32)
    third = planes(hmask, 1)
    codes = (planes(qs, 2) | third << 2).to(torch.float32) - 4
    return scaled(codes, factor)


def q4_k(d: torch.Tensor, dmin: torch.Tensor, scales: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """d * scale * code - dmin * minimum, for groups of 32."""
    return _with_minimum(planes(qs, 4), d, dmin, scales)


def q5_k(d: torch.Tensor, dmin: torch.Tensor, scales: torch.Tensor, qh: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """d * scale * code - dmin * minimum, for groups of 32, as in Q4_K; the fifth bit of weight 32 k + l is bit k of qh[l]."""
    fifth = planes(qh, 1)
    return _with_minimum(planes(qs, 4) | fifth << 4, d, dmin, scales)


def _with_minimum(codes: torch.Tensor, d: torch.Tensor, dmin: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    scale, minimum = six_bits(scales)
    scale, minimum = d.to(torch.float32) * scale.to(torch.float32), dmin.to(torch.float32) * minimum.to(torch.float32)
    return scaled(codes.to(torch.float32), scale) - minimum.repeat_interleave(32, 1)


def q6_k(ql: torch.Tensor, qh: torch.Tensor, scales: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """d * scale * (code - 32), for groups of 16; the low four bits of a code from ql, the high two from qh.

    In each half of 128 weights, byte l of 64 in ql is weight l low and weight 64 + l high, and the 2-bit fields of byte l of
    32 in qh are weights l, 32 + l, 64 + l and 96 + l.
    """
    low = split(ql.reshape(ql.shape[0], 2, 64), 4, 2).flatten(1)
    codes = (low | planes(qh, 2) << 4).to(torch.float32) - 32
    return scaled(codes, d.to(torch.float32) * scales.to(torch.float32))


def q8_k(d: torch.Tensor, qs: torch.Tensor, bsums: torch.Tensor) -> torch.Tensor:
    """d * code; bsums are there for products."""
    return d * qs.to(torch.float32)


# fmt: off
Q2_K = block_type("Q2_K", 10, 256, Struct(
    "scales" / u8[16]  * "scale (low nibble) and minimum (high nibble) of 16 weights each",
    "qs"     / u8[64]  * "two bits a weight",
    "d"      / f16[1]  * "scale of the scales",
    "dmin"   / f16[1]  * "scale of the minima",
), q2_k)

Q3_K = block_type("Q3_K", 11, 256, Struct(
    "hmask"  / u8[32]  * "the third bit of each weight",
    "qs"     / u8[64]  * "two bits a weight",
    "scales" / u8[12]  * "sixteen 6-bit scales of 16 weights each; scale - 32",
    "d"      / f16[1]  * "scale of the scales",
), q3_k)

Q4_K = block_type("Q4_K", 12, 256, Struct(
    "d"      / f16[1]  * "scale of the scales",
    "dmin"   / f16[1]  * "scale of the minima",
    "scales" / u8[12]  * "eight 6-bit scales and eight 6-bit minima of 32 weights each",
    "qs"     / u8[128] * "four bits a weight",
), q4_k)

Q5_K = block_type("Q5_K", 13, 256, Struct(
    "d"      / f16[1]  * "scale of the scales",
    "dmin"   / f16[1]  * "scale of the minima",
    "scales" / u8[12]  * "eight 6-bit scales and eight 6-bit minima of 32 weights each",
    "qh"     / u8[32]  * "the fifth bit of each weight",
    "qs"     / u8[128] * "four bits a weight",
), q5_k)

Q6_K = block_type("Q6_K", 14, 256, Struct(
    "ql"     / u8[128] * "the low four bits of each weight",
    "qh"     / u8[64]  * "the high two bits of each weight; code - 32",
    "scales" / i8[16]  * "scale of 16 weights each",
    "d"      / f16[1]  * "scale of the scales",
), q6_k)

Q8_K = block_type("Q8_K", 15, 256, Struct(
    "d"      / f32[1]  * "scale",
    "qs"     / i8[256] * "signed codes",
    "bsums"  / i16[16] * "sums of 16 codes each",
), q8_k)
# fmt: on
