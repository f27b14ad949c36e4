"""Numbers of one, two or four bits that share bytes, unpacked and packed, and short rows looked up. Lower bits come first."""

from __future__ import annotations

from functools import lru_cache

from glft_schema.lazy import torch


def split(packed: torch.Tensor, width: int, axis: int) -> torch.Tensor:
    """Unpacks bytes into their 8 / `width` fields of `width` bits, along a new `axis`.

    Of bytes [blocks, k], axis 2 gives each byte's fields one after another, axis 1 all first fields, then all second ones.
    """
    if axis == packed.dim() and by_words(packed):  # to lay single bytes side by side is slow: they are looked up together
        return looked_up(_fields_of_bytes(width), packed)
    packed = packed.contiguous()
    last, mask = 8 - width, (1 << width) - 1
    fields = [packed & mask, *(packed >> shift & mask for shift in range(width, last, width)), packed >> last]
    return torch.stack(fields, axis)


def merge(codes: torch.Tensor, width: int, axis: int) -> torch.Tensor:
    """Packs what `split` unpacks: the 8 / `width` codes along `axis`, of `width` bits each, into one byte."""
    first, *others = codes.to(torch.uint8).unbind(axis)
    for place, code in enumerate(others, 1):
        first = torch.add(first, code, alpha=1 << width * place)
    return first


def looked_up(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Returns rows of a table of bytes [entries, k], with k of 1, 2, 4 or 8: [blocks, n, k] for indices [blocks, n]."""
    if not by_words(index):
        return table[index.to(torch.int32)]
    word = getattr(torch, f"int{8 * table.shape[1]}")  # a row is taken as one number
    rows = table.view(word).squeeze(1).expand(len(index), -1).gather(1, index.to(torch.int64))
    return rows.unsqueeze(-1).view(table.dtype)


def words(fields: torch.Tensor, size: int) -> torch.Tensor:
    """Reads little-endian integers of `size` bytes, 2 or 4: u8 [blocks, size k] -> int64 [blocks, k], none below 0."""
    if by_words(fields):
        copied = fields.clone(memory_format=torch.contiguous_format)  # a field of one block is in place, but begins anywhere
        return copied.view(getattr(torch, f"int{8 * size}")).to(torch.int64) & (1 << 8 * size) - 1
    parts = fields.to(torch.int64).reshape(fields.shape[0], -1, size)
    word = parts[..., 0]
    for i in range(1, size):
        word = word | parts[..., i] << 8 * i
    return word


def as_bytes(words: torch.Tensor) -> torch.Tensor:
    """Takes words of four bytes, below 2^31, apart again: int64 [blocks, k] -> u8 [blocks, 4 k]."""
    if by_words(words):
        return words.to(torch.int32).view(torch.uint8)
    return torch.stack([(words >> shift & 255).to(torch.uint8) for shift in range(0, 32, 8)], 2).flatten(1)


def by_words(tensor: torch.Tensor) -> bool:
    """Tells whether a formula is run operation by operation on a processor, where several bytes are best moved as one word.

    A compiler fuses plain operations, and would be stopped by such a view.
    """
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


@lru_cache
def _fields_of_bytes(width: int) -> torch.Tensor:
    """Returns what `split` makes of each byte: u8 [256, 8 / `width`]."""
    every = torch.arange(256, dtype=torch.uint8, device="cpu")
    return torch.stack([every >> shift & (1 << width) - 1 for shift in range(0, 8, width)], 1)
