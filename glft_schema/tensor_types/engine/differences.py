"""The greatest difference between two tensors."""

from __future__ import annotations

import math

from glft_schema.lazy import torch


def max_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns max |found - expected|. Equal infinities, or two NaN, differ by 0."""
    if not found.numel():
        return 0.0
    narrow = all(tensor.is_floating_point() and tensor.itemsize <= 4 for tensor in (found, expected))
    for dtype in (torch.float32, torch.float64)[not narrow :]:  # float64 holds every number except integers beyond 2^53
        one, other = found.to(dtype), expected.to(dtype)
        errors = one - other
        low, high = (float(extreme) for extreme in errors.aminmax())  # NaN if there is any
        if math.isfinite(low) and math.isfinite(high):
            return max(0.0, -low, high)
    same = (one == other) | (one.isnan() & other.isnan())
    return float(errors.abs().masked_fill(same, 0.0).nan_to_num(float("inf"), float("inf")).max())
