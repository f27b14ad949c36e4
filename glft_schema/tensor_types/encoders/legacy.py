"""Encoders of ggml's first quantized types.

Source: ggml-quants.c of llama.cpp; checked against it bit by bit.
"""

from __future__ import annotations

from glft_schema.lazy import torch
from glft_schema.tensor_types.encoders.scale_searches import (
    by_importance,
    columns,
    farthest,
    of_columns,
    scale_alone,
    scale_and_minimum,
    tries,
)
from glft_schema.tensor_types.engine.arithmetic import away_from_zero, reciprocal, total
from glft_schema.tensor_types.engine.packing import pack_halves, pack_neighbours
from glft_schema.tensor_types.engine.scaled import Fields

# The encoders compute in float32, with the scale before it is rounded to float16, as the reference does. Numbers become codes
# by conversion to int8, which drops what is behind the point: torch does that many times faster than `trunc` or `where`. Of
# blocks whose weights are all so small that 1 / d is infinite, d is stored as 0, and codes mean nothing.


def to_q1_0(weights: torch.Tensor) -> Fields:
    """d is the mean of |w|, added up one after another."""
    d = total(weights.abs().t()) / weights.shape[1]
    return {"d": d.to(torch.float16).unsqueeze(1), "qs": pack_neighbours(weights >= 0, 1)}


def to_q2_0(weights: torch.Tensor) -> Fields:
    """d is max |w|."""
    d = weights.abs().amax(1, keepdim=True)
    codes = (away_from_zero(weights * reciprocal(d)) + 1).clamp_(0, 3)
    return {"d": d.to(torch.float16), "qs": pack_neighbours(codes, 2)}


# Where it is known how important weights are, scales are searched for. `importance` has the tensor's rows, [rows, in], since an
# error counts by the mean of its row, too; `weights` have the same numbers, block by block.


def to_q4_0(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """d puts the weight farthest from zero at code 0, which is -8; or is searched for."""
    d, codes = _with_scale(weights, importance, 8)
    return {"d": d.to(torch.float16), "qs": pack_halves(codes)}


def to_q4_1(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """d and m put the least weight at code 0 and the greatest at 15; or are searched for."""
    d, m, codes = _with_minimum(weights, importance, 15)
    return {"d": d.to(torch.float16), "m": m.to(torch.float16), "qs": pack_halves(codes)}


def to_q5_0(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """As Q4_0, with the code 0 for -16."""
    d, codes = _with_scale(weights, importance, 16)
    return {"d": d.to(torch.float16), "qh": pack_neighbours(codes >> 4, 1), "qs": pack_halves(codes & 15)}


def to_q5_1(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """As Q4_1, with codes up to 31."""
    d, m, codes = _with_minimum(weights, importance, 31)
    return {
        "d": d.to(torch.float16),
        "m": m.to(torch.float16),
        "qh": pack_neighbours(codes >> 4, 1),
        "qs": pack_halves(codes & 15),
    }


def _with_scale(weights: torch.Tensor, importance: torch.Tensor | None, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns float32 d [blocks, 1], and codes + `top`, which are below 2 `top`."""
    if importance is not None:
        counts = by_importance(weights, importance, 32, importance.shape[1])
        found = scale_alone(columns(weights, 32), counts, top)
        return found.scale.unsqueeze(1), of_columns(found.codes(), 32)
    d = farthest(weights, 1) / -top
    return d, (weights * reciprocal(d)).add_(top + 0.5).to(torch.int8).clamp_(max=2 * top - 1)


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
    return d, low, (weights - low).mul_(reciprocal(d)).add_(0.5).to(torch.int8).clamp_(max=top)


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
    return d, away_from_zero(weights * reciprocal(d))
