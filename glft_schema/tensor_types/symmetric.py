"""GLFT's quantized types: signed integer codes times a float16 scale, per row (Q8) or per 64
neighbours in a row (Q4).

    weight[o, i] = code[o, i] * scale[o, i // group]

The scale is rounded to float16 before the codes are computed with it, so that a file decodes to
exactly what `fake_quantize` predicts; see `encoders.symmetric`. Source: the lab that the format
comes from; see docs/reference/glft.md.
"""

from __future__ import annotations

from construct.expr import FuncPath

from glft_schema.codec.numbers import f16, i8, u8
from glft_schema.codec.predicates import meets
from glft_schema.codec.rules import Predicate, Rule
from glft_schema.codec.structs import Struct
from glft_schema.scalar.language import float32
from glft_schema.tensor_types.declaration import formula_of
from glft_schema.tensor_types.encoders.symmetric import GROUP, scale_faults, to_q4_per_group_64, to_q8_per_channel
from glft_schema.tensor_types.payload_layout import DIMS, IN, OUT
from glft_schema.tensor_types.tensor_type import TensorType

matrices = Predicate("at least 2 dims [out, in], none of them 0", FuncPath(lambda dims: len(dims) >= 2 and 0 not in dims))
AT_LEAST_2_DIMS = Rule("quantized-dims", DIMS, matrices)

# fmt: off
Q8_PER_CHANNEL = TensorType("Q8_per_channel", 2, Struct(
    AT_LEAST_2_DIMS,
    "scales" / f16[OUT]     * "one scale per output channel",
    "codes"  / i8[OUT, IN]  * "signed 8-bit codes; weight = code * scale of its row",
), quantize=to_q8_per_channel, faults=scale_faults)
# fmt: on


@formula_of(Q8_PER_CHANNEL)
def decode_q8_per_channel(w, scales, codes):
    """code * scale of the row."""
    for i in range(len(w)):
        w[i] = scales[0] * float32(codes[i])


# fmt: off
Q4_PER_GROUP_64 = TensorType("Q4_per_group_64", 3, Struct(
    AT_LEAST_2_DIMS,
    Rule("q4-groups", DIMS, meets(IN % GROUP == 0, f"`in` to be a multiple of {GROUP}")),
    "scales"  / f16[OUT, IN // GROUP] * "one scale per 64 neighbours in a row",
    "nibbles" / u8[OUT, IN // 2]      * "two 4-bit codes a byte, two's complement, [-8, 7]; low nibble: even column",
), quantize=to_q4_per_group_64, faults=scale_faults)
# fmt: on


@formula_of(Q4_PER_GROUP_64)
def decode_q4_per_group_64(w, scales, nibbles):
    """code * scale of its group, four bits in two's complement."""
    for g in range(len(scales)):
        weights, packed = w[64 * g : 64 * g + 64], nibbles[32 * g : 32 * g + 32]
        for i in range(64):
            weights[i] = scales[g] * float32((packed[i // 2] >> 4 * (i % 2) & 15 ^ 8) - 8)
