"""Packing, unpacking and table lookups of numbers of one to eight bits. Lower bits come first.

Most functions have two implementations with equal results. Uncompiled on a CPU, moving several
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


def is_fused(tensor: torch.Tensor) -> bool:
    """Tells whether operations are compiled into loops for a CPU."""
    return tensor.device.type == "cpu" and torch.compiler.is_compiling()


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


def once(numbers: torch.Tensor) -> torch.Tensor:
    """Keeps a compiler for CPUs from computing numbers again for each weight that uses them."""
    if by_words(numbers) or numbers.device.type != "cpu":
        return numbers
    return numbers.as_strided(numbers.shape, numbers.stride())


def ones(mask: torch.Tensor) -> torch.Tensor:
    """Returns 1 for each true element, else 0: u8, or int32 if compiled."""
    return mask.view(torch.uint8) if by_words(mask) else mask.to(torch.int32)


def along(axis: int, numbers: torch.Tensor, dims: int) -> torch.Tensor:
    """Returns a vector as a tensor of `dims` dims that lies along `axis`."""
    return numbers.view([-1 if dim == axis else 1 for dim in range(dims)])


def looked_up_word(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Returns the numbers of a vector at indices of any shape, none negative."""
    if by_words(index):
        return table.index_select(0, index.flatten()).view(index.shape)
    return torch.nn.functional.embedding(index, table.unsqueeze(1)).squeeze(-1)  # without support for negative indices


def pack_halves(codes: torch.Tensor) -> torch.Tensor:
    """[blocks, 2 k] of four bits -> u8 [blocks, k]: the low nibbles, then the high ones."""
    return pack(codes.reshape(codes.shape[0], 2, -1), 4, 1)


def pack_neighbours(codes: torch.Tensor, width: int) -> torch.Tensor:
    """[blocks, k] of `width` bits -> u8 [blocks, k width / 8], the lowest first."""
    return pack(codes.reshape(codes.shape[0], -1, 8 // width), width, 2)


def pack_planes(codes: torch.Tensor, width: int) -> torch.Tensor:
    """Packs codes of weights that are 32 apart into one byte: u8 [blocks, 256] -> u8 [blocks, 32
    width]."""
    return pack(codes.view(len(codes), -1, 8 // width, 32), width, 2).flatten(1)


def pack_trits(digits: torch.Tensor, count: int) -> torch.Tensor:
    """Packs base-3 digits, the most significant first: [blocks, count, k] -> u8 [blocks, k].

    A byte is the number of five digits times 256 / 243, rounded up; missing digits are 0.
    """
    number = torch.zeros_like(digits[:, 0], dtype=torch.int32)
    for digit in range(5):
        number = number * 3 + (digits[:, digit] if digit < count else 0)
    return ((number * 256 + 242) // 243).to(torch.uint8)


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


def as_bytes(words: torch.Tensor, size: int) -> torch.Tensor:
    """Returns the bytes of integers below 2^(8 `size`), the lowest first: [blocks, k] -> u8
    [blocks, size k]."""
    if by_words(words):
        return words.to(getattr(torch, f"int{8 * size}")).contiguous().view(torch.uint8)
    return torch.stack([(words >> shift & 255).to(torch.uint8) for shift in range(0, 8 * size, 8)], 2).flatten(1)
