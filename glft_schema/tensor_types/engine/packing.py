"""Layouts of codes in bytes that several families share, unpacked and packed."""

from __future__ import annotations

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.bits import pack, signed, unpack


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
    """Subtracts the code that stands for 0: u8 of at most seven bits -> int8."""
    return signed(codes) - zero


def pack_halves(codes: torch.Tensor) -> torch.Tensor:
    """[blocks, 2 k] of four bits -> u8 [blocks, k], the inverse of `halves`."""
    return pack(codes.reshape(codes.shape[0], 2, -1), 4, 1)


def pack_neighbours(codes: torch.Tensor, width: int) -> torch.Tensor:
    """[blocks, k] of `width` bits -> u8 [blocks, k width / 8], the lowest first: the inverse of `bits` and `crumbs`."""
    return pack(codes.reshape(codes.shape[0], -1, 8 // width), width, 2)


def planes(qs: torch.Tensor, width: int) -> torch.Tensor:
    """Unpacks bytes whose fields of `width` bits belong to weights 32 apart: u8 [blocks, 32 k] -> [blocks, 32 k f].

    With f = 8 / `width` fields in a byte, weight 32 (f j + s) + l of a block is field s of byte 32 j + l.
    """
    return unpack(qs.reshape(qs.shape[0], -1, 32), width, 2)


def pack_planes(codes: torch.Tensor, width: int) -> torch.Tensor:
    """u8 [blocks, 256] -> u8 [blocks, 32 width], the inverse of `planes`."""
    return pack(codes.view(len(codes), -1, 8 // width, 32), width, 2).flatten(1)
