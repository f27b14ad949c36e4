"""ggml's first quantized types: one or two float16 scales a block. Little-endian.

Source: the block structs of ggml-common.h and the formulas of ggml-quants.c, both of llama.cpp; checked against them bit by
bit.
"""

from __future__ import annotations

from glft_schema.fields import Struct
from glft_schema.lazy import torch
from glft_schema.numbers import f16, i8, u8, u32
from glft_schema.tensor_types.bits import merge, signed, split
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.c_arithmetic import total
from glft_schema.tensor_types.scale_searches import (
    by_importance,
    columns,
    farthest,
    of_columns,
    scale_alone,
    scale_and_minimum,
    tries,
)
from glft_schema.tensor_types.scaled import Scaled


def halves(qs: torch.Tensor) -> torch.Tensor:
    """u8 [blocks, k] -> [blocks, 2, k]: all low nibbles, then all high ones."""
    return split(qs, 4, 1)


def crumbs(qs: torch.Tensor) -> torch.Tensor:
    """u8 [blocks, k] -> [blocks, k, 4]: the four 2-bit numbers of each byte, the lowest first."""
    return split(qs, 2, 2)


def bits(bytes_: torch.Tensor) -> torch.Tensor:
    """u8 [blocks, k] -> [blocks, k, 8]: the bits of each byte, the lowest first."""
    return split(bytes_, 1, 2)


def less(codes: torch.Tensor, zero: int) -> torch.Tensor:
    """Subtracts the code that stands for 0: u8 of at most seven bits -> int8."""
    return signed(codes) - zero


def q1_0(d: torch.Tensor, qs: torch.Tensor) -> Scaled:
    """d where the bit is set, -d where not."""
    return Scaled(less(bits(qs) << 1, 1), d)


def q2_0(d: torch.Tensor, qs: torch.Tensor) -> Scaled:
    """d * (code - 1)."""
    return Scaled(less(crumbs(qs), 1), d)


def q4_0(d: torch.Tensor, qs: torch.Tensor) -> Scaled:
    """d * (code - 8)."""
    return Scaled(less(halves(qs), 8), d)


def q4_1(d: torch.Tensor, m: torch.Tensor, qs: torch.Tensor) -> Scaled:
    """d * code + m."""
    return Scaled(halves(qs), d, m)


def q5_0(d: torch.Tensor, qh: torch.Tensor, qs: torch.Tensor) -> Scaled:
    """d * (code - 16), the fifth bit of each code from qh."""
    return Scaled(less(halves(qs) | bits(qh).view(-1, 2, 16) << 4, 16), d)


def q5_1(d: torch.Tensor, m: torch.Tensor, qh: torch.Tensor, qs: torch.Tensor) -> Scaled:
    """d * code + m, the fifth bit of each code from qh."""
    return Scaled(halves(qs) | bits(qh).view(-1, 2, 16) << 4, d, m)


def q8_0(d: torch.Tensor, qs: torch.Tensor) -> Scaled:
    """d * code."""
    return Scaled(qs, d)


def q8_1(d: torch.Tensor, s: torch.Tensor, qs: torch.Tensor) -> Scaled:
    """d * code; s, which is d times the sum of the codes, is there for products."""
    return Scaled(qs, d)


# The encoders compute in float32, with the scale before it is rounded to float16, as the reference does. Numbers become codes
# by conversion to int8, which drops what is behind the point: torch does that many times faster than `trunc` or `where`. Of
# blocks whose weights are all so small that 1 / d is infinite, d is stored as 0, and codes mean nothing.

Fields = dict[str, "torch.Tensor"]


def joined(codes: torch.Tensor) -> torch.Tensor:
    """[blocks, 2 k] of four bits -> u8 [blocks, k], the inverse of `halves`."""
    return merge(codes.reshape(codes.shape[0], 2, -1), 4, 1)


