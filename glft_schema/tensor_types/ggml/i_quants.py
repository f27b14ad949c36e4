"""ggml's i-quants: super-blocks of 256 weights, split into short vectors that are entries of a
fixed grid.

Sources: the block structs and grids of ggml-common.h and the formulas of ggml-quants.c, both of
llama.cpp; checked bit by bit against both. The encoders are in `encoders.i_quants`, the entries in
`grids`.
"""

from __future__ import annotations

import numpy as np

from glft_schema.codec.numbers import f16, u8, u16, u32
from glft_schema.codec.structs import Struct
from glft_schema.scalar.language import as_float16, float32
from glft_schema.storage.dtypes import Array
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.declaration import formula_of
from glft_schema.tensor_types.encoders.i_quants import (
    to_iq2_s,
    to_iq2_s_by_importance,
    to_iq2_xs,
    to_iq2_xxs,
    to_iq3_s,
    to_iq3_s_by_importance,
    to_iq3_xxs,
    to_iq3_xxs_by_importance,
)
from glft_schema.tensor_types.encoders.iq1 import to_iq1_m, to_iq1_m_by_importance, to_iq1_s
from glft_schema.tensor_types.grids import (
    IQ1_GRID,
    IQ2_S_GRID,
    IQ2_XS_GRID,
    IQ2_XXS_GRID,
    IQ3_S_GRID,
    IQ3_XXS_GRID,
)

# fmt: off
IQ2_XXS = block_type("IQ2_XXS", 16, 256, Struct(
    "d"      / f16[1]  * "scale of the scales",
    "qs"     / u32[16] * "per 32 weights: a word of four indices, then a word of 4 x 7 sign bits and a 4-bit scale",
), quantize=to_iq2_xxs)
# fmt: on


@formula_of(IQ2_XXS)
def decode_iq2_xxs(w, d, qs):
    """d * (scale + 1/2) / 4 * entry, signed: per 32 weights four indices of a byte, then 4 x 7 sign
    bits and a 4-bit scale."""
    for g in range(8):
        indices, word = qs[2 * g], qs[2 * g + 1]
        factor = d[0] * (0.5 + float32(word >> 28 & 15)) * 0.25
        for v in range(4):
            entry, negative = 8 * (indices >> 8 * v & 255), even(word >> 7 * v & 127)
            for j in range(8):
                w[32 * g + 8 * v + j] = factor * float32(IQ2_XXS_GRID[entry + j] * sign(negative, j))


def even(seven):
    """Returns seven sign bits with an eighth, which makes the number of set bits even."""
    parity = seven ^ seven >> 4
    parity = parity ^ parity >> 2
    return seven | ((parity ^ parity >> 1) & 1) << 7


def sign(negative, j):
    """-1 if bit j is set, else 1."""
    return 1 - 2 * (negative >> j & 1)


# fmt: off
IQ2_XS = block_type("IQ2_XS", 17, 256, Struct(
    "d"      / f16[1]  * "scale of the scales",
    "qs"     / u16[32] * "per 8 weights a word: 9 bits of index, 7 sign bits",
    "scales" / u8[8]   * "a nibble for 16 weights each",
), quantize=to_iq2_xs)
# fmt: on


