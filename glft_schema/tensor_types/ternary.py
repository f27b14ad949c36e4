"""ggml's ternary types: weights of -1, 0 and 1 times a float16 scale.

Source: the block structs of ggml-common.h and the formulas of ggml-quants.c, both of llama.cpp; checked against them bit by
bit.
"""

from __future__ import annotations

from collections.abc import Callable

from glft_schema.codec.numbers import f16, u8
from glft_schema.codec.structs import Struct
from glft_schema.lazy import torch
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.encoders.ternary import to_tq1_0, to_tq2_0
from glft_schema.tensor_types.engine.bits import along, by_words
from glft_schema.tensor_types.engine.packing import less, planes
from glft_schema.tensor_types.engine.scaled import Scaled
from glft_schema.tensor_types.tensor_type import Reserved


def trits(packed: torch.Tensor, count: int) -> torch.Tensor:
    """Unpacks `count` base-3 digits of each byte, the most significant first: u8 [blocks, k] -> [blocks, count, k].

    A byte is its digits' number times 256 / 243, rounded up: a fixed-point fraction, of which multiplying by 3 pushes digit
    after digit out of the top.
    """
    if not by_words(packed):
        powers = along(1, torch.tensor([3**digit for digit in range(count)], dtype=torch.int32, device=packed.device), 3)
        return ((packed.to(torch.int32).unsqueeze(1) * powers & 255) * 3 >> 8).to(torch.uint8)
    digits, fraction = [], packed.to(torch.int16)
    for _ in range(count):
        tripled = fraction * 3
        digits.append((tripled >> 8).to(torch.uint8))
        fraction = tripled & 255
    return torch.stack(digits, 1)


def tq1_0(qs: torch.Tensor, qh: torch.Tensor, d: torch.Tensor) -> Scaled:
    """d * (digit - 1): five digits a byte in qs, in runs of 32 and of 16 bytes, and four in qh."""
    digits = trits(qs, 5)
    parts = digits[:, :, :32], digits[:, :, 32:], trits(qh, 4)
    return Scaled(less(torch.cat([part.flatten(1) for part in parts], 1), 1), d)


def tq2_0(qs: torch.Tensor, d: torch.Tensor) -> Scaled:
    """d * (code - 1)."""
    return Scaled(less(planes(qs, 2), 1), d)


def not_packed(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns what finds, in u8 [blocks, k], the bytes that `packed_trits` gives for no `count` digits."""

    def found(packed: torch.Tensor) -> torch.Tensor:
        numbers = torch.arange(0, 243, 3 ** (5 - count), device=packed.device)
        return ~torch.isin(packed, ((numbers * 256 + 242) // 243).to(torch.uint8))

    return found


def has_threes(qs: torch.Tensor) -> torch.Tensor:
    """Finds, in u8 [blocks, k], the bytes with a two-bit code of 3."""
    return (qs & qs >> 1 & 0x55) != 0


# fmt: off
TQ1_0 = block_type("TQ1_0", 34, 256, Struct(
    "qs" / u8[48]  * "five base-3 digits a byte: weights 0..159 from 32 bytes, 160..239 from 16",
    "qh" / u8[4]   * "four base-3 digits a byte: weights 240..255",
    "d"  / f16[1]  * "scale",
), tq1_0, to_tq1_0, reserved=[
    Reserved("qs", "a byte that packs no five digits", not_packed(5)),
    Reserved("qh", "a byte that packs no four digits", not_packed(4)),
])

TQ2_0 = block_type("TQ2_0", 35, 256, Struct(
    "qs" / u8[64]  * "two bits a weight; code - 1",
    "d"  / f16[1]  * "scale",
), tq2_0, to_tq2_0, reserved=[Reserved("qs", "code 3, which is no digit", has_threes)])
# fmt: on
