"""Encoders of ggml's ternary types.

Source: ggml-quants.c of llama.cpp; checked against it bit by bit.
"""

from __future__ import annotations

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.arithmetic import away_from_zero, reciprocal
from glft_schema.tensor_types.engine.bits import once, pack, pack_trits
from glft_schema.tensor_types.engine.functions import Fields
from glft_schema.tensor_types.engine.steps import row_step


def to_tq1_0(weights: torch.Tensor) -> Fields:
    """d is max |w|."""
    d, digits = to_digits(weights)
    blocks = len(weights)
    first = pack_trits(digits[:, :160].reshape(blocks, 5, 32), 5)
    second = pack_trits(digits[:, 160:240].reshape(blocks, 5, 16), 5)
    last = pack_trits(digits[:, 240:].reshape(blocks, 4, 4), 4)
    return {"qs": torch.cat((first, second), 1), "qh": last, "d": d.to(torch.float16)}


def to_tq2_0(weights: torch.Tensor) -> Fields:
    """d is max |w|."""
    d, digits = to_digits(weights)
    qs = pack(digits.reshape(len(weights), 2, 4, 32), 2, 2)
    return {"qs": qs.flatten(1), "d": d.to(torch.float16)}


@row_step
def to_digits(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns d = max |w| and the digits round(w / d) + 1 as u8."""
    d = weights.abs().amax(1, keepdim=True)
    return d, (away_from_zero(weights * once(reciprocal(d))) + 1).view(torch.uint8)
