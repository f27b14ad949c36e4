"""Encoders of ggml's ternary types.

Source: ggml-quants.c of llama.cpp; checked against it bit by bit.
"""

from __future__ import annotations

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.arithmetic import away_from_zero, reciprocal
from glft_schema.tensor_types.engine.bits import pack


def to_digits(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns d, which is max |w|, and round(w / d) + 1 as u8."""
    d = weights.abs().amax(1, keepdim=True)
    return d, (away_from_zero(weights * reciprocal(d)) + 1).view(torch.uint8)


def packed_trits(digits: torch.Tensor, count: int) -> torch.Tensor:
    """[blocks, count, k] -> u8 [blocks, k], the inverse of `trits`; fewer than five digits are the most significant ones."""
    number = torch.zeros_like(digits[:, 0], dtype=torch.int32)
    for digit in range(5):
        number = number * 3 + (digits[:, digit] if digit < count else 0)
    return ((number * 256 + 242) // 243).to(torch.uint8)


def to_tq1_0(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """d is max |w|."""
    d, digits = to_digits(weights)
    blocks = len(weights)
    first = packed_trits(digits[:, :160].reshape(blocks, 5, 32), 5)
    second = packed_trits(digits[:, 160:240].reshape(blocks, 5, 16), 5)
    last = packed_trits(digits[:, 240:].reshape(blocks, 4, 4), 4)
    return {"qs": torch.cat((first, second), 1), "qh": last, "d": d.to(torch.float16)}


def to_tq2_0(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """d is max |w|."""
    d, digits = to_digits(weights)
    qs = pack(digits.reshape(len(weights), 2, 4, 32), 2, 2)
    return {"qs": qs.flatten(1), "d": d.to(torch.float16)}
