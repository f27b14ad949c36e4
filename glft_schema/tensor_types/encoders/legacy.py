"""Encoders of ggml's first quantized types.

Source: ggml-quants.c of llama.cpp; checked against it bit by bit.

The encoders compute in float32 with the scale before it is rounded to float16, like llama.cpp.
Numbers become codes by conversion to int8, which truncates: in torch, this is many times faster
than `trunc`. If all weights of a block are so small that 1 / d is infinite, d is stored as 0 and
the codes are meaningless.

With an importance, scales are searched for. An `importance` is [rows, in] of the tensor, because
the mean of a row enters the counts; `weights` are split into blocks.
"""

from __future__ import annotations

from glft_schema.lazy import torch
from glft_schema.tensor_types.encoders.scale_searches import by_importance, columns, of_columns, scale_alone, scale_and_minimum
from glft_schema.tensor_types.encoders.trials import tries
from glft_schema.tensor_types.engine.arithmetic import away_from_zero, farthest, first_of_zeros, reciprocal, total, truncated
from glft_schema.tensor_types.engine.bits import once, pack_halves, pack_neighbours
from glft_schema.tensor_types.engine.functions import Fields
from glft_schema.tensor_types.engine.steps import row_step


def to_q1_0(weights: torch.Tensor) -> Fields:
    """d is the mean of |w|, added up in order."""
    d = total(weights.abs().t()) / weights.shape[1]
    return {"d": d.to(torch.float16).unsqueeze(1), "qs": pack_neighbours(weights >= 0, 1)}


def to_q2_0(weights: torch.Tensor) -> Fields:
    """d is max |w|."""
    d = weights.abs().amax(1, keepdim=True)
    codes = (away_from_zero(weights * reciprocal(d)) + 1).clamp_(0, 3)
    return {"d": d.to(torch.float16), "qs": pack_neighbours(codes, 2)}


def to_q4_0(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """d gives the weight farthest from zero code 0, which is -8. By importance, a search."""
    d, codes = _with_scale(weights, importance, 8)
    return {"d": d.to(torch.float16), "qs": pack_halves(codes)}


def to_q4_1(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """d and m give the least weight code 0 and the greatest code 15. By importance, a search."""
    d, m, codes = _with_minimum(weights, importance, 15)
    return {"d": d.to(torch.float16), "m": m.to(torch.float16), "qs": pack_halves(codes)}


def to_q5_0(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """Like Q4_0, with the code 0 for -16."""
    d, codes = _with_scale(weights, importance, 16)
    return {"d": d.to(torch.float16), "qh": pack_neighbours(codes >> 4, 1), "qs": pack_halves(codes & 15)}


def to_q5_1(weights: torch.Tensor, importance: torch.Tensor | None = None) -> Fields:
    """Like Q4_1, with codes up to 31."""
    d, m, codes = _with_minimum(weights, importance, 31)
    qh, qs = pack_neighbours(codes >> 4, 1), pack_halves(codes & 15)
    return {"d": d.to(torch.float16), "m": m.to(torch.float16), "qh": qh, "qs": qs}


def to_q8_0(weights: torch.Tensor) -> Fields:
    """d is max |w| / 127."""
    d, codes = _in_eight_bits(weights)
    return {"d": d.to(torch.float16), "qs": codes}


def to_q8_1(weights: torch.Tensor) -> Fields:
    """Like Q8_0, with the sum."""
    d, codes = _in_eight_bits(weights)
    sums = codes.sum(1, keepdim=True, dtype=torch.int32)
    return {"d": d.to(torch.float16), "s": (sums * d).to(torch.float16), "qs": codes}


def _with_scale(weights: torch.Tensor, importance: torch.Tensor | None, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns float32 d [blocks, 1], and codes + `top`, which are below 2 `top`."""
    if importance is not None:
        counts = by_importance(weights, importance, 32, importance.shape[1])
        best = scale_alone(columns(weights, 32), counts, top)
        return best.scale.unsqueeze(1), of_columns(best.codes(), 32)
    return _from_farthest(weights, top=top)


@row_step
def _from_farthest(weights: torch.Tensor, *, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns float32 d [blocks, 1], which gives the weight farthest from zero the code -top, and
    codes + `top`.
    """
    d = farthest(weights, 1) / -top
    return d, truncated((weights * once(reciprocal(d))).add_(top + 0.5)).clamp_(max=2 * top - 1)


def _with_minimum(
    weights: torch.Tensor, importance: torch.Tensor | None, top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns float32 d and m, [blocks, 1] each, and codes from 0 to `top`."""
    if importance is not None:
        counts = by_importance(weights, importance, 32, importance.shape[1])
        best = scale_and_minimum(columns(weights, 32), counts, top, tries(-0.9, 0.05, range(37), top))
        return best.scale.unsqueeze(1), best.minimum.unsqueeze(1), of_columns(best.codes(), 32)
    d, m, codes = _above_least(weights, top=top)
    return d, first_of_zeros(m, weights, 1), codes


@row_step
def _above_least(weights: torch.Tensor, *, top: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns float32 d and m, [blocks, 1] each, and codes from 0 to `top`. m is 0, not -0."""
    low, high = weights.amin(1, keepdim=True), weights.amax(1, keepdim=True)
    low = torch.where(low == 0, 0.0, low)
    d = (high - low).abs_() / top  # no -0
    return d, low, truncated((weights - low).mul_(once(reciprocal(d))).add_(0.5)).clamp_(max=top)


@row_step
def _in_eight_bits(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns float32 d [blocks, 1] and codes."""
    d = weights.abs().amax(1, keepdim=True) / 127
    return d, away_from_zero(weights * once(reciprocal(d)))
