"""The functions of a user's own type, compiled for a process and not."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glft_schema import types
from glft_schema.codec import Struct, f16, f64, i8, u8
from glft_schema.errors import OptionError, TensorError
from glft_schema.scalar.language import ScalarError, alone, float16, float32, nearest, root, run
from glft_schema.tensor_types import on_torch
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.declaration import formula_of
from glft_schema.tensor_types.library import building, loading
from glft_schema.tensor_types.payload_layout import IN, OUT
from glft_schema.tensor_types.symmetric import Q8_PER_CHANNEL
from glft_schema.tensor_types.tensor_type import TensorType
from tests.scalar.sources import same_bits

OWN = block_type("Q4_COMPILED", 4310, 32, Struct("d" / f16[2] * "scales", "qs" / u8[16] * "codes"))
UNDECLARED = block_type("Q4_UNDECLARED", 4311, 32, Struct("d" / f16[2], "qs" / u8[16]))


@formula_of(OWN)
def decode_own(w, d, qs):
    """d * (code - 8), for groups of 16."""
    for h in range(2):
        for i in range(16):
            w[16 * h + i] = d[h] * float32((qs[i] >> 4 * h & 15) - 8)


@pytest.mark.usefixtures("folder")
def test_an_own_type() -> None:
    """It does not take the place of the package's."""
    if building.compiler() is None:
        pytest.skip("no C compiler")
    assert loading.function_of("q4_compiled", "float32") is None
    types.compile(OWN)
    blocks = np.random.default_rng(0).integers(0, 80, (10, 20), np.uint8)  # no float16 overflows
    expected = np.zeros((10, 32), np.float32)
    for w, block in zip(expected, blocks, strict=True):
        run(decode_own, w=w, d=block[:4].view(np.float16), qs=block[4:])
    for dtype, found in (("float32", np.zeros((10, 32), np.float32)), ("float16", np.zeros((10, 32), np.float16))):
        loading.function_of("q4_compiled", dtype)(blocks.ctypes.data, found.ctypes.data, 10)
        assert same_bits(found, expected.astype(found.dtype))
    assert loading.function_of("q4_compiled", "bfloat16")
    assert loading.function_of("q4_k", "float32")


def test_a_type_without_a_decoder() -> None:
    with pytest.raises(OptionError, match=r"^Q4_UNDECLARED has no scalar function to compile: see formula_of$"):
        types.compile(UNDECLARED)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    problem = "Q4_COMPILED cannot be compiled: no C compiler: install clang or gcc, or pip install ziglang"
    with pytest.raises(OptionError, match=f"^{problem}$"):
        types.compile(OWN)


def test_a_compiler_that_makes_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "sh -c '[ $1 = --version ] || echo no library > 1.so' sh")
    monkeypatch.setattr(building, "LEVELS", {})
    with pytest.raises(OptionError, match=r"^Q4_COMPILED cannot be compiled: the compiled functions are damaged: .*1-"):
        types.compile(OWN)


def decode_sums(w, d, qs):
    """The sums of the codes so far, up to the first 0."""
    total = 0
    for i in range(32):
        w[i] = float32(0)
    for i in range(16):
        if qs[i] == 0:
            break
        total += qs[i]
        w[i], w[i + 16] = d[0] * float32(total), float32(i)


def test_a_formula_that_torch_cannot_run() -> None:
    if building.compiler() is None:
        pytest.skip("no C compiler")
    block = Struct("d" / f16[1], "qs" / u8[16])
    type_ = block_type("Q8_SUMS", 4313, 32, block, dequantize=decode_sums)
    blocks = np.random.default_rng(0).integers(1, 60, (10, 18), np.uint8)
    fields = {"blocks": blocks}
    unsupported = "expected no while, break, early return or local array, found Break"
    problem = f"decode_sums: as arrays, {unsupported}; glft.types.compile compiles it as C"
    with pytest.raises(ScalarError, match=f"^{problem}$"):
        on_torch.decode(type_, {"blocks": torch.from_numpy(blocks).to("meta")}, 32)
    expected = np.zeros((10, 32), np.float32)
    for w, one in zip(expected, blocks, strict=True):
        run(decode_sums, w=w, d=one[:2].view(np.float16), qs=one[2:])
    assert same_bits(type_.decode(fields, 32), expected)
    types.compile(type_)
    assert same_bits(type_.decode(fields, 32), expected)


def test_a_name_that_is_none_in_c() -> None:
    type_ = block_type("Q4-COMPILED", 4314, 32, Struct("d" / f16[2], "qs" / u8[16]), dequantize=decode_own)
    problem = "'Q4-COMPILED' cannot be compiled: expected a name of letters, digits and '_'"
    with pytest.raises(OptionError, match=f"^{problem}$"):
        types.compile(type_)


def to_own(w, d, qs):
    """d is max |w| / 7, of each group."""
    low, high = float16(largest(w[:16]) / 7), float16(largest(w[16:]) / 7)
    d[0], d[1] = low, high
    pack(w, low, high, qs)


