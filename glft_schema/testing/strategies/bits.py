"""Random bits of floats, NaN with any payload and infinities among them, and of whole payloads."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

SPECIAL_NUMBERS = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
# Bytes that make the scales of a payload NaN or infinite if they are repeated, wherever and however wide the scales are.
SPECIAL = [b"\xff", *{number.astype(kind).tobytes() for kind in (">f2", "<f2", ">f4", "<f4") for number in SPECIAL_NUMBERS[:2]}]
SPECIAL.sort()


def floats(dtype: np.dtype[Any]) -> st.SearchStrategy[Any]:
    """Returns numpy floats of any bits, often special ones."""
    bits = st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize).map(lambda stored: np.frombuffer(stored, dtype)[0])
    return bits | st.sampled_from(list(SPECIAL_NUMBERS.astype(dtype)))


def payloads(nbytes: int) -> st.SearchStrategy[bytes]:
    """Returns payloads of `nbytes`: a few bytes repeated, so that large ones cost no more than small ones."""
    if not nbytes:
        return st.just(b"")
    seeds = st.binary(min_size=1, max_size=min(nbytes, 64)) | st.sampled_from(SPECIAL)
    return seeds.map(lambda seed: (seed * -(-nbytes // len(seed)))[:nbytes])