def packed(codes: torch.Tensor, width: int) -> torch.Tensor:
    """[blocks, k] of `width` bits -> u8 [blocks, k width / 8], the lowest first: the inverse of `bits` and `crumbs`."""
    return merge(codes.reshape(codes.shape[0], -1, 8 // width), width, 2)


def inverse(d: torch.Tensor) -> torch.Tensor:
    """1 / d, and 0 where d is 0."""
    return torch.where(d == 0, 0.0, 1 / d)


BELOW_HALF = 0.5 - 2.0**-25  # the largest float32 below a half: its sum with 0.5 rounds up to 1, with any less it does not


def away_from_zero(numbers: torch.Tensor) -> torch.Tensor:
    """Rounds to int8, halves away from zero, as C's roundf does."""
    return torch.add(numbers, numbers.sign(), alpha=BELOW_HALF).to(torch.int8)


def to_q1_0(weights: torch.Tensor) -> Fields:
    """d is the mean of |w|, added up one after another."""
    d = total(weights.abs().t()) / weights.shape[1]
    return {"d": d.to(torch.float16).unsqueeze(1), "qs": packed(weights >= 0, 1)}


def to_q2_0(weights: torch.Tensor) -> Fields:
    """d is max |w|."""
    d = weights.abs().amax(1, keepdim=True)
    codes = (away_from_zero(weights * inverse(d)) + 1).clamp_(0, 3)
    return {"d": d.to(torch.float16), "qs": packed(codes, 2)}


# Where it is known how important weights are, scales are searched for. `importance` has the tensor's rows, [rows, in], since an
# error counts by the mean of its row, too; `weights` have the same numbers, block by block.


def to_q4_0(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """d puts the weight farthest from zero at code 0, which is -8; or is searched for."""
    d, codes = _with_scale(weights, importance, 8)
    return {"d": d.to(torch.float16), "qs": joined(codes)}


def to_q4_1(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """d and m put the least weight at code 0 and the greatest at 15; or are searched for."""
    d, m, codes = _with_minimum(weights, importance, 15)
    return {"d": d.to(torch.float16), "m": m.to(torch.float16), "qs": joined(codes)}


def to_q5_0(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """As Q4_0, with the code 0 for -16."""
    d, codes = _with_scale(weights, importance, 16)
    return {"d": d.to(torch.float16), "qh": packed(codes >> 4, 1), "qs": joined(codes & 15)}


def to_q5_1(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """As Q4_1, with codes up to 31."""
    d, m, codes = _with_minimum(weights, importance, 31)
    return {"d": d.to(torch.float16), "m": m.to(torch.float16), "qh": packed(codes >> 4, 1), "qs": joined(codes & 15)}


def _with_scale(weights: torch.Tensor, importance: torch.Tensor | None, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns float32 d [blocks, 1], and codes + `top`, which are below 2 `top`."""
    if importance is not None:
        counts = by_importance(weights, importance, 32, importance.shape[1])
        found = scale_alone(columns(weights, 32), counts, top)
        return found.scale.unsqueeze(1), of_columns(found.codes(), 32)
    d = farthest(weights, 1) / -top
    return d, (weights * inverse(d)).add_(top + 0.5).to(torch.int8).clamp_(max=2 * top - 1)


def _with_minimum(
    weights: torch.Tensor, importance: torch.Tensor | None, top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns float32 d and m, [blocks, 1] each, and codes from 0 to `top`."""
    if importance is not None:
        counts = by_importance(weights, importance, 32, importance.shape[1])
        fit = scale_and_minimum(columns(weights, 32), counts, top, tries(-0.9, 0.05, range(37), top))
        return fit.scale.unsqueeze(1), fit.minimum.unsqueeze(1), of_columns(fit.codes(), 32)
    low, high = weights.amin(1, keepdim=True), weights.amax(1, keepdim=True)
    d = (high - low) / top
    return d, low, (weights - low).mul_(inverse(d)).add_(0.5).to(torch.int8).clamp_(max=top)


def to_q8_0(weights: torch.Tensor) -> Fields:
    """d is max |w| / 127."""
    d, codes = _in_eight_bits(weights)
    return {"d": d.to(torch.float16), "qs": codes}


def to_q8_1(weights: torch.Tensor) -> Fields:
    """As Q8_0, with the sum."""
    d, codes = _in_eight_bits(weights)
    sums = codes.sum(1, keepdim=True, dtype=torch.int32)
    return {"d": d.to(torch.float16), "s": (sums * d).to(torch.float16), "qs": codes}


def _in_eight_bits(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns float32 d [blocks, 1] and codes."""
    d = weights.abs().amax(1, keepdim=True) / 127
    return d, away_from_zero(weights * inverse(d))


# fmt: off
Q1_0 = block_type("Q1_0", 41, 128, Struct(
    "d"  / f16[1]  * "scale",
    "qs" / u8[16]  * "a bit a weight, the lowest first",
), q1_0, to_q1_0)

Q2_0 = block_type("Q2_0", 42, 64, Struct(
    "d"  / f16[1]  * "scale",
    "qs" / u8[16]  * "two bits a weight, the lowest first; code - 1",
), q2_0, to_q2_0)

Q4_0 = block_type("Q4_0", 2, 32, Struct(
    "d"  / f16[1]  * "scale",
    "qs" / u8[16]  * "low nibbles are weights 0..15, high nibbles 16..31; code - 8",
), q4_0, to_q4_0, weighted=to_q4_0)

Q4_1 = block_type("Q4_1", 3, 32, Struct(
    "d"  / f16[1]  * "scale",
    "m"  / f16[1]  * "minimum",
    "qs" / u8[16]  * "low nibbles are weights 0..15, high nibbles 16..31",
), q4_1, to_q4_1, weighted=to_q4_1)

Q5_0 = block_type("Q5_0", 6, 32, Struct(
    "d"  / f16[1]  * "scale",
    "qh" / u32[1]  * "bit i is the fifth bit of weight i",
    "qs" / u8[16]  * "low nibbles are weights 0..15, high nibbles 16..31; code - 16",
), q5_0, to_q5_0, weighted=to_q5_0)

Q5_1 = block_type("Q5_1", 7, 32, Struct(
    "d"  / f16[1]  * "scale",
    "m"  / f16[1]  * "minimum",
    "qh" / u32[1]  * "bit i is the fifth bit of weight i",
    "qs" / u8[16]  * "low nibbles are weights 0..15, high nibbles 16..31",
), q5_1, to_q5_1, weighted=to_q5_1)

Q8_0 = block_type("Q8_0", 8, 32, Struct(
    "d"  / f16[1]  * "scale",
    "qs" / i8[32]  * "signed codes",
), q8_0, to_q8_0)

Q8_1 = block_type("Q8_1", 9, 32, Struct(
    "d"  / f16[1]  * "scale",
    "s"  / f16[1]  * "d times the sum of the codes",
    "qs" / i8[32]  * "signed codes",
), q8_1, to_q8_1)
# fmt: on
