"""The operations that `as_arrays` prints, for torch. See `numpy_arrays` for their meaning."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from glft_schema.lazy import torch
from glft_schema.scalar.language import MAGIC
from glft_schema.scalar.numpy_arrays import shifts

Sizes: TypeAlias = tuple[int, ...]
NAMES = {"u8": "uint8", "i8": "int8", "i16": "int16", "i32": "int32", "f16": "float16", "f32": "float32", "bool": "bool"}


def table(numbers: np.ndarray[Any, Any], device: torch.device | str = "cpu") -> torch.Tensor:
    return torch.from_numpy(np.array(numbers)).to(device)


def view(x: torch.Tensor, first: int, steps: Sizes, sizes: Sizes) -> torch.Tensor:
    step = x.stride(1)
    strides = (x.stride(0), *(one * step for one in steps))
    return x.as_strided((len(x), *sizes), strides, x.storage_offset() + first * step)


def pick(x: torch.Tensor, at: Any) -> torch.Tensor:
    return x[:, torch.tensor(at, device=x.device)]


def cast(x: torch.Tensor, kind: str) -> torch.Tensor:
    return x.to(getattr(torch, NAMES[kind]))


def to_unsigned(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int32) & 0xFFFF


def constant(w: torch.Tensor, numbers: Any, kind: str) -> torch.Tensor:
    return outside_modes(_constant)(numbers, kind, w.device)  # type: ignore[no-any-return]


def outside_modes(cached: Any) -> Any:
    """Returns a cached function, or the function itself under a mode such as FakeTensorMode, whose
    tensors later calls cannot use."""
    return cached.__wrapped__ if torch._C._len_torch_dispatch_stack() else cached


@lru_cache(maxsize=1 << 10)
def _constant(numbers: Any, kind: str, device: torch.device) -> torch.Tensor:
    return torch.tensor(numbers, dtype=getattr(torch, NAMES[kind]), device=device)[None]


def fill(out: torch.Tensor, x: Any) -> None:
    out[...] = x


def where(test: torch.Tensor, one: Any, other: Any, kind: str) -> torch.Tensor:
    return cast(torch.where(test, one, other), kind)


def shift(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.uint8 or x.device.type != "cpu" or type(by) is not torch.Tensor:
        return x >> by
    out = torch.empty(np.broadcast_shapes(x.shape, by.shape), dtype=x.dtype, device=x.device)  # shifts by a tensor are slow
    for at, places, given in shifts(tuple(x.shape), tuple(by.shape)):
        torch.bitwise_right_shift(x[given], int(by[at]), out=out[places])
    return out


def look_up(numbers: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return numbers.index_select(0, at.flatten()).view(at.shape)


def neighbours(numbers: torch.Tensor, count: int, at: torch.Tensor) -> torch.Tensor:
    rows = numbers.unfold(0, count, 1).contiguous()
    word = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(count * numbers.itemsize)
    if word is None:
        return rows[at.to(torch.int64)]
    return rows.view(word)[:, 0].index_select(0, at.flatten()).view(*at.shape, 1).view(numbers.dtype)


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
