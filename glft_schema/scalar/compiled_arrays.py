"""The operations that `as_arrays` prints for torch.compile. Each number is one expression of int32
and float32, which the compiler turns into loops.

An input viewed with other strides would be copied, so views are indexed.
"""

from __future__ import annotations

from typing import Any

from glft_schema.lazy import torch
from glft_schema.scalar.torch_arrays import (
    NAMES,
    Sizes,
    abs,
    as_bits,
    as_float,
    as_float16,
    cast,
    float16,
    nearest,
    pick,
    root,
    table,
    to_unsigned,
    truncated,
    where,
)

__all__ = [
    "abs",
    "as_bits",
    "as_float",
    "as_float16",
    "cast",
    "float16",
    "nearest",
    "pick",
    "root",
    "table",
    "to_unsigned",
    "truncated",
    "where",
]


def view(x: torch.Tensor, first: int, steps: Sizes, sizes: Sizes) -> torch.Tensor:
    return x[:, _places(first, steps, sizes, x.device)] if sizes else x[:, first]


def linear(w: torch.Tensor, first: int, steps: Sizes, sizes: Sizes, kind: str) -> torch.Tensor:
    """Returns constants [1, *sizes] that are linear in the axes."""
    return _places(first, steps, sizes, w.device)[None]


def _places(first: int, steps: Sizes, sizes: Sizes, device: torch.device) -> torch.Tensor:
    places = torch.full((1,) * len(sizes), first, dtype=torch.int32, device=device)
    for axis, (step, size) in enumerate(zip(steps, sizes, strict=True)):
        if size > 1:
            along = torch.arange(size, dtype=torch.int32, device=device) * step
            places = places + along.view([-1 if axis == dim else 1 for dim in range(len(sizes))])
    return places


def constant(w: torch.Tensor, numbers: Any, kind: str) -> torch.Tensor:
    return torch.tensor(numbers, dtype=getattr(torch, NAMES[kind]), device=w.device)[None]


def look_up(numbers: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(at, numbers.unsqueeze(1)).squeeze(-1)


def neighbours(numbers: torch.Tensor, count: int, at: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(at, numbers.unfold(0, count, 1))


def once(x: torch.Tensor) -> torch.Tensor:
    """Keeps a CPU compiler from recomputing numbers for each weight that uses them."""
    return x.as_strided(x.shape, x.stride()) if x.device.type == "cpu" else x


def weights(x: torch.Tensor, sizes: Sizes, order: Sizes) -> torch.Tensor:
    """Expands weights to all axes, and orders the axes from the outermost to the innermost."""
    return x.expand(-1, *sizes).permute(0, *(axis + 1 for axis in order))


def join(*parts: torch.Tensor) -> torch.Tensor:
    """Joins the weights that one or several statements write, in order."""
    return parts[0] if len(parts) == 1 else torch.cat([part.flatten(1) for part in parts], 1)
