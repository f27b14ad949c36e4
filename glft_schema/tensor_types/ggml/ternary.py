"""ggml's ternary types: weights of -1, 0 and 1 times a float16 scale.

Sources: the block structs of ggml-common.h and the formulas of ggml-quants.c, both of llama.cpp;
checked bit by bit against both. The encoders are in `encoders.ternary`.
"""

from __future__ import annotations

import numpy as np

from glft_schema.codec.numbers import f16, u8
from glft_schema.codec.structs import Struct
from glft_schema.scalar.language import float32
from glft_schema.storage.dtypes import Array
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.declaration import Reserved, formula_of
from glft_schema.tensor_types.encoders.ternary import to_tq1_0, to_tq2_0

POWERS_OF_3 = (1, 3, 9, 27, 81)

# fmt: off
TQ1_0 = block_type("TQ1_0", 34, 256, Struct(
    "qs" / u8[48]  * "five base-3 digits a byte: weights 0..159 from 32 bytes, 160..239 from 16",
    "qh" / u8[4]   * "four base-3 digits a byte: weights 240..255",
    "d"  / f16[1]  * "scale",
), quantize=to_tq1_0, reserved=[
    Reserved("qs", "a byte that packs no five digits", lambda qs: not_packed(qs, 5)),
    Reserved("qh", "a byte that packs no four digits", lambda qh: not_packed(qh, 4)),
])
# fmt: on


@formula_of(TQ1_0)
def decode_tq1_0(w, qs, qh, d):
    """d * (digit - 1): five digits a byte in qs, in runs of 32 and of 16 bytes, and four in qh."""
    for n in range(5):
        for i in range(32):
            w[32 * n + i] = d[0] * float32(digit(qs[i], n) - 1)
    for n in range(5):
        for i in range(16):
            w[160 + 16 * n + i] = d[0] * float32(digit(qs[32 + i], n) - 1)
    for n in range(4):
        for i in range(4):
            w[240 + 4 * n + i] = d[0] * float32(digit(qh[i], n) - 1)


def digit(byte, n):
    """Base-3 digit n of a byte, the most significant first; a byte is a fraction of 256."""
    return (byte * POWERS_OF_3[n] & 255) * 3 >> 8


# fmt: off
TQ2_0 = block_type("TQ2_0", 35, 256, Struct(
    "qs" / u8[64]  * "two bits per weight; code - 1",
    "d"  / f16[1]  * "scale",
), quantize=to_tq2_0, reserved=[Reserved("qs", "code 3, which is no digit", lambda qs: (qs & qs >> 1 & 0x55) != 0)])
# fmt: on


@formula_of(TQ2_0)
def decode_tq2_0(w, qs, d):
    """d * (code - 1)."""
    for h in range(2):
        for k in range(4):
            for i in range(32):
                w[128 * h + 32 * k + i] = d[0] * float32((qs[32 * h + i] >> 2 * k & 3) - 1)


def not_packed(packed: Array, count: int) -> Array:
    """Returns a mask of the bytes [blocks, k] that `pack_digits` never makes of `count` digits."""
    numbers = np.arange(0, 243, 3 ** (5 - count))
    return ~np.isin(packed, (numbers * 256 + 242) // 243)
