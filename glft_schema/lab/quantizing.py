"""Symmetric quantization of whole tensors with any group size, and fake quantization."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from glft_schema.errors import OptionError, SchemeError, TensorError, quote
from glft_schema.formats.registry import format_named
from glft_schema.lazy import outside_graphs, torch
from glft_schema.storage.dtypes import FLOAT32, Array, Dtype, as_dtype, is_float, words
from glft_schema.storage.torch_tensors import as_array, as_tensor
from glft_schema.tensor_types.chunks import RowEncoder, TensorPart, encode_chunks
from glft_schema.tensor_types.conversions import convert
from glft_schema.tensor_types.encoders.symmetric import GROUP, Q4_MAX, Q8_MAX, scale_faults
from glft_schema.tensor_types.payload_layout import Fields, matrix
from glft_schema.tensor_types.symmetric import Q8_PER_CHANNEL

GLFT = format_named("GLFT")


class QuantizedTensor(NamedTuple):
    """A quantized tensor.

    Attributes:
        codes: int8, in the tensor's shape.
        scales: [out] per channel, or [out, in / group_size] per group.
    """

    codes: torch.Tensor
    scales: torch.Tensor


def quantize_symmetric_per_channel(
    w: torch.Tensor, *, scale_dtype: torch.dtype | None = None, name: str = "w"
) -> QuantizedTensor:
    """Quantizes to int8 with one scale per row, max|row| / 127.

    Args:
        w: float tensor [out, ...] of at least two dims; all dims but the first make up a row.
        scale_dtype: dtype to which scales are rounded before codes are computed; by default
            float16, as in a file.
        name: name of the tensor in errors and warnings.

    Returns:
        codes int8 of `w`'s shape, in [-128, 127]; scales [out].

    Raises:
        TensorError: if `w` is not a float tensor of at least two dims, or is empty; for NaN, an
            infinity, or a scale that overflows, with the first index.
        OptionError: for a `scale_dtype` of fewer than 16 bits.
    """
    codes, scales = _quantize(w, None, Q8_MAX, scale_dtype, name)
    return QuantizedTensor(codes, scales.reshape(-1))


def quantize_symmetric_per_group(
    w: torch.Tensor, group_size: int = GROUP, *, scale_dtype: torch.dtype | None = None, name: str = "w"
) -> QuantizedTensor:
    """Quantizes to int4 with one scale, max|group| / 7, per `group_size` neighbours in a row.

    `scale_dtype`, `name` and the errors are as in `quantize_symmetric_per_channel`.

    Args:
        w: float tensor [out, ...] whose rows are whole groups.
        group_size: number of weights that share a scale.

    Returns:
        codes int8 of `w`'s shape, in [-8, 7]; scales [out, in / group_size].

    Raises:
        TensorError: also if a row is not a whole number of groups.
    """
    return QuantizedTensor(*_quantize(w, group_size, Q4_MAX, scale_dtype, name))


@outside_graphs
def _quantize(
    w: torch.Tensor, group: int | None, largest: int, scale_dtype: torch.dtype | None, name: str
) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(w, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, found {quote(w)}")
    if not w.is_floating_point() or not is_float(as_dtype(w.dtype)):
        raise TensorError(f"expected a float dtype, found {w.dtype}: exclude or convert the tensor", name)
    if scale_dtype not in (None, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise OptionError(f"expected a float scale_dtype of at least 16 bits, found {quote(scale_dtype)}")
    if w.dim() < 2 or not w.numel():
        raise TensorError(f"expected at least 2 dims and 1 weight, found {w.dtype} {list(w.shape)}", name)
    rows, columns = matrix(w.shape)
    size = columns if group is None else group
    if size < 1 or columns % size:
        raise TensorError(f"expected a row length that is a multiple of {size}, found {columns}", name)
    codes = np.empty((rows, columns), np.int8)
    scales = np.empty((rows, columns // size), as_dtype(scale_dtype or torch.float16))

    def encode(weights: Array, out: Fields) -> None:
        for field, numbers in _symmetric_codes(weights, size, largest, scales.dtype).items():
            words(out[field])[...] = words(numbers)

    encode_chunks(RowEncoder(encode, scale_faults), as_array(w), {"scales": scales, "codes": codes}, TensorPart(name))
    return as_tensor(codes).reshape(w.shape).to(w.device), as_tensor(scales).to(w.device)


def _symmetric_codes(weights: Array, group: int, largest: int, scale_dtype: Dtype) -> dict[str, Array]:
    """Quantizes groups of `group` neighbours with the scale max|w| / `largest`.

    Args:
        weights: float32 [rows, in].
        group: a divisor of in.
        largest: the code of max|w|; codes are clamped to [-largest - 1, largest].
        scale_dtype: the dtype to which the scale is rounded before it is used.

    Returns:
        codes int8 [rows, in] and scales [rows, in / group]. A scale that rounds to zero gives codes
            of zero.
    """
    groups = weights.reshape(len(weights), -1, group)
    with np.errstate(all="ignore"):
        scales = convert(np.abs(groups).max(-1) / np.float32(largest), scale_dtype)
        rounded = convert(scales, FLOAT32)
        codes = np.rint(groups / np.where(rounded == 0, np.float32(1), rounded)[..., None])
        codes = codes.clip(-largest - 1, largest).astype(np.int8)
    return {"scales": scales, "codes": codes.reshape(weights.shape)}


def dequantize_symmetric(codes: torch.Tensor, scales: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns codes times scales in the codes' shape, as `dtype` (float32 by default)."""
    groups = codes.reshape(*scales.reshape(len(codes), -1).shape, -1)
    weights = groups.to(torch.float32) * scales.reshape(groups.shape[:2]).to(torch.float32).unsqueeze(-1)
    return weights.to(dtype or torch.float32).reshape(codes.shape)


@outside_graphs
def fake_quantize(w: torch.Tensor, scheme: str = "q4_per_group_64", *, scale_dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns `w` as float32 after a round trip through `scheme`, exactly as a file returns it.

    Args:
        w: the weights.
        scheme: a GLFT type such as ``q8_per_channel``, or ``q4_per_group_N`` with groups of N
            weights (64 in a file).
        scale_dtype: dtype to which scales are rounded; by default float16, as in a file.

    Raises:
        SchemeError: for an unknown scheme.
        OptionError: for a `scale_dtype` of fewer than 16 bits.
        TensorError: if the scheme cannot hold `w`.
    """
    if not isinstance(scheme, str):
        raise SchemeError(f"expected the name of a scheme, found {quote(scheme)}")
    exact = {type_.scheme: type_ for type_ in GLFT.types if type_.exact}
    if scheme in exact:
        return as_tensor(exact[scheme].round_trip(as_array(w), "w")).to(w.device, torch.float32)
    if scheme == Q8_PER_CHANNEL.scheme:
        return dequantize_symmetric(*quantize_symmetric_per_channel(w, scale_dtype=scale_dtype))
    prefix, _, size = scheme.rpartition("_")
    if prefix == "q4_per_group" and size.isdecimal() and int(size) > 0:
        return dequantize_symmetric(*quantize_symmetric_per_group(w, int(size), scale_dtype=scale_dtype))
    known = ", ".join([*(type_.scheme for type_ in GLFT.types), "q4_per_group_N"])
    raise SchemeError(f"expected one of {known}, found {scheme!r}")
