"""Plain Python computes as C does: float32 and int32 after each operation."""

from __future__ import annotations

import numpy as np
import pytest

from glft_schema.scalar.language import (
    PlainArray,
    float32,
    int32,
)


def test_kinds_do_not_mix() -> None:
    x, n = float32(1), int32(1)
    for mixed in (lambda: x + n, lambda: n + x, lambda: x < n, lambda: n * x):
        with pytest.raises(TypeError):
            mixed()


def test_indices_outside_of_an_array() -> None:
    for at in (4, -1):
        with pytest.raises(IndexError, match=rf"^expected an index below 4, found {at}$"):
            PlainArray(np.zeros(4, np.uint8))[at]
