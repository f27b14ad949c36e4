"""GLFT's quantized types: signed integer codes times a float16 scale, per row (Q8) or per 64 neighbours in a row (Q4).

    weight[o, i] = code[o, i] * scale[o, i // group]

The scale is rounded to float16 before the codes are computed with it, so that what a file gives back is exactly what
`fake_quantize` predicts. Source: the lab that the format comes from, see docs/formats/glft.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from construct.expr import FuncPath

from glft_schema.codec.numbers import f16, i8, u8
from glft_schema.codec.predicates import meets
from glft_schema.codec.rules import Predicate, Rule
from glft_schema.codec.structs import Struct
from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.bits import signed, unpack
from glft_schema.tensor_types.engine.chunks import Fault
from glft_schema.tensor_types.engine.scaled import Scaled
from glft_schema.tensor_types.tensor_type import DIMS, IN, OUT, TensorType

GROUP = 64  # weights that share a scale in Q4_per_group_64
INT8_MAX = 127
Q8_MAX = INT8_MAX
Q4_MAX = 7


# The formulas, on rows of a matrix. Pure: any device, and torch.compile takes them whole.


def symmetric_codes(weights: torch.Tensor, group: int, largest: int, scale_dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Quantizes each `group` neighbours with the scale max|w| / `largest`.

    Args:
        weights: float32 [rows, in].
        group: a divisor of in.
        largest: the code that max|w| gets; codes are clamped to [-largest - 1, largest].
        scale_dtype: what the scale is rounded to before it is used.

    Returns:
        codes int8 [rows, in] and scales [rows, in / group]. A scale that rounds to zero gives codes of zero.
    """
    groups = weights.reshape(weights.shape[0], -1, group)
    peaks = torch.maximum(groups.amax(-1), groups.amin(-1).neg_()).abs_()  # max|w|, without writing each |w|
    scales = (peaks / torch.full_like(peaks, largest)).to(scale_dtype)  # by a number a GPU would multiply with its inverse
    divisor = torch.where(scales == 0, 1.0, scales.to(torch.float32))
    codes = (groups / divisor.unsqueeze(-1)).round_()
    if largest > INT8_MAX / 1.5:  # a subnormal scale, rounded down by up to a third, can give codes that int8 does not have
        codes.clamp_(-largest - 1, largest)
    codes = codes.to(torch.int8).clamp_(-largest - 1, largest)
    return {"scales": scales, "codes": codes.reshape(weights.shape)}


def symmetric_weights(scales: torch.Tensor, codes: torch.Tensor) -> Scaled:
    """code * scale of its group: codes [rows, in], scales [rows, groups]."""
    return Scaled(codes, scales)


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Packs int8 [rows, in] of [-8, 7] into u8 [rows, in / 2].

    A pair of codes, seen as one little-endian int16, is ``hhhhhhhh llllllll``; its low four bits and the high code's move
    into one byte: ``hhhh llll``, the even column low.
    """
    pairs = codes.view(torch.int16) & 0x0F0F
    return pairs.bitwise_or_(pairs >> 4).to(torch.uint8)


def unpack_nibbles(nibbles: torch.Tensor) -> torch.Tensor:
    """Unpacks u8 [rows, in / 2] into [rows, in / 2, 2] of [-8, 7], the low nibble first: two's complement of four bits."""
    return (signed(unpack(nibbles, 4, 2)) ^ 8) - 8


def quantize_q8(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """float32 [rows, in] -> scales f16 [rows, 1], codes int8 [rows, in]."""
    return symmetric_codes(weights, weights.shape[1], Q8_MAX, torch.float16)


def quantize_q4(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """float32 [rows, in] -> scales f16 [rows, in / 64], nibbles u8 [rows, in / 2]."""
    made = symmetric_codes(weights, GROUP, Q4_MAX, torch.float16)
    return {"scales": made["scales"], "nibbles": pack_nibbles(made["codes"])}


def dequantize_q4(scales: torch.Tensor, nibbles: torch.Tensor) -> Scaled:
    """code * scale of its group: scales f16 [rows, in / 64], nibbles u8 [rows, in / 2]."""
    return Scaled(unpack_nibbles(nibbles), scales)


def scale_faults(weights: torch.Tensor, fields: Mapping[str, torch.Tensor]) -> Iterable[Fault]:
    """Finds what no scale can carry: NaN, infinities, a scale beyond its dtype, and groups that a zero scale loses."""
    scales = fields["scales"]
    low, high = (float(extreme) for extreme in scales.aminmax())  # NaN, where there is one
    if low > 0 and high < float("inf"):
        return
    group = weights.shape[1] // scales.shape[1]
    yield True, "NaN and infinities cannot be quantized", ~weights.isfinite()
    largest = torch.finfo(scales.dtype).max
    unscaled = scales.isinf().repeat_interleave(group, 1)
    yield True, f"max|w| is too large for a {scales.dtype} scale (at most {largest:g})", unscaled
    lost = (scales == 0).repeat_interleave(group, 1) & (weights != 0)
    yield False, f"non-zero weights are stored as 0, because their {scales.dtype} scale underflows", lost


# The types, as docs/formats/glft.md has them.


matrices = Predicate("at least 2 dims [out, in], none of them 0", FuncPath(lambda dims: len(dims) >= 2 and 0 not in dims))
AT_LEAST_2_DIMS = Rule("quantized-dims", DIMS, matrices)

# fmt: off
Q8_PER_CHANNEL = TensorType("Q8_per_channel", 2, Struct(
    AT_LEAST_2_DIMS,
    "scales" / f16[OUT]     * "one scale per output channel",
    "codes"  / i8[OUT, IN]  * "signed 8-bit codes; weight = code * scale of its row",
), symmetric_weights, quantize_q8, scale_faults)

Q4_PER_GROUP_64 = TensorType("Q4_per_group_64", 3, Struct(
    AT_LEAST_2_DIMS,
    Rule("q4-groups", DIMS, meets(IN % GROUP == 0, f"`in` to be a multiple of {GROUP}")),
    "scales"  / f16[OUT, IN // GROUP] * "one scale per 64 neighbours in a row",
    "nibbles" / u8[OUT, IN // 2]      * "two 4-bit codes a byte, two's complement, [-8, 7]; low nibble: even column",
), dequantize_q4, quantize_q4, scale_faults)
# fmt: on
