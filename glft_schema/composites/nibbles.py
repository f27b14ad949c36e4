"""Orders of codes of four bits in bytes."""

from __future__ import annotations

import numpy as np

from glft_schema.storage.dtypes import Array


def in_pairs(codes: Array) -> Array:
    """Returns codes [..., 2n] as bytes of two neighbours, u8 [..., n], the first one low."""
    return np.asarray(codes[..., ::2] | codes[..., 1::2] << 4)


def one_by_one(pairs: Array) -> Array:
    """The inverse of `in_pairs`."""
    return np.stack((pairs & 15, pairs >> 4), -1).reshape(*pairs.shape[:-1], -1)


def to_halves(pairs: Array) -> Array:
    """Converts bytes u8 [..., n] with weights 2i and 2i + 1 to bytes with weights i and i + n."""
    first, last = np.split(pairs, 2, -1)
    halves = np.stack((first & 15 | last << 4, first >> 4 | last & 240), -1)
    return np.asarray(halves.reshape(pairs.shape))


def to_neighbours(halves: Array) -> Array:
    """The inverse of `to_halves`."""
    even, odd = halves[..., ::2], halves[..., 1::2]
    return np.concatenate([(even & 15) | (odd << 4), (even >> 4) | (odd & 240)], -1)
