"""Floats stored as they are: F32 and F16, IEEE 754, little-endian. GLFT and GGUF give them the same codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from glft_schema.fields import Struct, f16, f32
from glft_schema.lazy import torch
from glft_schema.tensor_types.chunks import Fault
from glft_schema.tensor_types.tensor_type import DIMS, TensorType


def as_stored(weights: torch.Tensor) -> torch.Tensor:
    """Returns the stored numbers: they are the tensor's."""
    return weights


def to_f32(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """Rounds to float32."""
    return {"weights": weights.to(torch.float32)}


def to_f16(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """Rounds to float16."""
    return {"weights": weights.to(torch.float16)}


def overflow(weights: torch.Tensor, fields: Mapping[str, torch.Tensor]) -> Iterable[Fault]:
    """Finds finite numbers that became infinite. NaN and infinities are stored as they are."""
    stored = fields["weights"]
    if torch.finfo(weights.dtype).max > torch.finfo(stored.dtype).max:
        wide = weights if weights.dtype.itemsize > 1 else weights.to(torch.float32)  # torch's float8 knows no isfinite
        yield True, f"a finite number is too large for {stored.dtype}", stored.isinf() & wide.isfinite()


# fmt: off
F32 = TensorType("F32", 0, Struct("weights" / f32[DIMS] * "IEEE 754 single"), as_stored, to_f32, overflow, "float32")
F16 = TensorType("F16", 1, Struct("weights" / f16[DIMS] * "IEEE 754 half"),   as_stored, to_f16, overflow, "float16")
# fmt: on
