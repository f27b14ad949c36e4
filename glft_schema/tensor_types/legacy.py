"""ggml's first quantized types: one or two float16 scales a block. Little-endian.

Source: the block structs of ggml-common.h and the formulas of ggml-quants.c, both of llama.cpp; checked against them bit by
bit.
"""

from __future__ import annotations

from glft_schema.fields import Struct, f16, i8, u8
from glft_schema.lazy import torch
from glft_schema.tensor_types.blocks import block_type


def halves(qs: torch.Tensor) -> torch.Tensor:
    """u8 [blocks, k] -> [blocks, 2 k]: all low nibbles, then all high ones."""
    return torch.cat((qs & 15, qs >> 4), 1)


def crumbs(qs: torch.Tensor) -> torch.Tensor:
    """u8 [blocks, k] -> [blocks, 4 k]: the four 2-bit numbers of each byte, the lowest first."""
    return torch.stack((qs & 3, qs >> 2 & 3, qs >> 4 & 3, qs >> 6), 2).flatten(1)


def bits(bytes_: torch.Tensor) -> torch.Tensor:
    """u8 [blocks, k] -> [blocks, 8 k]: the bits of each byte, the lowest first."""
    return torch.stack([bytes_ >> bit & 1 for bit in range(8)], 2).flatten(1)


def q1_0(d: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """d where the bit is set, -d where not."""
    d = d.to(torch.float32)
    return torch.where(bits(qs) == 1, d, -d)


def q2_0(d: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """d * (code - 1)."""
    return (crumbs(qs).to(torch.float32) - 1) * d.to(torch.float32)


def q4_0(d: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """d * (code - 8)."""
    return (halves(qs).to(torch.float32) - 8) * d.to(torch.float32)


def q4_1(d: torch.Tensor, m: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """d * code + m."""
    return halves(qs).to(torch.float32) * d.to(torch.float32) + m.to(torch.float32)


def q5_0(d: torch.Tensor, qh: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """d * (code - 16), the fifth bit of each code from qh."""
    return ((halves(qs) | bits(qh) << 4).to(torch.float32) - 16) * d.to(torch.float32)


def q5_1(d: torch.Tensor, m: torch.Tensor, qh: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """d * code + m, the fifth bit of each code from qh."""
    return (halves(qs) | bits(qh) << 4).to(torch.float32) * d.to(torch.float32) + m.to(torch.float32)


def q8_0(d: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """d * code."""
    return qs.to(torch.float32) * d.to(torch.float32)


def q8_1(d: torch.Tensor, s: torch.Tensor, qs: torch.Tensor) -> torch.Tensor:
    """d * code; s, which is d times the sum of the codes, is there for products."""
    return q8_0(d, qs)


# fmt: off
Q1_0 = block_type("Q1_0", 41, 128, Struct(
    "d"  / f16[1]  * "scale",
    "qs" / u8[16]  * "a bit a weight, the lowest first",
), q1_0)

Q2_0 = block_type("Q2_0", 42, 64, Struct(
    "d"  / f16[1]  * "scale",
    "qs" / u8[16]  * "two bits a weight, the lowest first; code - 1",
), q2_0)

Q4_0 = block_type("Q4_0", 2, 32, Struct(
    "d"  / f16[1]  * "scale",
    "qs" / u8[16]  * "low nibbles are weights 0..15, high nibbles 16..31; code - 8",
), q4_0)

Q4_1 = block_type("Q4_1", 3, 32, Struct(
    "d"  / f16[1]  * "scale",
    "m"  / f16[1]  * "minimum",
    "qs" / u8[16]  * "low nibbles are weights 0..15, high nibbles 16..31",
), q4_1)

Q5_0 = block_type("Q5_0", 6, 32, Struct(
    "d"  / f16[1]  * "scale",
    "qh" / u8[4]   * "bit i is the fifth bit of weight i",
    "qs" / u8[16]  * "low nibbles are weights 0..15, high nibbles 16..31; code - 16",
), q5_0)

Q5_1 = block_type("Q5_1", 7, 32, Struct(
    "d"  / f16[1]  * "scale",
    "m"  / f16[1]  * "minimum",
    "qh" / u8[4]   * "bit i is the fifth bit of weight i",
    "qs" / u8[16]  * "low nibbles are weights 0..15, high nibbles 16..31",
), q5_1)

Q8_0 = block_type("Q8_0", 8, 32, Struct(
    "d"  / f16[1]  * "scale",
    "qs" / i8[32]  * "signed codes",
), q8_0)

Q8_1 = block_type("Q8_1", 9, 32, Struct(
    "d"  / f16[1]  * "scale",
    "s"  / f16[1]  * "d times the sum of the codes",
    "qs" / i8[32]  * "signed codes",
), q8_1)
# fmt: on
