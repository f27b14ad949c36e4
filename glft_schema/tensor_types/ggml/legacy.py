"""ggml's first quantized types: one or two float16 scales per block.

Sources: the block structs of ggml-common.h and the formulas of ggml-quants.c, both of llama.cpp;
checked bit by bit against both. The encoders are in `encoders.legacy`.
"""

from __future__ import annotations

from glft_schema.codec.numbers import f16, i8, u8, u32
from glft_schema.codec.structs import Struct
from glft_schema.scalar.language import float32
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.declaration import formula_of
from glft_schema.tensor_types.encoders.legacy import (
    to_q1_0,
    to_q2_0,
    to_q4_0,
    to_q4_0_by_importance,
    to_q4_1,
    to_q4_1_by_importance,
    to_q5_0,
    to_q5_0_by_importance,
    to_q5_1,
    to_q5_1_by_importance,
    to_q8_0,
    to_q8_1,
)

# fmt: off
Q1_0 = block_type("Q1_0", 41, 128, Struct(
    "d"  / f16[1]  * "scale",
    "qs" / u8[16]  * "one bit per weight, the lowest first",
), quantize=to_q1_0)
# fmt: on


@formula_of(Q1_0)
def decode_q1_0(w, d, qs):
    """d if the bit is set, else -d."""
    for i in range(128):
        w[i] = d[0] * float32((qs[i // 8] >> i % 8 & 1) * 2 - 1)


# fmt: off
Q2_0 = block_type("Q2_0", 42, 64, Struct(
    "d"  / f16[1]  * "scale",
    "qs" / u8[16]  * "two bits per weight, the lowest first; code - 1",
), quantize=to_q2_0)
# fmt: on


@formula_of(Q2_0)
def decode_q2_0(w, d, qs):
    """d * (code - 1)."""
    for i in range(64):
        w[i] = d[0] * float32((qs[i // 4] >> 2 * (i % 4) & 3) - 1)


# fmt: off
Q4_0 = block_type("Q4_0", 2, 32, Struct(
    "d"  / f16[1]  * "scale",
    "qs" / u8[16]  * "low nibbles are weights 0..15, high nibbles 16..31; code - 8",
), quantize=(to_q4_0, to_q4_0_by_importance))
# fmt: on


@formula_of(Q4_0)
def decode_q4_0(w, d, qs):
    """d * (code - 8)."""
    for h in range(2):
        for i in range(16):
            w[16 * h + i] = d[0] * float32((qs[i] >> 4 * h & 15) - 8)


# fmt: off
Q4_1 = block_type("Q4_1", 3, 32, Struct(
    "d"  / f16[1]  * "scale",
    "m"  / f16[1]  * "minimum",
    "qs" / u8[16]  * "low nibbles are weights 0..15, high nibbles 16..31",
), quantize=(to_q4_1, to_q4_1_by_importance))
# fmt: on


@formula_of(Q4_1)
def decode_q4_1(w, d, m, qs):
    """d * code + m."""
    for h in range(2):
        for i in range(16):
            w[16 * h + i] = d[0] * float32(qs[i] >> 4 * h & 15) + m[0]


# fmt: off
Q5_0 = block_type("Q5_0", 6, 32, Struct(
    "d"  / f16[1]  * "scale",
    "qh" / u32[1]  * "bit i is the fifth bit of weight i",
    "qs" / u8[16]  * "low nibbles are weights 0..15, high nibbles 16..31; code - 16",
), quantize=(to_q5_0, to_q5_0_by_importance))
# fmt: on


@formula_of(Q5_0)
def decode_q5_0(w, d, qh, qs):
    """d * (code - 16), the fifth bit of each code from qh."""
    for h in range(2):
        for i in range(16):
            w[16 * h + i] = d[0] * float32((qs[i] >> 4 * h & 15 | (qh[0] >> 16 * h + i & 1) << 4) - 16)


# fmt: off
Q5_1 = block_type("Q5_1", 7, 32, Struct(
    "d"  / f16[1]  * "scale",
    "m"  / f16[1]  * "minimum",
    "qh" / u32[1]  * "bit i is the fifth bit of weight i",
    "qs" / u8[16]  * "low nibbles are weights 0..15, high nibbles 16..31",
), quantize=(to_q5_1, to_q5_1_by_importance))
# fmt: on


@formula_of(Q5_1)
def decode_q5_1(w, d, m, qh, qs):
    """d * code + m, the fifth bit of each code from qh."""
    for h in range(2):
        for i in range(16):
            w[16 * h + i] = d[0] * float32(qs[i] >> 4 * h & 15 | (qh[0] >> 16 * h + i & 1) << 4) + m[0]


# fmt: off
Q8_0 = block_type("Q8_0", 8, 32, Struct(
    "d"  / f16[1]  * "scale",
    "qs" / i8[32]  * "signed codes",
), quantize=to_q8_0)
# fmt: on


@formula_of(Q8_0)
def decode_q8_0(w, d, qs):
    """d * code."""
    for i in range(32):
        w[i] = d[0] * float32(qs[i])


# fmt: off
Q8_1 = block_type("Q8_1", 9, 32, Struct(
    "d"  / f16[1]  * "scale",
    "s"  / f16[1]  * "d times the sum of the codes",
    "qs" / i8[32]  * "signed codes",
), quantize=to_q8_1)
# fmt: on


@formula_of(Q8_1)
def decode_q8_1(w, d, qs):
    """d * code; s, which is d times the sum of the codes, is for dot products."""
    for i in range(32):
        w[i] = d[0] * float32(qs[i])
