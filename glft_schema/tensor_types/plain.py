"""Types that store numbers one after another, in C order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from glft_schema.codec.numbers import Number
from glft_schema.codec.structs import Struct
from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.chunks import Fault
from glft_schema.tensor_types.tensor_type import DIMS, TensorType


def number_type(
    name: str,
    code: int,
    number: Number,
    sentence: str,
    torch_name: str,
    rounded: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> TensorType:
    """Declares a type of one kind of number. `rounded` converts other numbers; by default, torch does."""

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
    if torch.finfo(weights.dtype).max > torch.finfo(stored.dtype).max:
        wide = weights if weights.dtype.itemsize > 1 else weights.to(torch.float32)  # torch's float8 has no isfinite
        yield True, f"a finite number is too large for {stored.dtype}", stored.isinf() & wide.isfinite()


def changed(weights: torch.Tensor, fields: Mapping[str, torch.Tensor]) -> Iterable[Fault]:
    """Finds integers that changed."""
    stored = fields["weights"]
    if torch.promote_types(weights.dtype, stored.dtype) != stored.dtype:
        yield True, f"an integer is too large for {stored.dtype}", stored.to(weights.dtype) != weights
