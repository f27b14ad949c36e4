"""Types that store numbers one after another, in C order, and the rounding of floats to them.

Source of the rounding: ggml-impl.h of llama.cpp; checked against it bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from glft_schema.codec.numbers import Number
from glft_schema.codec.structs import Struct
from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.chunks import Fault, has_finite_sum
from glft_schema.tensor_types.tensor_type import DIMS, TensorType


def number_type(
    name: str,
    code: int,
    number: Number,
    sentence: str,
    torch_name: str,
    rounded: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> TensorType:
    """Declares a type of one kind of number. `rounded` converts others; by default, torch does."""

    def quantize(weights: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"weights": rounded(weights) if rounded else weights.to(number.dtype)}

    payload, faults = Struct("weights" / number[DIMS] * sentence), changed if number.is_signed else overflow
    return TensorType(name, code, payload, as_stored, quantize, faults, exact=torch_name)


def as_stored(weights: torch.Tensor) -> torch.Tensor:
    """the number as it is stored."""
    return weights


def overflow(weights: torch.Tensor, fields: Mapping[str, torch.Tensor]) -> Iterable[Fault]:
    """Finds finite numbers that became infinite. NaN and infinities are stored unchanged."""
    stored = fields["weights"]
    if torch.finfo(weights.dtype).max > torch.finfo(stored.dtype).max and not has_finite_sum(stored):
        wide = weights if weights.dtype.itemsize > 1 else weights.to(torch.float32)  # torch's float8 has no isfinite
        yield True, f"a finite number is too large for {stored.dtype}", stored.isinf() & wide.isfinite()


def changed(weights: torch.Tensor, fields: Mapping[str, torch.Tensor]) -> Iterable[Fault]:
    """Finds integers that changed."""
    stored = fields["weights"]
    if torch.promote_types(weights.dtype, stored.dtype) != stored.dtype:
        yield True, f"an integer is too large for {stored.dtype}", stored.to(weights.dtype) != weights


def to_f16(weights: torch.Tensor) -> torch.Tensor:
    """Rounds to float16. NaN becomes the quiet NaN of its sign."""
    rounded = weights.to(torch.float16)
    if not has_finite_sum(weights):
        wide = weights.to(torch.float32) if weights.dtype.itemsize == 1 else weights
        quiet = torch.where(wide.signbit(), -0x0200, 0x7E00).to(torch.int16).view(torch.float16)
        rounded = torch.where(wide.isnan(), quiet, rounded)
    return rounded


def to_bf16(weights: torch.Tensor) -> torch.Tensor:
    """Rounds to bfloat16. NaN keeps its upper bits and becomes quiet."""
    rounded = weights.to(torch.bfloat16)
    if not has_finite_sum(weights):
        wide = weights.to(torch.float32)
        quiet = (wide.view(torch.int32) >> 16 | 0x40).to(torch.int16).view(torch.bfloat16)
        rounded = torch.where(wide.isnan(), quiet, rounded)
    return rounded