def to_own_by_importance(w, importance, mean_square, d, qs):
    """Weights above the root of the mean square are cut, if they do not count more than others."""
    most, cut = largest(importance), root(mean_square[0])
    low, high = float32(0), float32(0)
    for i in range(16):
        low = max(low, abs(w[i]) if importance[i] == most else min(abs(w[i]), cut))
        high = max(high, abs(w[i + 16]) if importance[i + 16] == most else min(abs(w[i + 16]), cut))
    low, high = float16(low / 7), float16(high / 7)
    d[0], d[1] = low, high
    pack(w, low, high, qs)


def largest(x):
    peak = float32(0)
    for i in range(len(x)):
        peak = max(peak, abs(x[i]))
    return peak


def pack(w, low, high, qs):
    for i in range(16):
        qs[i] = code(w[i], low) | code(w[16 + i], high) << 4


def code(x, d):
    return min(max(nearest(x / d), -8), 7) + 8 if d > 0.0 else 8


def encoded_by_plain_python(rows: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
    """Returns u8 [rows, bytes] for float32 [rows, weights]."""
    blocks = []
    for row in rows:
        mean_square = np.zeros(1, np.float32)
        for x in row:
            mean_square += x * x
        mean_square /= np.float32(len(row))
        for at in range(0, len(row), 32):
            d, qs, part = np.zeros(2, np.float16), np.zeros(16, np.uint8), slice(at, at + 32)
            if importance is None:
                run(to_own, w=row[part], d=d, qs=qs)
            else:
                run(to_own_by_importance, w=row[part], importance=importance[part], mean_square=mean_square, d=d, qs=qs)
            blocks.append(d.tobytes() + qs.tobytes())
    return np.frombuffer(b"".join(blocks), np.uint8).reshape(len(rows), -1)


@pytest.mark.filterwarnings("ignore:.*stored as 0")  # rows of magnitude 1e-8
def test_an_encoder_writes_the_same_bytes_compiled_or_not() -> None:
    if building.compiler() is None:
        pytest.skip("no C compiler")
    block, encoders = Struct("d" / f16[2], "qs" / u8[16]), (to_own, to_own_by_importance)
    type_ = block_type("Q4_ENCODED", 4315, 32, block, dequantize=decode_own, quantize=encoders)
    random = np.random.default_rng(0)
    rows = random.standard_normal((9, 96), np.float32) * np.float32(10) ** random.integers(-8, 4, (9, 1)).astype(np.float32)
    rows[3, 40:70], importance = 0, random.integers(0, 4, 96).astype(np.float32)
    cases = [(None, encoded_by_plain_python(rows, None)), (importance, encoded_by_plain_python(rows, importance))]
    assert (cases[0][1] != cases[1][1]).any()
    for is_compiled in (False, True):
        if is_compiled:
            types.compile(type_)
        for given, expected in cases:
            assert (loading.encoder_of(type_.scheme, given is not None) is None) != is_compiled
            found = type_.encode(rows, "w", importance=given)
            assert (found["blocks"] == expected).all(), (is_compiled, given)


@alone
def halvings(x):
    """Returns how often x is halved until it is at most 1."""
    count = 0
    while x > 1.0:
        x, count = x / 2, count + 1
    return count


def to_halvings(w, d, qs):
    d[0], d[1] = largest(w), 0.0
    for i in range(16):
        qs[i] = halvings(abs(w[i]))


def to_views(w, d, qs):
    """Its view depends on data, so that it has no form in lanes."""
    first = min(max(nearest(w[0]), 0), 16)
    part = w[first : first + 16]
    d[0], d[1] = part[0], part[15]
    for i in range(16):
        qs[i] = nearest(part[i]) & 255


@pytest.mark.parametrize(
    ("encoder", "problem"),
    [
        (to_halvings, "to_halvings: halvings is marked alone, so it cannot run on arrays"),
        (to_views, "w: expected a view that does not depend on data"),
    ],
)
def test_an_encoder_that_only_c_can_run(encoder: Callable[..., Any], problem: str) -> None:
    if building.compiler() is None:
        pytest.skip("no C compiler")
    type_ = block_type(f"Q4_{encoder.__name__}", 4316, 32, Struct("d" / f16[2], "qs" / u8[16]), quantize=encoder)
    rows = np.random.default_rng(0).uniform(-60, 60, (5, 64)).astype(np.float32)
    how = f"compile the library with {loading.command()}, or your own type with glft_schema.types.compile"
    with pytest.raises(TensorError, match=f"^tensor 'blk.0': {re.escape(f'{problem}; {how}')}$"):
        type_.encode(rows, "blk.0")
    types.compile(type_)
    blocks = []
    for w in rows.reshape(-1, 32):
        d, qs = np.zeros(2, np.float16), np.zeros(16, np.uint8)
        run(encoder, w=w, d=d, qs=qs)
        blocks.append(d.tobytes() + qs.tobytes())
    assert type_.encode(rows, "blk.0")["blocks"].tobytes() == b"".join(blocks)


def to_half(w, d, qs):
    d[0], d[1] = w[0], w[1]
    for i in range(8):
        qs[i] = 0


def to_nothing(w, d):
    d[0], d[1] = w[0], w[1]


def to_float(w, d, qs):
    d[0], d[1] = w[0], w[1]
    qs[0] = w[2]


def to_sums(w, d, qs):
    d[0], d[1] = w[0], w[1]
    for i in range(1, 17):
        qs[i] = 0


def to_itself(w, d, qs):
    d[0] = w[0]
    d[1] = d[0]
    w[0] = 0.0


def to_mean(w, mean, d, qs):
    d[0], d[1], qs[0] = w[0], mean[0], 0


def to_optional(w, d, qs, importance=None):
    d[0], d[1], qs[0] = w[0], w[1], 0


def line_of(function: Callable[..., Any], number: int) -> int:
    return function.__code__.co_firstlineno + number


TWO = "expected one encoder, or two, of which the second has a parameter importance"
BY_IMPORTANCE = "(w, importance, mean_square, d, qs)"


@pytest.mark.parametrize(
    ("quantize", "problem"),
    [
        (to_nothing, "expected an encoder of (w, d, qs), which writes all fields, found (w, d)"),
        (lambda w: {}, "expected an encoder of (w, d, qs), which writes all fields, found (w)"),
        (to_float, f"to_float, line {line_of(to_float, 2)}: expected int32, found float32 in 'qs[0] = w[2]'"),
        (to_sums, f"to_sums, line {line_of(to_sums, 3)}: expected an index of qs from 0 to 15, found 1 to 16 in 'qs[i]'"),
        (to_itself, f"to_itself, line {line_of(to_itself, 2)}: expected an array to read, found the output d in 'd[0]'"),
        (to_half, "to_half: expected every number of qs to be written on every path, found no proof for qs[8] of 16"),
        (to_mean, "to_mean: expected parameters among w, importance, mean_square, d, qs, found mean"),
        (to_optional, "expected two encoders, or importance without a default, found (w, d, qs, importance=None)"),
        ((to_own,), f"{TWO}, found (w, d, qs)"),
        ((to_own, to_own), f"{TWO}, found (w, d, qs) and (w, d, qs)"),
        ((to_own_by_importance, to_own), f"{TWO}, found {BY_IMPORTANCE} and (w, d, qs)"),
        (lambda d, qs: {}, "expected an encoder of (w, d, qs), which writes all fields, found (d, qs)"),
    ],
)
def test_encoders_that_are_refused(quantize: Any, problem: str) -> None:
    for _ in range(2):  # the name stays free
        with pytest.raises(ValueError, match=f"^{re.escape(problem)}$"):
            block_type("Q4_REFUSED", 4317, 32, Struct("d" / f16[2], "qs" / u8[16]), quantize=quantize)


def decode_all_but_last(w, d, codes):
    for i in range(len(w) - 1):
        w[i] = d[0] * float32(codes[i])


def decode_two(w, d, codes):
    for i in range(2):
        w[i] = d[0] * float32(codes[i])


def decode_beyond(w, d, codes):
    for i in range(len(w)):
        w[i] = d[0] * float32(codes[i + 1])


def to_first(w, d, codes):
    d[0], codes[0] = w[0], 1


@pytest.mark.parametrize(
    ("functions", "problem"),
    [
        (
            {"formula": decode_all_but_last},
            "expected every number of w to be written on every path, found no proof for w[0] of 1",
        ),
        ({"formula": decode_two}, "expected an index of codes from 0 to 0, found 0 to 1 in 'codes[i]'"),
        ({"formula": decode_beyond}, "expected an index of codes from 0 to 0, found 1 in 'codes[i + 1]'"),
        (
            {"quantize": to_first},
            "expected every number of codes to be written on every path, found no proof for codes[1] of 2",
        ),
    ],
)
def test_functions_of_rows_that_are_refused(functions: Any, problem: str) -> None:
    payload = Struct("d" / f16[OUT], "codes" / i8[OUT, IN])
    with pytest.raises(ValueError, match=re.escape(problem)):
        TensorType("Q8_REFUSED_ROWS", 4318, payload, **functions)


def test_numbers_that_scalar_functions_do_not_have() -> None:
    numbers = "expected numbers i8, u8, i16, u16, i32, u32, f16 or f32 for scalar functions, found f64"
    with pytest.raises(ValueError, match=f"^d: {numbers}$"):
        block_type("Q4_DOUBLE", 4318, 32, Struct("d" / f64[2]), quantize=to_nothing)


def test_an_encoder_of_rows_without_importance() -> None:
    """It has the names of blocks only."""
    payload = Q8_PER_CHANNEL.payload

    def to_rows(w, importance, scales, codes):
        scales[0] = w[0]

    problem = "to_rows: expected parameters among w, scales, codes, found importance"
    with pytest.raises(ScalarError, match=f"^{problem}$"):
        TensorType("Q8_ROWS", 4319, payload, quantize=to_rows)
