"""ggml's k-quants: super-blocks of 256 weights with small integer scales, multiplied by one or two
float16 scales.

Sources: the block structs of ggml-common.h and the formulas of ggml-quants.c, both of llama.cpp;
checked bit by bit against both. The encoders are in `encoders.k_quants`.
"""

from __future__ import annotations

from glft_schema.codec.numbers import f16, f32, i8, i16, u8
from glft_schema.codec.structs import Struct
from glft_schema.scalar.language import float32
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.declaration import formula_of
from glft_schema.tensor_types.encoders.k_quants import (
    to_q2_k,
    to_q2_k_by_importance,
    to_q3_k,
    to_q3_k_by_importance,
    to_q4_k,
    to_q4_k_by_importance,
    to_q5_k,
    to_q5_k_by_importance,
    to_q6_k,
    to_q6_k_by_importance,
    to_q8_k,
)

# fmt: off
Q2_K = block_type("Q2_K", 10, 256, Struct(
    "scales" / u8[16]  * "scale (low nibble) and minimum (high nibble) of 16 weights each",
    "qs"     / u8[64]  * "two bits per weight",
    "d"      / f16[1]  * "scale of the scales",
    "dmin"   / f16[1]  * "scale of the minima",
), quantize=(to_q2_k, to_q2_k_by_importance))
# fmt: on


@formula_of(Q2_K)
def decode_q2_k(w, scales, qs, d, dmin):
    """d * scale * code - dmin * minimum, for groups of 16; code k of byte l is weight 32 k + l."""
    for g in range(16):
        factor, low = d[0] * float32(scales[g] & 15), dmin[0] * float32(scales[g] >> 4)
        for i in range(16):
            code = qs[32 * (g // 8) + 16 * (g % 2) + i] >> 2 * (g // 2 % 4) & 3
            w[16 * g + i] = factor * float32(code) - low


# fmt: off
Q3_K = block_type("Q3_K", 11, 256, Struct(
    "hmask"  / u8[32]  * "the third bit of each weight",
    "qs"     / u8[64]  * "two bits per weight",
    "scales" / u8[12]  * "sixteen 6-bit scales of 16 weights each; scale - 32",
    "d"      / f16[1]  * "scale of the scales",
), quantize=(to_q3_k, to_q3_k_by_importance))
# fmt: on


@formula_of(Q3_K)
def decode_q3_k(w, hmask, qs, scales, d):
    """d * (scale - 32) * (code - 4), for groups of 16; the third bit of weight 32 k + l is bit k of
    hmask[l]. Scales have four low bits in bytes 0..7, and two high bits in bytes 8..11."""
    for g in range(16):
        scale = scales[g % 8] >> 4 * (g // 8) & 15 | (scales[8 + g % 4] >> 2 * (g // 4) & 3) << 4
        factor = d[0] * float32(scale - 32)
        for i in range(16):
            low = qs[32 * (g // 8) + 16 * (g % 2) + i] >> 2 * (g // 2 % 4) & 3
            high = hmask[16 * (g % 2) + i] >> g // 2 & 1
            w[16 * g + i] = factor * float32((low | high << 2) - 4)


# fmt: off
Q4_K = block_type("Q4_K", 12, 256, Struct(
    "d"      / f16[1]  * "scale of the scales",
    "dmin"   / f16[1]  * "scale of the minima",
    "scales" / u8[12]  * "eight 6-bit scales and eight 6-bit minima of 32 weights each",
    "qs"     / u8[128] * "four bits per weight",
), quantize=(to_q4_k, to_q4_k_by_importance))
# fmt: on


@formula_of(Q4_K)
def decode_q4_k(w, d, dmin, scales, qs):
    """d * scale * code - dmin * minimum, for groups of 32."""
    for g in range(8):
        scale, minimum = scale_and_minimum(scales, g)
        factor, low = d[0] * float32(scale), dmin[0] * float32(minimum)
        for i in range(32):
            w[32 * g + i] = factor * float32(qs[32 * (g // 2) + i] >> 4 * (g % 2) & 15) - low


def scale_and_minimum(scales, g):
    """Scale and minimum g of Q4_K and Q5_K, six bits each, from 12 bytes.

    With s and m for the bits of a scale and a minimum, g for one of the first four groups:

        byte g      ssSSSSSS  SSSSSS is scale g,   ss the high bits of scale g + 4
        byte g + 4  mmMMMMMM  MMMMMM is minimum g, mm the high bits of minimum g + 4
        byte g + 8  mmmmssss  the low bits of scale and minimum g + 4
    """
    if g < 4:
        scale, minimum = scales[g] & 63, scales[g + 4] & 63
    else:
        scale = scales[g + 4] & 15 | scales[g - 4] >> 6 << 4
        minimum = scales[g + 4] >> 4 | scales[g] >> 6 << 4
    return scale, minimum


# fmt: off
Q5_K = block_type("Q5_K", 13, 256, Struct(
    "d"      / f16[1]  * "scale of the scales",
    "dmin"   / f16[1]  * "scale of the minima",
    "scales" / u8[12]  * "eight 6-bit scales and eight 6-bit minima of 32 weights each",
    "qh"     / u8[32]  * "the fifth bit of each weight",
    "qs"     / u8[128] * "four bits per weight",
), quantize=(to_q5_k, to_q5_k_by_importance))
# fmt: on


@formula_of(Q5_K)
def decode_q5_k(w, d, dmin, scales, qh, qs):
    """d * scale * code - dmin * minimum, for groups of 32, as in Q4_K; the fifth bit of weight
    32 g + i is bit g of qh[i]."""
    for g in range(8):
        scale, minimum = scale_and_minimum(scales, g)
        factor, low = d[0] * float32(scale), dmin[0] * float32(minimum)
        for i in range(32):
            code = qs[32 * (g // 2) + i] >> 4 * (g % 2) & 15 | (qh[i] >> g & 1) << 4
            w[32 * g + i] = factor * float32(code) - low


# fmt: off
Q6_K = block_type("Q6_K", 14, 256, Struct(
    "ql"     / u8[128] * "the low four bits of each weight",
    "qh"     / u8[64]  * "the high two bits of each weight; code - 32",
    "scales" / i8[16]  * "scale of 16 weights each",
    "d"      / f16[1]  * "scale of the scales",
), quantize=(to_q6_k, to_q6_k_by_importance))
# fmt: on


@formula_of(Q6_K)
def decode_q6_k(w, ql, qh, scales, d):
    """d * scale * (code - 32), for groups of 16; the low four bits of a code from ql, the high two
    from qh.

    In each half of 128 weights, byte l of 64 in ql is weight l low and weight 64 + l high, and the
    2-bit fields of byte l of 32 in qh are weights l, 32 + l, 64 + l and 96 + l.
    """
    for h in range(2):
        for g in range(8):
            factor = d[0] * float32(scales[8 * h + g])
            for i in range(16):
                low = ql[64 * h + 16 * (g % 4) + i] >> 4 * (g // 4) & 15
                high = qh[32 * h + 16 * (g % 2) + i] >> 2 * (g // 2) & 3
                w[128 * h + 16 * g + i] = factor * float32((low | high << 4) - 32)


# fmt: off
Q8_K = block_type("Q8_K", 15, 256, Struct(
    "d"      / f32[1]  * "scale",
    "qs"     / i8[256] * "signed codes",
    "bsums"  / i16[16] * "sums of 16 codes each",
), quantize=to_q8_k)
# fmt: on


@formula_of(Q8_K)
def decode_q8_k(w, d, qs):
    """d * code; bsums are for dot products."""
    for i in range(256):
        w[i] = d[0] * float32(qs[i])
