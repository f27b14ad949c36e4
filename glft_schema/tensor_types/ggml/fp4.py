"""Types of four-bit floats: the OCP's MXFP4, NVIDIA's NVFP4, and ggml's IQ4, whose four-bit codes
index a table.

Sources: the block structs and tables of ggml-common.h and the formulas of ggml-quants.c, both of
llama.cpp; checked bit by bit against both. The encoders are in `encoders.fp4`, the scales (E8M0,
E4M3) and tables in `small_floats`.
"""

from __future__ import annotations

from glft_schema.codec.numbers import f16, u8, u16
from glft_schema.codec.structs import Struct
from glft_schema.scalar.language import float32
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.declaration import Reserved, formula_of
from glft_schema.tensor_types.encoders.fp4 import (
    search_mxfp4,
    search_nvfp4,
    to_iq4_nl,
    to_iq4_nl_by_importance,
    to_iq4_xs,
    to_iq4_xs_by_importance,
    to_mxfp4,
    to_nvfp4,
)
from glft_schema.tensor_types.small_floats import (
    IQ4_VALUES,
    e2m1_doubled,
    e4m3_scale,
    e8m0,
    half_e4m3,
    half_power,
)

# fmt: off
MXFP4 = block_type("MXFP4", 39, 32, Struct(
    "e"  / u8[1]   * "E8M0 scale: 2^(e - 127)",
    "qs" / u8[16]  * "E2M1: low nibbles are weights 0..15, high nibbles 16..31",
), quantize=(to_mxfp4, search_mxfp4), scales={"e": e8m0}, searches=True)
# fmt: on


@formula_of(MXFP4)
def decode_mxfp4(w, e, qs):
    """2^(e - 127) * value. e = 255 is 2^128, not NaN."""
    half = half_power(e[0])
    for h in range(2):
        for i in range(16):
            w[16 * h + i] = half * float32(e2m1_doubled(qs[i] >> 4 * h & 15))


# fmt: off
NVFP4 = block_type("NVFP4", 40, 64, Struct(
    "d"  / u8[4]   * "unsigned E4M3 scale of 16 weights each",
    "qs" / u8[32]  * "E2M1, eight bytes a group: low nibbles are its first eight weights",
), quantize=(to_nvfp4, search_nvfp4), scales={"d": e4m3_scale}, searches=True, largest=6 * 448,
   reserved=[Reserved("d", "128 and more: bit 7 belongs to no unsigned scale", lambda d: d >= 128)])
# fmt: on


@formula_of(NVFP4)
def decode_nvfp4(w, d, qs):
    """d * value, for groups of 16; low nibbles of each 8 bytes are the first half of a group, high
    ones the second."""
    for g in range(4):
        half = half_e4m3(d[g])
        for h in range(2):
            for i in range(8):
                w[16 * g + 8 * h + i] = half * float32(e2m1_doubled(qs[8 * g + i] >> 4 * h & 15))


# fmt: off
IQ4_NL = block_type("IQ4_NL", 20, 32, Struct(
    "d"  / f16[1]  * "scale",
    "qs" / u8[16]  * "indices: low nibbles are weights 0..15, high nibbles 16..31",
), quantize=(to_iq4_nl, to_iq4_nl_by_importance))
# fmt: on


@formula_of(IQ4_NL)
def decode_iq4_nl(w, d, qs):
    """d * value."""
    for h in range(2):
        for i in range(16):
            w[16 * h + i] = d[0] * float32(IQ4_VALUES[qs[i] >> 4 * h & 15])


# fmt: off
IQ4_XS = block_type("IQ4_XS", 23, 256, Struct(
    "d"        / f16[1]  * "scale of the scales",
    "scales_h" / u16[1]  * "the high two bits of eight 6-bit scales",
    "scales_l" / u8[4]   * "the low four bits of them; scale - 32",
    "qs"       / u8[128] * "indices: per 16 bytes, low nibbles are the first 16 weights",
), quantize=(to_iq4_xs, to_iq4_xs_by_importance))
# fmt: on


@formula_of(IQ4_XS)
def decode_iq4_xs(w, d, scales_h, scales_l, qs):
    """d * (scale - 32) * value, for groups of 32; the low four bits of a scale from scales_l, the
    high two from scales_h."""
    for g in range(8):
        scale = scales_l[g // 2] >> 4 * (g % 2) & 15 | (scales_h[0] >> 2 * g & 3) << 4
        factor = d[0] * float32(scale - 32)
        for h in range(2):
            for i in range(16):
                w[32 * g + 16 * h + i] = factor * float32(IQ4_VALUES[qs[16 * g + i] >> 4 * h & 15])
