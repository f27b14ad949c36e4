"""Plain Python computes as C does: float32 and int32 after each operation."""

from __future__ import annotations

import numpy as np
import pytest

from glft_schema.scalar.language import (
    Float32,
    PlainArray,
    float32,
    int32,
)


def test_kinds_do_not_mix() -> None:
    x, n = float32(1), int32(1)
    for mixed in (lambda: x + n, lambda: n + x, lambda: x < n, lambda: n * x):
        with pytest.raises(TypeError):
            mixed()


def test_arrays_convert_what_is_stored() -> None:
    bytes_, halves, words = (np.zeros(4, dtype) for dtype in (np.uint8, np.float16, np.uint32))
    numbers = PlainArray(bytes_)
    numbers[1] = int32(-1)
    numbers[2:][0] = int32(257)
    assert bytes_.tolist() == [0, 255, 1, 0]
    PlainArray(halves)[0] = float32(0.1)
    assert isinstance(PlainArray(halves)[0], Float32)
    words[0] = 2**32 - 2
    assert PlainArray(words)[0] == -2
    assert len(numbers[1:3]) == 2
    for at in (4, -1):
        with pytest.raises(IndexError, match=rf"^expected an index below 4, found {at}$"):
            numbers[at]
