"""The one place where bytes become torch tensors, and tensors bytes. Numbers are stored as little-endian machines hold them."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from glft_schema.lazy import torch

if sys.byteorder != "little":
    raise ImportError("glft_schema views stored numbers as they are, and needs a little-endian machine")


def tensor_over(view: memoryview, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """Returns a tensor of `shape` over the bytes of a writable `view`, in C order."""
    if math.prod(shape) == 0:
        return torch.empty(list(shape), dtype=dtype)
    flat = torch.frombuffer(view, dtype=dtype)
    return flat if len(shape) == 1 else flat.view(list(shape))


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """Returns the elements of `tensor` in C order as bytes, without a copy where it lies so in main memory already."""
    flat = in_c_order(tensor.detach().cpu().resolve_conj().resolve_neg())
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def in_c_order(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements of `tensor` in one dim, one after another in memory: a view where they lie so already."""
    return tensor.contiguous().as_strided((tensor.numel(),), (1,))  # a dim of one element may have any stride


class Sink:
    """A stream that writes all that it is given: what construct's fields expect of any."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._written = 0

    def write(self, data: bytes | memoryview) -> int:
        """Writes all of `data`. Raises OSError, from the system or where the stream takes no more."""
        self._written += write_all(self._stream, data)
        return memoryview(data).nbytes

    def tell(self) -> int:
        """Returns how many bytes were written through it."""
        return self._written


def write_all(stream: Any, data: bytes | bytearray | memoryview) -> int:
    """Writes all of `data`, in as many calls as the stream takes, and returns how many bytes that were."""
    left = memoryview(data).cast("B")
    while left:
        written = stream.write(left)
        if not written:
            raise OSError("the stream takes no more bytes")
        left = left[written:]
    return memoryview(data).nbytes
