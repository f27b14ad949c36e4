"""Numbers of one, two or four bits that share bytes, unpacked and packed, and short rows looked up. Lower bits come first.

Each comes in two forms that give the same. Run operation by operation on a processor, several bytes are best moved as one word
(`by_words`). A compiler wants one expression for each number, in the same shape for all of them, of which it makes one loop; it
would be stopped by words, and by parts that are laid side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from glft_schema.lazy import torch


def by_words(tensor: torch.Tensor) -> bool:
    """Tells whether a formula is run operation by operation on a processor."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def unpack(packed: torch.Tensor, width: int, axis: int) -> torch.Tensor:
    """Unpacks bytes into their 8 / `width` fields of `width` bits, along a new `axis`: u8, or int32 for a compiler.

    Of bytes [blocks, k], axis 2 gives each byte's fields one after another, axis 1 all first fields, then all second ones.
    """
    if not by_words(packed):
        return fields(packed.to(torch.int32), width, 8 // width, axis)
    if axis == packed.dim() and width == 4:
        wide = packed.to(torch.int16)  # 00000000hhhhllll, laid over itself 0000hhhh????llll: two bytes, once that is masked
        return ((wide | wide << 4) & 0x0F0F).view(torch.uint8).view(*packed.shape, 2)
    if axis == packed.dim():  # to lay single bytes side by side is slow: they are looked up together
        return looked_up(_fields_of_bytes(width), packed)
    packed, mask, last = packed.contiguous(), (1 << width) - 1, 8 - width
    return torch.stack([packed & mask, *(packed >> shift & mask for shift in range(width, last, width)), packed >> last], axis)


def pack(codes: torch.Tensor, width: int, axis: int) -> torch.Tensor:
    """Packs what `unpack` unpacks: the 8 / `width` codes along `axis`, of `width` bits each, into one byte."""
    return from_fields(codes.to(torch.uint8), width, axis)


def signed(codes: torch.Tensor) -> torch.Tensor:
    """Returns codes of at most seven bits, as `unpack` gives them, as numbers of a signed type."""
    return codes.view(torch.int8) if codes.dtype == torch.uint8 else codes


def stack(parts: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
    """Lays tensors of equal shape one after another along a new axis."""
    if by_words(parts[0]):
        return torch.stack(list(parts), axis)
    place = along(axis, torch.arange(len(parts), device=parts[0].device), parts[0].dim() + 1)
    *others, chosen = (part.unsqueeze(axis) for part in parts)
    for number, part in enumerate(others):
        chosen = torch.where(place == number, part, chosen)
    return chosen


def fields(word: torch.Tensor, width: int, count: int, axis: int) -> torch.Tensor:
    """Takes the lowest `count` fields of `width` bits from each integer, along a new `axis`."""
    mask = (1 << width) - 1
    if by_words(word):
        return torch.stack([word >> width * place & mask for place in range(count)], axis)
    shifts = torch.arange(0, width * count, width, dtype=torch.int32, device=word.device)
    return word.unsqueeze(axis) >> along(axis, shifts, word.dim() + 1) & mask


def from_fields(parts: torch.Tensor, width: int, axis: int) -> torch.Tensor:
    """The inverse of `fields`: integers of at most `width` bits along `axis` -> integers of the same type, without it."""
    word, *others = parts.unbind(axis)
    for place, part in enumerate(others, 1):
        word = torch.add(word, part, alpha=1 << width * place)
    return word


def once(numbers: torch.Tensor) -> torch.Tensor:
    """Returns numbers that are for several weights each, so that a compiler for processors computes none of them again."""
    if by_words(numbers) or numbers.device.type != "cpu":
        return numbers
    return numbers.as_strided(numbers.shape, numbers.stride())


def along(axis: int, numbers: torch.Tensor, dims: int) -> torch.Tensor:
    """Returns a vector as a tensor of so many dims that lies along `axis`."""
    return numbers.view([-1 if dim == axis else 1 for dim in range(dims)])


def looked_up(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Returns rows of a table of bytes [entries, k], with k of 1, 2, 4 or 8: [blocks, ..., k] for indices [blocks, ...]."""
    if not by_words(index):
        return table[index.to(torch.int32)]
    word = getattr(torch, f"int{8 * table.shape[1]}")  # a row is taken as one number
    rows = table.view(word).squeeze(1).expand(len(index), -1).gather(1, index.flatten(1).to(torch.int64))
    return rows.view(*index.shape, 1).view(table.dtype)


def words(fields: torch.Tensor, size: int) -> torch.Tensor:
    """Reads little-endian integers of `size` bytes, 2 or 4: u8 [blocks, size k] -> int64 [blocks, k], none below 0."""
    if by_words(fields):
        copied = fields.clone(memory_format=torch.contiguous_format)  # a field of one block is in place, but begins anywhere
        return copied.view(getattr(torch, f"int{8 * size}")).to(torch.int64) & (1 << 8 * size) - 1
    return from_fields(fields.to(torch.int64).reshape(fields.shape[0], -1, size), 8, 2)


def as_bytes(words: torch.Tensor, size: int) -> torch.Tensor:
    """The inverse of `words`: integers below 2^(8 `size`) [blocks, k] -> u8 [blocks, size k]."""
    if by_words(words):
        return words.to(getattr(torch, f"int{8 * size}")).contiguous().view(torch.uint8)
    return stack([(words >> shift & 255).to(torch.uint8) for shift in range(0, 8 * size, 8)], 2).flatten(1)


@lru_cache
def _fields_of_bytes(width: int) -> torch.Tensor:
    """Returns what `unpack` makes of each byte: u8 [256, 8 / `width`]."""
    every = torch.arange(256, dtype=torch.uint8, device="cpu")
    return torch.stack([every >> shift & (1 << width) - 1 for shift in range(0, 8, width)], 1)
