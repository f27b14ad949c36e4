"""Products of the compiled library: x @ weights.T, for weights that stay packed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glft_schema import types
from glft_schema.codec import Struct, f16, u8
from glft_schema.scalar.kinds import KINDS
from glft_schema.scalar.language import float32
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.compiling import DECLARED
from glft_schema.tensor_types.library import building, loading
from glft_schema.tensor_types.scalar_layout import ScalarLayout
from tests.tensor_types.library.conftest import TYPES
from tests.tensor_types.library.test_building import X86_64, opened
from tests.tensor_types.test_scalar_decoders import by_plain_python

Floats = np.ndarray[Any, np.dtype[np.float32]]
QUANTIZED = [type_ for type_ in DECLARED if type_.functions and type_.functions.decoder]
SHAPES = [(1, 1, 1), (2, 11, 2), (3, 5, 16)]  # rows of weights, units of columns, rows of x


def sums_in_order(w: Floats, x: Floats) -> Floats:
    """x @ w.T by 16 float32 sums of every 16th product, of which the second half is added to the
    first until one is left."""
    sums = np.zeros((len(x), len(w), 16), np.float32)
    with np.errstate(all="ignore"):
        for column in range(w.shape[1]):
            sums[:, :, column % 16] += x[:, None, column] * w[:, column]
        while sums.shape[2] > 1:
            sums = sums[..., : sums.shape[2] // 2] + sums[..., sums.shape[2] // 2 :]
    return sums[..., 0]


def starts_in_row(layout: ScalarLayout, columns: int) -> list[int]:
    """The first byte of each pointer in a packed row, and the size of the row."""
    if layout.weights:
        return [0, layout.offsets[-1] * columns // layout.weights]
    sizes = [KINDS[field.number].size * field.count_in(columns) for field in layout.fields]
    return [sum(sizes[:at]) for at in range(len(sizes) + 1)]


def product(function: Callable[..., None], layout: ScalarLayout, packed: Any, x: Floats) -> Floats:
    """Returns x @ weights.T of packed rows, with numbers between the rows of the output."""
    (rows, pitch), (batch, columns) = packed.shape, x.shape
    out = np.full((batch, rows + 3), 7, np.float32)
    pointers = [packed.ctypes.data + start for start in starts_in_row(layout, columns)[:-1]]
    function(*pointers, x.ctypes.data, out.ctypes.data, rows, columns, batch, pitch, rows + 3)
    assert (out[:, rows:] == 7).all()
    return out[:, :rows]


def decoded(layout: ScalarLayout, packed: Any, columns: int) -> Floats:
    """Returns the weights of packed rows, decoded by the library."""
    w, function = np.zeros((len(packed), columns), np.float32), loading.function_named(layout.name)
    parts = [packed[:, first:last].copy() for first, last in pairwise(starts_in_row(layout, columns))]
    assert function
    counts = [w.size // layout.weights] if layout.weights else w.shape
    function(*(part.ctypes.data for part in parts), w.ctypes.data, *counts)
    return w


def same(found: Floats, expected: Floats) -> bool:
    """Tells whether all bits are the same, except those of NaN."""
    is_nan = np.isnan(expected)
    return (np.isnan(found) == is_nan).all() and (found.view("u4") == expected.view("u4"))[~is_nan].all()


def example(layout: ScalarLayout, shape: tuple[int, int, int], high: int = 256) -> tuple[Any, Floats]:
    """Returns random packed rows, with bytes between them, and x."""
    rows, units, batch = shape
    columns, random = layout.unit * units * (1 if layout.unit > 1 else 37), np.random.default_rng(units)
    packed = random.integers(0, high, (rows, starts_in_row(layout, columns)[-1] + 5 * rows), np.uint8)
    return packed, random.standard_normal((batch, columns), np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("type_", QUANTIZED, ids=str)
def test_products_of_every_type(type_: Any, shape: tuple[int, int, int]) -> None:
    """Of random bytes, among which are NaN and infinities, in the order of the sums; and of small
    scales within the rounding of float32."""
    layout = type_.functions.layout
    function = loading.function_named(f"multiply_{layout.name}")
    if function is None:
        pytest.skip("no compiled library")
    packed, x = example(layout, shape)
    assert same(product(function, layout, packed, x), sums_in_order(decoded(layout, packed, x.shape[1]), x))
    packed, x = example(layout, shape, 64)
    w = decoded(layout, packed, x.shape[1]).astype(np.float64)
    largest = np.abs(x) @ np.abs(w.T)
    assert (np.abs(product(function, layout, packed, x) - x @ w.T) <= 2**-20 * largest).all()


@pytest.mark.usefixtures("folder")
def test_infinities_and_nan_in_x() -> None:
    layout = TYPES[0].functions.layout
    packed, x = example(layout, (3, 2, 4), 64)
    x[1, 300], x[2, 5], x[2, 6], x[3, 511] = np.inf, np.inf, -np.inf, np.nan
    found = product(loading.function_named("multiply_q4_k"), layout, packed, x)
    assert same(found, sums_in_order(decoded(layout, packed, 512), x))
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[3]).all()


@pytest.mark.skipif(not X86_64, reason="has one level")
@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_all_levels_have_the_same_bits(type_: Any, compiled_once: Path) -> None:
    layout, levels = type_.functions.layout, ("1", "3", "4")
    packed, x = example(layout, (4, 9, 7))
    usable = [level for level in levels if int(level) <= opened(compiled_once, "1").x86_64_level()]
    found = []
    for level in usable:
        function = opened(compiled_once, level)[f"multiply_{layout.name}"]
        pointers = len(starts_in_row(layout, x.shape[1])) + 1
        function.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_int64] * 5
        found.append(product(function, layout, packed, x))
    assert all(same(one, found[0]) for one in found)


def decode_fives(w, d, codes):
    """No power of two: a row ends inside the 16 sums."""
    for i in range(5):
        w[i] = d[0] * float32(codes[i])


FIVES = block_type("FIVES_OWN", 4330, 5, Struct("d" / f16[1], "codes" / u8[5]), dequantize=decode_fives)


@pytest.mark.usefixtures("folder")
def test_a_product_of_an_own_type() -> None:
    layout = FIVES.functions.layout
    assert loading.function_named("multiply_fives_own") is None
    if building.compiler() is None:
        pytest.skip("no C compiler")
    types.compile(FIVES)
    for units in (1, 3, 16, 65):
        packed, x = example(layout, (2, units, 3), 100)
        blocks = packed[:, : 7 * units].reshape(-1, 7)
        expected = sums_in_order(by_plain_python(FIVES, blocks).reshape(2, -1), x)
        assert same(product(loading.function_named("multiply_fives_own"), layout, packed, x), expected)
