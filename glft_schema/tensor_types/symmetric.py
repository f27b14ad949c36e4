"""GLFT's quantized types: signed integer codes times a float16 scale, per row (Q8) or per 64 neighbours in a row (Q4).

    weight[o, i] = code[o, i] * scale[o, i // group]

The scale is rounded to float16 before the codes are computed with it, so that what a file gives back is exactly what
`fake_quantize` predicts. Source: the lab that the format comes from, see docs/glft-v1.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from glft_schema.errors import SchemeError, TensorError
from glft_schema.fields import Rule, Struct, f16, i8, u8
from glft_schema.lazy import torch
from glft_schema.tensor_types.chunks import dequantize_chunks, quantize_chunks, report_faults
from glft_schema.tensor_types.plain import F16, F32
from glft_schema.tensor_types.tensor_type import DIMS, IN, OUT, Fault, TensorType, matrix

GROUP = 64  # weights that share a scale in Q4_per_group_64
Q8_MAX = 127
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
    scales = (groups.abs().amax(-1) / largest).to(scale_dtype)
    divisor = torch.where(scales == 0, 1.0, scales.to(torch.float32))
    codes = (groups / divisor.unsqueeze(-1)).round_().clamp_(-largest - 1, largest)
    return {"scales": scales, "codes": codes.to(torch.int8).reshape(weights.shape)}


def symmetric_weights(scales: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Returns float32 [rows, in], each code [rows, in] times the scale [rows, groups] of its group."""
    groups = codes.reshape(*scales.shape, -1).to(torch.float32)
    return groups.mul_(scales.to(torch.float32).unsqueeze(-1)).reshape(codes.shape)


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Packs int8 [rows, in] of [-8, 7] into u8 [rows, in / 2].

    A pair of codes, seen as one little-endian int16, is ``hhhhhhhh llllllll``; its low four bits and the high code's move
    into one byte: ``hhhh llll``, the even column low.
    """
    pairs = codes.view(torch.int16) & 0x0F0F
    return pairs.bitwise_or_(pairs >> 4).to(torch.uint8)


def unpack_nibbles(nibbles: torch.Tensor) -> torch.Tensor:
    """Unpacks u8 [rows, in / 2] into int8 [rows, in] of [-8, 7], the low nibble first.

    A byte ``hhhh llll``, widened to int16 and laid over itself four bits up, is ``0000hhhh ????llll``: two bytes in column
    order once the middle is masked. Two's complement of four bits: ``(n ^ 8) - 8``.
    """
    wide = nibbles.to(torch.int16)
    return (((wide | wide << 4) & 0x0F0F).view(torch.int8) ^ 8) - 8


def quantize_q8(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """float32 [rows, in] -> scales f16 [rows, 1], codes int8 [rows, in]."""
    return symmetric_codes(weights, weights.shape[1], Q8_MAX, torch.float16)


def quantize_q4(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """float32 [rows, in] -> scales f16 [rows, in / 64], nibbles u8 [rows, in / 2]."""
    made = symmetric_codes(weights, GROUP, Q4_MAX, torch.float16)
    return {"scales": made["scales"], "nibbles": pack_nibbles(made["codes"])}


def dequantize_q4(scales: torch.Tensor, nibbles: torch.Tensor) -> torch.Tensor:
    """scales f16 [rows, in / 64], nibbles u8 [rows, in / 2] -> float32 [rows, in]."""
    return symmetric_weights(scales, unpack_nibbles(nibbles))


def scale_faults(weights: torch.Tensor, fields: Mapping[str, torch.Tensor]) -> Iterable[Fault]:
    """Finds what no scale can carry: NaN, infinities, a scale beyond its dtype, and groups that a zero scale loses."""
    scales = fields["scales"]
    group = weights.shape[1] // scales.shape[1]
    if not bool(scales.isfinite().all()):
        yield True, "NaN cannot be quantized", weights.isnan()
        yield True, "an infinity cannot be quantized", weights.isinf()
        largest = torch.finfo(scales.dtype).max
        unscaled = scales.isinf().repeat_interleave(group, 1)
        yield True, f"max|w| is too large for a {scales.dtype} scale (at most {largest:g})", unscaled
    if bool((scales == 0).any()):
        lost = (scales == 0).repeat_interleave(group, 1) & (weights != 0)
        yield False, f"non-zero weights are stored as 0, because their {scales.dtype} scale underflows", lost


# The types, as docs/glft-v1.md has them.


def is_matrix(at: Any) -> bool:
    """Tells whether the tensor has rows of at least one weight."""
    return len(DIMS(at)) >= 2 and 0 not in DIMS(at)


AT_LEAST_2_DIMS = Rule("quantized-dims", "dims", is_matrix, "at least 2 dims [out, in], none of them 0")

# fmt: off
Q8_PER_CHANNEL = TensorType("Q8_per_channel", 2, Struct(
    AT_LEAST_2_DIMS,
    "scales" / f16[OUT]     * "one scale per output channel",
    "codes"  / i8[OUT, IN]  * "signed 8-bit codes; weight = code * scale of its row",
), symmetric_weights, quantize_q8, scale_faults)

Q4_PER_GROUP_64 = TensorType("Q4_per_group_64", 3, Struct(
    AT_LEAST_2_DIMS,
    Rule("q4-groups", "dims", IN % GROUP == 0, f"`in` to be a multiple of {GROUP}"),
    "scales"  / f16[OUT, IN // GROUP] * "one scale per 64 neighbours in a row",
    "nibbles" / u8[OUT, IN // 2]      * "two 4-bit codes a byte, two's complement, [-8, 7]; low nibble: even column",
), dequantize_q4, quantize_q4, scale_faults)
# fmt: on


# The same for whole tensors, general in the group's size.


class Quantized(NamedTuple):
    """A quantized tensor: int8 `codes` of its shape, and `scales` [out] per channel or [out, in / group_size] per group."""

    codes: torch.Tensor
    scales: torch.Tensor


def quantize_symmetric_per_channel(w: torch.Tensor, *, scale_dtype: torch.dtype | None = None, name: str = "w") -> Quantized:
    """Quantizes to int8, one scale max|row| / 127 per row.

    Args:
        w: any float tensor [out, ...] of at least two dims, of any strides, on any device; the rest of the dims is one row.
        scale_dtype: what the scales are rounded to before the codes are computed; float16, as in a file, unless given.
        name: how errors and warnings call the tensor.

    Returns:
        codes int8 of `w`'s shape, in [-128, 127]; scales [out].

    Raises:
        TensorError: for NaN, an infinity, or a row whose scale overflows; with the first index.
    """
    codes, scales = _quantize(w, None, Q8_MAX, scale_dtype, name)
    return Quantized(codes, scales.reshape(-1))


def quantize_symmetric_per_group(
    w: torch.Tensor, group_size: int = GROUP, *, scale_dtype: torch.dtype | None = None, name: str = "w"
) -> Quantized:
    """Quantizes to int4, one scale max|group| / 7 per `group_size` neighbours in a row.

    Args:
        w: as for `quantize_symmetric_per_channel`; its rows must be whole groups.
        group_size: weights that share a scale.
        scale_dtype: as there.
        name: as there.

    Returns:
        codes int8 of `w`'s shape, in [-8, 7]; scales [out, in / group_size].

    Raises:
        TensorError: as there, or where `group_size` does not divide a row.
    """
    return Quantized(*_quantize(w, group_size, Q4_MAX, scale_dtype, name))


def _quantize(
    w: torch.Tensor, group: int | None, largest: int, scale_dtype: torch.dtype | None, name: str
) -> tuple[torch.Tensor, torch.Tensor]:
    if w.dim() < 2 or not w.numel() or not w.is_floating_point():
        raise TensorError(f"expected float weights [out, in], found {w.dtype} {list(w.shape)}", name)
    columns = matrix(w.shape)[1]
    if columns % (group or columns):
        raise TensorError(f"expected rows that are a multiple of {group} long, found {columns}", name)

    rows, scale_dtype = w.shape[0], scale_dtype or torch.float16
    codes = torch.empty(rows, columns, dtype=torch.int8, device=w.device)
    scales = torch.empty(rows, columns // (group or columns), dtype=scale_dtype, device=w.device)
    made = {"scales": scales, "codes": codes}

    def formula(rows: torch.Tensor) -> dict[str, torch.Tensor]:
        return symmetric_codes(rows, group or columns, largest, scales.dtype)

    quantize_chunks(formula, w, made, torch.float32)
    report_faults(scale_faults(w.detach().reshape(rows, columns), made), name, w.shape)
    return codes.reshape(w.shape), scales


def dequantize_symmetric(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns codes times scales, as `Quantized` has them, in `dtype` (float32 unless given), of the codes' shape."""
    rows = codes.shape[0]
    out = torch.empty(rows, matrix(codes.shape)[1], dtype=dtype or torch.float32, device=codes.device)
    dequantize_chunks(symmetric_weights, {"scales": scales.reshape(rows, -1), "codes": codes.reshape(rows, -1)}, out)
    return out.reshape(codes.shape)


def fake_quantize(w: torch.Tensor, scheme: str = "q4_per_group_64", *, scale_dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns `w` as float32 after a round trip through `scheme`: exactly what a file written with it gives back.

    Args:
        w: the weights.
        scheme: ``f32``, ``f16``, ``q8_per_channel``, or ``q4_per_group_N`` for groups of N (a file has N = 64).
        scale_dtype: what scales are rounded to; float16, as in a file, unless given.

    Raises:
        SchemeError: for another scheme.
        TensorError: where the scheme cannot hold `w`.
    """
    if scheme in (F32.scheme, F16.scheme):
        return w.detach().to(F16.dtype if scheme == F16.scheme else F32.dtype).to(torch.float32)
    if scheme == Q8_PER_CHANNEL.scheme:
        return dequantize_symmetric(*quantize_symmetric_per_channel(w, scale_dtype=scale_dtype))
    prefix, _, size = scheme.rpartition("_")
    if prefix == "q4_per_group" and size.isdecimal() and int(size) > 0:
        return dequantize_symmetric(*quantize_symmetric_per_group(w, int(size), scale_dtype=scale_dtype))
    raise SchemeError(f"expected f32, f16, q8_per_channel or q4_per_group_N, found {scheme!r}")
