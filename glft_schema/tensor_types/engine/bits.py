"""Packing, unpacking and table lookups of numbers of one to eight bits. Lower bits come first.

Most functions have two implementations with equal results. Uncompiled on a CPU, moving several
bytes as one word is fastest (`by_words`). For torch.compile, all numbers must come from one
expression of one shape, so that the compiler generates a single loop; reinterpreted words and
concatenated parts prevent that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

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
    if not by_words(packed):
        return fields(packed.to(torch.int32), width, 8 // width, axis)
    if axis == packed.dim() and width == 4:
        wide = packed.to(torch.int16)  # 00000000hhhhllll | 0000hhhhllll0000 is 0000hhhh????llll, which is masked
        return ((wide | wide << 4) & 0x0F0F).view(torch.uint8).view(*packed.shape, 2)
    if axis == packed.dim():  # interleaving single bytes is slow: all fields of a byte are looked up together
        return looked_up(_fields_of_bytes(width), packed)
    packed, mask, last = packed.contiguous(), (1 << width) - 1, 8 - width
    return torch.stack([packed & mask, *(packed >> shift & mask for shift in range(width, last, width)), packed >> last], axis)


def pack(codes: torch.Tensor, width: int, axis: int) -> torch.Tensor:
    """The inverse of `unpack`: packs the 8 / `width` codes along `axis` into one byte."""
    return from_fields(codes.to(torch.uint8), width, axis)


def signed(codes: torch.Tensor) -> torch.Tensor:
    """Returns codes of at most seven bits, from `unpack`, as numbers of a signed type."""
    return codes.view(torch.int8) if codes.dtype == torch.uint8 else codes


def stack(parts: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
    """Stacks tensors of equal shape along a new axis."""
    if by_words(parts[0]):
        return torch.stack(list(parts), axis)
    place = along(axis, torch.arange(len(parts), device=parts[0].device), parts[0].dim() + 1)
    *others, chosen = (part.unsqueeze(axis) for part in parts)
    for number, part in enumerate(others):
        chosen = torch.where(place == number, part, chosen)
    return chosen


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


def looked_up(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Returns rows of 1, 2, 4 or 8 bytes of a table: [blocks, ..., k] for indices [blocks, ...]."""
    if not by_words(index):
        return table[index.to(torch.int32)]
    word = getattr(torch, f"int{8 * table.shape[1]}")  # a row is one word
    rows = table.view(word).squeeze(1).expand(len(index), -1).gather(1, index.flatten(1).to(torch.int64))
    return rows.view(*index.shape, 1).view(table.dtype)


def looked_up_word(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Returns the numbers of a vector at indices of any shape, none negative."""
    if by_words(index):
        return table.index_select(0, index.flatten()).view(index.shape)
    return torch.nn.functional.embedding(index, table.unsqueeze(1)).squeeze(-1)  # without support for negative indices


def looked_up_pairs(table: torch.Tensor, words: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Returns pairs of rows of a table int8 [entries, 4] without negative numbers: [blocks, k, 8]
    for indices [blocks, 2 k].

    `words` is the table as int32 [entries], which torch.compile cannot make.
    """
    if by_words(index):
        return looked_up(table, index).view(len(index), -1, 8)
    low, high = (words[index[:, half::2].to(torch.int32)].unsqueeze(2) for half in range(2))
    place = torch.arange(8, dtype=torch.int32, device=index.device)
    return torch.where(place < 4, low, high) >> 8 * (place & 3) & 255


def of_table(codes: torch.Tensor, table: tuple[int, ...]) -> torch.Tensor:
    """Returns the entries of a table for codes of four bits: int8, or float32 if compiled."""
    if by_words(codes):
        return looked_up(_pairs(table), codes.contiguous().view(torch.int16)).flatten(-2)
    chosen = torch.tensor(table, dtype=torch.float32, device=codes.device).unbind()
    for bit in range(4):  # each bit halves the remaining entries: vector units select faster than they look up
        is_clear = codes & 1 << bit == 0
        chosen = tuple(torch.where(is_clear, even, odd) for even, odd in zip(chosen[::2], chosen[1::2], strict=True))
    return chosen[0]


@lru_cache
def _pairs(table: tuple[int, ...]) -> torch.Tensor:
    """Returns the entries of pairs of codes, i and j in row 256 j + i: int8 [256 * 16, 2]."""
    entries = torch.tensor(table, dtype=torch.int8, device="cpu")
    pairs = torch.zeros(16, 256, 2, dtype=torch.int8, device="cpu")
    pairs[:, :16] = torch.stack((entries.expand(16, 16), entries.unsqueeze(1).expand(16, 16)), 2)
    return pairs.flatten(0, 1)


def numbers_of_rows(rows: torch.Tensor, span: slice, dtype: torch.dtype, size: int) -> torch.Tensor:
    """Returns a span of bytes of each row as numbers of `size` bytes: a view if possible."""
    if torch.compiler.is_compiling() or any(
        count % size for count in (span.start, span.stop, *rows.shape[1:], rows.stride(0), rows.storage_offset())
    ):
        return rows[:, span].contiguous().view(dtype)
    return rows.view(dtype)[:, span.start // size : span.stop // size]


def side_by_side(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenates the bytes of tensors [blocks, numbers] of any dtypes: u8 [blocks, bytes]."""
    word = torch.uint8
    if by_words(parts[0]):  # the widest words that fit all parts
        size = math.gcd(4, *(part.shape[1] * part.itemsize for part in parts))
        word = {4: torch.int32, 2: torch.int16, 1: torch.uint8}[size]
    return torch.cat([part.contiguous().flatten().view(word).view(len(part), -1) for part in parts], 1).view(torch.uint8)


def words(fields: torch.Tensor, size: int) -> torch.Tensor:
    """Reads unsigned little-endian words: u8 [blocks, size k] -> int64 [blocks, k]."""
    if by_words(fields):
        copied = fields.clone(memory_format=torch.contiguous_format)  # the field of a single block may be unaligned
        return copied.view(getattr(torch, f"int{8 * size}")).to(torch.int64) & (1 << 8 * size) - 1
    return from_fields(fields.to(torch.int64).reshape(fields.shape[0], -1, size), 8, 2)


def as_bytes(words: torch.Tensor, size: int) -> torch.Tensor:
    """The inverse of `words`: integers below 2^(8 `size`) [blocks, k] -> u8 [blocks, size k]."""
    if by_words(words):
        return words.to(getattr(torch, f"int{8 * size}")).contiguous().view(torch.uint8)
    return stack([(words >> shift & 255).to(torch.uint8) for shift in range(0, 8 * size, 8)], 2).flatten(1)


@lru_cache
def _fields_of_bytes(width: int) -> torch.Tensor:
    """Returns the fields of every byte: u8 [256, 8 / `width`]."""
    every = torch.arange(256, dtype=torch.uint8, device="cpu")
    return torch.stack([every >> shift & (1 << width) - 1 for shift in range(0, 8, width)], 1)
