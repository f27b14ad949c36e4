"""How codes are packed into bytes: unpacking for the formulas, packing for the encoders."""

from __future__ import annotations

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.bits import along, by_words, pack, signed, unpack


def halves(qs: torch.Tensor) -> torch.Tensor:
    """u8 [blocks, k] -> [blocks, 2, k]: all low nibbles, then all high ones."""
    return unpack(qs, 4, 1)


def crumbs(qs: torch.Tensor) -> torch.Tensor:
    """u8 [blocks, k] -> [blocks, k, 4]: the four 2-bit numbers of each byte, the lowest first."""
    return unpack(qs, 2, 2)


def bits(bytes_: torch.Tensor) -> torch.Tensor:
    """u8 [blocks, k] -> [blocks, k, 8]: the bits of each byte, the lowest first."""
    return unpack(bytes_, 1, 2)


def less(codes: torch.Tensor, zero: int) -> torch.Tensor:
    """Subtracts the code of 0: u8 of at most seven bits -> int8."""
    return signed(codes) - zero


def pack_halves(codes: torch.Tensor) -> torch.Tensor:
    """[blocks, 2 k] of four bits -> u8 [blocks, k], the inverse of `halves`."""
    return pack(codes.reshape(codes.shape[0], 2, -1), 4, 1)


def pack_neighbours(codes: torch.Tensor, width: int) -> torch.Tensor:
    """[blocks, k] of `width` bits -> u8 [blocks, k width / 8]: the inverse of `bits`, `crumbs`."""
    return pack(codes.reshape(codes.shape[0], -1, 8 // width), width, 2)


def planes(qs: torch.Tensor, width: int) -> torch.Tensor:
    """Unpacks bytes whose `width`-bit fields belong to weights that are 32 apart: u8 [blocks, 32 k]
    -> [blocks, 32 k f].

    With f = 8 / `width` fields in a byte, weight 32 (f j + s) + l of a block is field s of byte 32
    j + l.
    """
    return unpack(qs.reshape(qs.shape[0], -1, 32), width, 2)


def pack_planes(codes: torch.Tensor, width: int) -> torch.Tensor:
    """u8 [blocks, 256] -> u8 [blocks, 32 width], the inverse of `planes`."""
    return pack(codes.view(len(codes), -1, 8 // width, 32), width, 2).flatten(1)


def trits(packed: torch.Tensor, count: int) -> torch.Tensor:
    """Unpacks `count` base-3 digits of each byte, the most significant first: u8 [blocks, k] ->
    [blocks, count, k].

    A byte is the number of its digits times 256 / 243, rounded up: a fixed-point fraction.
    Multiplying the fraction by 3 moves one digit after another above its point.
    """
    if not by_words(packed):
        powers = along(1, torch.tensor([3**digit for digit in range(count)], dtype=torch.int32, device=packed.device), 3)
        return ((packed.to(torch.int32).unsqueeze(1) * powers & 255) * 3 >> 8).to(torch.uint8)
    digits, fraction = [], packed.to(torch.int16)
    for _ in range(count):
        tripled = fraction * 3
        digits.append((tripled >> 8).to(torch.uint8))
        fraction = tripled & 255
    return torch.stack(digits, 1)


def pack_trits(digits: torch.Tensor, count: int) -> torch.Tensor:
    """[blocks, count, k] -> u8 [blocks, k], the inverse of `trits`; missing digits are 0."""
    number = torch.zeros_like(digits[:, 0], dtype=torch.int32)
    for digit in range(5):
        number = number * 3 + (digits[:, digit] if digit < count else 0)
    return ((number * 256 + 242) // 243).to(torch.uint8)
