"""Packing and unpacking numbers of one to eight bits. Lower bits come first.

Some functions have two implementations with equal results. Uncompiled on a CPU, moving several
bytes as one word is fastest (`by_words`). For torch.compile, all numbers must come from one
expression of one shape, so that the compiler generates a single loop; reinterpreted words and
concatenated parts prevent that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from glft_schema.lazy import torch


def by_words(tensor: torch.Tensor) -> bool:
    """Tells whether operations run one by one on a CPU: neither compiled nor on a GPU."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def unpack(packed: torch.Tensor, width: int, axis: int) -> torch.Tensor:
    """Unpacks bytes into their 8 / `width` fields of `width` bits, along a new `axis`: u8, or int32
    if compiled.

    For bytes [blocks, k], axis 2 lists the fields of each byte in turn, axis 1 all first fields,
    then all second fields.
    """
    return fields(packed, width, 8 // width, axis)


def pack(codes: torch.Tensor, width: int, axis: int) -> torch.Tensor:
    """The inverse of `unpack`: packs the 8 / `width` codes along `axis` into one byte."""
    return from_fields(codes.to(torch.uint8), width, axis)


def fields(word: torch.Tensor, width: int, count: int, axis: int) -> torch.Tensor:
    """Returns the lowest `count` fields of `width` bits of each integer, along a new `axis`."""
    mask = (1 << width) - 1
    if by_words(word):
        return torch.stack([word >> width * place & mask for place in range(count)], axis)
    shifts = torch.arange(0, width * count, width, dtype=torch.int32, device=word.device)
    return word.unsqueeze(axis) >> along(axis, shifts, word.dim() + 1) & mask


def from_fields(parts: torch.Tensor, width: int, axis: int) -> torch.Tensor:
    """The inverse of `fields`: joins integers of at most `width` bits along `axis`."""
    word, *others = parts.unbind(axis)
    for place, part in enumerate(others, 1):
        word = torch.add(word, part, alpha=1 << width * place)
    return word


def along(axis: int, numbers: torch.Tensor, dims: int) -> torch.Tensor:
    """Returns a vector as a tensor of `dims` dims that lies along `axis`."""
    return numbers.view([-1 if dim == axis else 1 for dim in range(dims)])


def numbers_of_rows(rows: torch.Tensor, span: slice, dtype: torch.dtype, size: int) -> torch.Tensor:
    """Returns a span of bytes of each row as numbers of `size` bytes: a view if possible."""
    if torch.compiler.is_compiling() or any(
        count % size for count in (span.start, span.stop, *rows.shape[1:], rows.stride(0), rows.storage_offset())
    ):
        return rows[:, span].clone(memory_format=torch.contiguous_format).view(dtype)  # one row may be unaligned
    return rows.view(dtype)[:, span.start // size : span.stop // size]


def side_by_side(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenates the bytes of tensors [blocks, numbers] of any dtypes: u8 [blocks, bytes]."""
    word = torch.uint8
    if by_words(parts[0]):  # the widest words that fit all parts
        size = math.gcd(4, *(part.shape[1] * part.itemsize for part in parts))
        word = {4: torch.int32, 2: torch.int16, 1: torch.uint8}[size]
    return torch.cat([part.contiguous().flatten().view(word).view(len(part), -1) for part in parts], 1).view(torch.uint8)
