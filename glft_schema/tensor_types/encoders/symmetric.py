"""Encoders of GLFT's quantized types. torch.compile compiles each as a single graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.chunks import Fault

GROUP = 64  # weights that share a scale in Q4_per_group_64
INT8_MAX = 127
Q8_MAX = INT8_MAX
Q4_MAX = 7


def quantize_q8(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """float32 [rows, in] -> scales f16 [rows, 1], codes int8 [rows, in]."""
    return symmetric_codes(weights, weights.shape[1], Q8_MAX, torch.float16)


def quantize_q4(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """float32 [rows, in] -> scales f16 [rows, in / 64], nibbles u8 [rows, in / 2]."""
    fields = symmetric_codes(weights, GROUP, Q4_MAX, torch.float16)
    return {"scales": fields["scales"], "nibbles": pack_nibbles(fields["codes"])}


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


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Packs int8 [rows, in] of [-8, 7] into u8 [rows, in / 2].

    A pair of codes, read as one little-endian int16, is ``hhhhhhhh llllllll``. The low four bits of
    both codes move into one byte: ``hhhh llll``, the even column low.
    """
    pairs = codes.view(torch.int16) & 0x0F0F
    return pairs.bitwise_or_(pairs >> 4).to(torch.uint8)


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
