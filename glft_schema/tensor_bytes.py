"""The one place where bytes become torch tensors, and tensors bytes. Little-endian hosts only, like the stored numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from glft_schema.lazy import torch


def tensor_over(view: memoryview, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """Returns a tensor of `shape` over the bytes of `view`, in C order.

    A writable view is taken as it is, a read-only one is copied: writing into the result never changes what was read.
    """
    if math.prod(shape) == 0:
        return torch.empty(*shape, dtype=dtype)
    if view.readonly:
        view = memoryview(bytearray(view))
    return torch.frombuffer(view, dtype=dtype).view(*shape)


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """Returns the elements of `tensor` in C order as bytes, without a copy where it lies so in main memory already."""
    flat = tensor.detach().cpu().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
