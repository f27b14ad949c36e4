"""Plain Python computes as C does: float32 and int32 after each operation."""

from __future__ import annotations

import numpy as np
import pytest

from glft_schema.scalar import language
from glft_schema.scalar.language import (
    Float32,
    Int32,
    PlainArray,
    as_bits,
    as_float,
    as_float16,
    float16,
    float32,
    int32,
    nearest,
    root,
)


def test_float32_rounds_after_each_operation() -> None:
    x = float32(0.1)
    assert float(x * x * 0.1) == np.float32(0.1) * np.float32(0.1) * np.float32(0.1)
    one, two, tenth = np.float32(1), np.float32(2), np.float32(0.1)
    expected = [one + tenth, one - tenth, one / tenth, tenth / two]
    assert [float(y) for y in (1 + x, 1 - x, 1 / x, x / 2)] == expected
    assert (x < 1, x >= 1, x == x, abs(-x) == x, x > 1) == (True, False, True, True, False)
    assert repr(x) == "Float32(0.1)"


@pytest.mark.filterwarnings("ignore:overflow")  # which `run` ignores
def test_int32_wraps() -> None:
    x = int32(2**31 - 1)
    assert isinstance(x + 1, Int32)
    assert [x + 1, 1 + x, -x - 2, x * 2, x << 1, 1 - x, x // 2, x % 8] == [
        -(2**31), -(2**31), 2**31 - 1, -2, -2, 2 - 2**31, 2**30 - 1, 7
    ]  # fmt: skip


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


def test_functions() -> None:
    assert [nearest(float32(x)) for x in (0.5, 1.5, -2.5, 3.7)] == [0, 2, -2, 4]
    assert float(root(float32(2))) == np.sqrt(np.float32(2))
    assert as_bits(float32(-0.0)) == -(2**31)
    assert float(as_float(0x3FC00000)) == 1.5
    assert float(as_float16(0x13C00)) == 1
    assert float(float16(float32(1 / 3))) == np.float16(1 / 3)
    assert int32(True) == 1
    assert (len(language.floats(3)), len(language.integers(4))) == (3, 4)
    assert language.integers(2)[1] == 0
    assert language.LookupTable(lambda: [3, 4])[1] == 4
