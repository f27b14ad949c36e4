"""Numbers of one, two or four bits that share bytes, unpacked and packed. Lower bits come first."""

from __future__ import annotations

from glft_schema.lazy import torch


def split(packed: torch.Tensor, width: int, axis: int) -> torch.Tensor:
    """Unpacks bytes into their 8 / `width` fields of `width` bits, along a new `axis`.

    Of bytes [blocks, k], axis 2 gives each byte's fields one after another, axis 1 all first fields, then all second ones.
    """
    return torch.stack([packed >> shift & (1 << width) - 1 for shift in range(0, 8, width)], axis)


def merge(codes: torch.Tensor, width: int, axis: int) -> torch.Tensor:
    """Packs what `split` unpacks: the 8 / `width` codes along `axis`, of `width` bits each, into one byte."""
    first, *others = codes.to(torch.uint8).unbind(axis)
    for place, code in enumerate(others, 1):
        first = first | code << width * place
    return first