@formula_of(IQ2_XS)
def decode_iq2_xs(w, d, qs, scales):
    """d * (scale + 1/2) / 4 * entry, signed: per 8 weights a 9-bit index and 7 sign bits, per 16
    weights a 4-bit scale."""
    for g in range(16):
        factor = d[0] * (0.5 + float32(scales[g // 2] >> 4 * (g % 2) & 15)) * 0.25
        for v in range(2):
            entry, negative = 8 * (qs[2 * g + v] & 511), even(qs[2 * g + v] >> 9)
            for j in range(8):
                w[16 * g + 8 * v + j] = factor * float32(IQ2_XS_GRID[entry + j] * sign(negative, j))


# fmt: off
IQ3_XXS = block_type("IQ3_XXS", 18, 256, Struct(
    "d"                / f16[1] * "scale of the scales",
    "qs"               / u8[64] * "an index for 4 weights each",
    "scales_and_signs" / u32[8] * "per 32 weights a word: 4 x 7 sign bits and a 4-bit scale",
), quantize=(to_iq3_xxs, to_iq3_xxs_by_importance))
# fmt: on


@formula_of(IQ3_XXS)
def decode_iq3_xxs(w, d, qs, scales_and_signs):
    """d * (scale + 1/2) / 2 * entry, signed: per 4 weights an index, per 32 weights 4 x 7 sign bits
    and a 4-bit scale."""
    for g in range(8):
        word = scales_and_signs[g]
        factor = d[0] * (0.5 + float32(word >> 28 & 15)) * 0.5
        for v in range(4):
            negative = even(word >> 7 * v & 127)
            for j in range(8):
                magnitude = IQ3_XXS_GRID[4 * qs[8 * g + 2 * v + j // 4] + j % 4]
                w[32 * g + 8 * v + j] = factor * float32(magnitude * sign(negative, j))


# fmt: off
IQ1_S = block_type("IQ1_S", 19, 256, Struct(
    "d"      / f16[1]  * "scale of the scales",
    "qs"     / u8[32]  * "the low eight bits of an index for 8 weights each",
    "qh"     / u16[8]  * "per 32 weights a word: 4 x 3 high bits of indices, a 3-bit scale, the sign of the shift",
), quantize=to_iq1_s)
# fmt: on


@formula_of(IQ1_S)
def decode_iq1_s(w, d, qs, qh):
    """d * (2 scale + 1) * (entry +- 1/8): per 32 weights a word of 4 x 3 high index bits, a 3-bit
    scale, the shift's sign."""
    for g in range(8):
        factor = d[0] * float32(2 * (qh[g] >> 12 & 7) + 1)
        shift = 0.125 - 0.25 * float32(qh[g] >> 15)
        for v in range(4):
            entry = 8 * (qs[4 * g + v] | (qh[g] >> 3 * v & 7) << 8)
            for j in range(8):
                w[32 * g + 8 * v + j] = factor * (float32(IQ1_GRID[entry + j]) + shift)


# fmt: off
IQ3_S = block_type("IQ3_S", 21, 256, Struct(
    "d"         / f16[1]  * "scale of the scales",
    "qs"        / u8[64]  * "the low eight bits of an index for 4 weights each",
    "qh"        / u8[8]   * "the high bits of eight indices each",
    "sign_bits" / u8[32]  * "the signs of 8 weights each",
    "scales"    / u8[4]   * "a nibble for 32 weights each",
), quantize=(to_iq3_s, to_iq3_s_by_importance))
# fmt: on


@formula_of(IQ3_S)
def decode_iq3_s(w, d, qs, qh, sign_bits, scales):
    """d * (1 + 2 scale) * entry, signed: per 4 weights a 9-bit index, one bit of it in qh, per 64
    weights two 4-bit scales."""
    for g in range(8):
        factor = d[0] * float32(1 + 2 * (scales[g // 2] >> 4 * (g % 2) & 15))
        for v in range(4):
            high, negative = qh[g] >> 2 * v, sign_bits[4 * g + v]
            for j in range(8):
                magnitude = IQ3_S_GRID[4 * (qs[8 * g + 2 * v + j // 4] | (high >> j // 4 & 1) << 8) + j % 4]
                w[32 * g + 8 * v + j] = factor * float32(magnitude * sign(negative, j))


# fmt: off
IQ2_S = block_type("IQ2_S", 22, 256, Struct(
    "d"         / f16[1]  * "scale of the scales",
    "qs"        / u8[32]  * "the low eight bits of an index for 8 weights each",
    "sign_bits" / u8[32]  * "the signs of 8 weights each",
    "qh"        / u8[8]   * "the high two bits of four indices each",
    "scales"    / u8[8]   * "a nibble for 16 weights each",
), quantize=(to_iq2_s, to_iq2_s_by_importance))
# fmt: on


@formula_of(IQ2_S)
def decode_iq2_s(w, d, qs, sign_bits, qh, scales):
    """d * (scale + 1/2) / 4 * entry, signed: per 8 weights a 10-bit index, two bits of it in qh,
    and a sign byte."""
    for g in range(16):
        factor = d[0] * (0.5 + float32(scales[g // 2] >> 4 * (g % 2) & 15)) * 0.25
        for v in range(2):
            high = qh[g // 2] >> 4 * (g % 2) + 2 * v & 3
            entry, negative = 8 * (qs[2 * g + v] | high << 8), sign_bits[2 * g + v]
            for j in range(8):
                w[16 * g + 8 * v + j] = factor * float32(IQ2_S_GRID[entry + j] * sign(negative, j))


# fmt: off
IQ1_M = block_type("IQ1_M", 29, 256, Struct(
    "qs"     / u8[32]  * "the low eight bits of an index for 8 weights each",
    "qh"     / u8[16]  * "a nibble for 8 weights each: three high bits of the index, the sign of the shift",
    "scales" / u16[4]  * "four words: sixteen 3-bit scales in the low 12 bits, the float16 d in the high 4",
), quantize=(to_iq1_m, to_iq1_m_by_importance), scales={"scales": lambda scales: top_nibbles(scales)})
# fmt: on


@formula_of(IQ1_M)
def decode_iq1_m(w, qs, qh, scales):
    """d * (2 scale + 1) * (entry +- 1/8): per 8 weights a nibble of three high index bits and the
    shift's sign.

    Four words hold sixteen 3-bit scales in their low 12 bits, and in their top nibbles, lowest
    first, the float16 d.
    """
    d = as_float16(scales[0] >> 12 | scales[1] >> 12 << 4 | scales[2] >> 12 << 8 | scales[3] >> 12 << 12)
    for g in range(16):
        factor = d * float32(2 * (scales[g // 4] >> 3 * (g % 4) & 7) + 1)
        for v in range(2):
            nibble = qh[g] >> 4 * v & 15
            entry, shift = 8 * (qs[2 * g + v] | (nibble & 7) << 8), 0.125 - 0.25 * float32(nibble >> 3)
            for j in range(8):
                w[16 * g + 8 * v + j] = factor * (float32(IQ1_GRID[entry + j]) + shift)


def top_nibbles(scales: Array) -> Array:
    """Returns the float16 in the top nibbles of four words: u16 [blocks, 4] -> [blocks, 1]."""
    shifted = scales >> 12 << np.arange(0, 16, 4, dtype=np.uint16)
    return np.bitwise_or.reduce(shifted, 1, keepdims=True).view(np.float16)
