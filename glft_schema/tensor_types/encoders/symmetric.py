"""Encoders of GLFT's quantized types, as scalar functions of a row, and `symmetric_codes`, which
computes the same codes and scales by torch, for any group.

The scale is rounded before the codes are computed with it. A subnormal scale, rounded down by up to
a third, can give codes beyond the largest one, which are clamped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from glft_schema.lazy import torch
from glft_schema.scalar.language import float16, float32
from glft_schema.tensor_types.encoders.arithmetic import largest
from glft_schema.tensor_types.encoders.searches import code_between
from glft_schema.tensor_types.engine.chunks import Fault

GROUP = 64  # weights that share a scale in Q4_per_group_64
INT8_MAX = 127
Q8_MAX = INT8_MAX
Q4_MAX = 7


def to_q8_per_channel(w, scales, codes):
    """The scale of a row is max |w| / 127."""
    scale = float16(largest(w) / Q8_MAX)
    divisor = scale if scale != 0.0 else float32(1)
    scales[0] = scale
    for i in range(len(w)):
        codes[i] = code_between(w[i] / divisor, low=-Q8_MAX - 1, high=Q8_MAX)


def to_q4_per_group_64(w, scales, nibbles):
    """The scale of 64 neighbours is max |w| / 7. The low nibble of a byte is the even column."""
    for g in range(len(scales)):
        x, packed = w[64 * g : 64 * g + 64], nibbles[32 * g : 32 * g + 32]
        scale = float16(largest(x) / Q4_MAX)
        divisor = scale if scale != 0.0 else float32(1)
        scales[g] = scale
        for i in range(32):
            even = code_between(x[2 * i] / divisor, low=-Q4_MAX - 1, high=Q4_MAX)
            odd = code_between(x[2 * i + 1] / divisor, low=-Q4_MAX - 1, high=Q4_MAX)
            packed[i] = even & 15 | (odd & 15) << 4


def symmetric_codes(weights: torch.Tensor, group: int, largest: int, scale_dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Quantizes each `group` neighbours with the scale max|w| / `largest`.

    Args:
        weights: float32 [rows, in].
        group: a divisor of in.
        largest: the code of max|w|; codes are clamped to [-largest - 1, largest].
        scale_dtype: the dtype to which the scale is rounded before it is used.

    Returns:
        codes int8 [rows, in] and scales [rows, in / group]. A scale that rounds to zero gives codes
            of zero.
    """
    groups = weights.reshape(weights.shape[0], -1, group)
    peaks = torch.maximum(groups.amax(-1), groups.amin(-1).neg_()).abs_()  # max|w|, without writing each |w|
    scales = (peaks / torch.full_like(peaks, largest)).to(scale_dtype)  # a GPU multiplies by the inverse of a scalar divisor
    divisor = torch.where(scales == 0, 1.0, scales.to(torch.float32))
    codes = (groups / divisor.unsqueeze(-1)).round_()
    if largest > INT8_MAX / 1.5:  # a subnormal scale, rounded down by up to a third, can give codes that overflow int8
        codes.clamp_(-largest - 1, largest)
    codes = codes.to(torch.int8).clamp_(-largest - 1, largest)
    return {"scales": scales, "codes": codes.reshape(weights.shape)}


def scale_faults(weights: torch.Tensor, fields: Mapping[str, torch.Tensor]) -> Iterable[Fault]:
    """Finds NaN, infinities, scales that overflow, and non-zero weights whose scale underflows."""
    scales = fields["scales"]
    low, high = (float(extreme) for extreme in scales.aminmax())  # NaN if there is any
    if low > 0 and high < float("inf"):
        return
    group = weights.shape[1] // scales.shape[1]
    yield True, "NaN and infinities cannot be quantized", ~weights.isfinite()
    largest = torch.finfo(scales.dtype).max
    unscaled = scales.isinf().repeat_interleave(group, 1)
    yield True, f"max|w| is too large for a {scales.dtype} scale (at most {largest:g})", unscaled
    lost = (scales == 0).repeat_interleave(group, 1) & (weights != 0)
    yield False, f"non-zero weights are stored as 0, because their {scales.dtype} scale underflows", lost
