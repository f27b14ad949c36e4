"""The operations that `as_torch` prints. Each number is one expression of int32 and float32.
An input viewed with other strides would be copied, so views are indexed.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from glft_schema.lazy import torch
from glft_schema.scalar.language import MAGIC

Sizes: TypeAlias = tuple[int, ...]

# Arrays of blocks


def view(x: torch.Tensor, first: int, steps: Sizes, sizes: Sizes) -> torch.Tensor:
    """Returns the numbers [blocks, *sizes] of blocks, from `first` on in steps."""
    return x[:, _places(first, steps, sizes, x.device)] if sizes else x[:, first]


def pick(x: torch.Tensor, at: Any) -> torch.Tensor:
    """Returns the numbers of blocks at constant indices of any shape."""
    return x[:, torch.tensor(at, device=x.device)]


def cast(x: torch.Tensor, kind: str) -> torch.Tensor:
    return x.to(getattr(torch, kind))


def to_unsigned(x: torch.Tensor) -> torch.Tensor:
    """Reads int16 as unsigned words."""
    return x.to(torch.int32) & 0xFFFF


def weights(w: torch.Tensor, x: Any, sizes: Sizes, order: Sizes) -> torch.Tensor:
    """Expands weights to all axes, and orders the axes from the outermost to the innermost."""
    return (
        torch.as_tensor(x, dtype=torch.float32, device=w.device)
        .expand(len(w), *sizes)
        .permute(0, *(axis + 1 for axis in order))
    )


def join(*parts: torch.Tensor) -> torch.Tensor:
    """Joins the weights that one or several statements write, in order."""
    return parts[0] if len(parts) == 1 else torch.cat([part.flatten(1) for part in parts], 1)


# Constants and tables


def constant(w: torch.Tensor, numbers: Any, kind: str) -> torch.Tensor:
    """Returns constants [1, *axes]."""
    return torch.tensor(numbers, dtype=getattr(torch, kind), device=w.device)[None]


def linear(w: torch.Tensor, first: int, steps: Sizes, sizes: Sizes) -> torch.Tensor:
    """Returns constants [1, *sizes] that are linear in the axes."""
    return _places(first, steps, sizes, w.device)[None]


def _places(first: int, steps: Sizes, sizes: Sizes, device: torch.device) -> torch.Tensor:
    places = torch.full((1,) * len(sizes), first, dtype=torch.int32, device=device)
    for axis, (step, size) in enumerate(zip(steps, sizes, strict=True)):
        if size > 1:
            along = torch.arange(size, dtype=torch.int32, device=device) * step
            places = places + along.view([-1 if axis == dim else 1 for dim in range(len(sizes))])
    return places


def look_up(numbers: torch.Tensor, at: torch.Tensor, first: int, steps: Sizes, sizes: Sizes) -> torch.Tensor:
    """Returns the numbers of a table at `at` plus an index that is linear in the axes."""
    at = at + _places(first, steps, sizes, at.device) if first or any(steps) else at
    return torch.nn.functional.embedding(at, numbers.unsqueeze(1)).squeeze(-1)


# Functions of the language


def where(test: torch.Tensor, one: Any, other: Any, kind: str) -> torch.Tensor:
    return cast(torch.where(test, one, other), kind)


def divide(one: Any, other: Any) -> torch.Tensor:
    """Returns one / other, both as tensors: torch multiplies by the reciprocal of a number."""
    like = one if isinstance(one, torch.Tensor) else other
    return torch.as_tensor(one).to(like) / torch.as_tensor(other).to(like)


def root(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float64).sqrt().to(torch.float32)  # torch's own is not correctly rounded on every CPU


def abs(x: torch.Tensor) -> torch.Tensor:
    return x.abs()


def nearest(x: torch.Tensor) -> torch.Tensor:
    return ((x + MAGIC).view(torch.int32) & 0x7FFFFF) - 0x400000


def truncated(x: torch.Tensor) -> torch.Tensor:
    fits = (x >= -(2.0**31)) & (x < 2.0**31)
    return torch.where(fits, torch.where(fits, x, 0).to(torch.int32), -(2**31))


def float16(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float16).to(torch.float32)


def as_bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32)


def as_float(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.float32)


def as_float16(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int16).view(torch.float16).to(torch.float32)
