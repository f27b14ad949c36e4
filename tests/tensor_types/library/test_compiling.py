"""The functions of a user's own type, compiled for a process and not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from glft_schema import types
from glft_schema.codec import Struct, f16, f64, i8
from glft_schema.errors import OptionError, TensorError
from glft_schema.scalar.language import ScalarError, alone, float16, float32, nearest, root, run
from glft_schema.tensor_types import on_torch
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.library import building, loading
from glft_schema.tensor_types.payload_layout import IN, OUT
from glft_schema.tensor_types.symmetric import Q8_PER_CHANNEL
from glft_schema.tensor_types.tensor_type import TensorType
from tests.scalar.sources import same_bits
from tests.tensor_types.test_scalar_decoders import by_plain_python

BLOCK = Struct("d" / f16[1] * "scale", "codes" / i8[32] * "codes")
needs_a_compiler = pytest.mark.skipif(building.compiler() is None, reason="no C compiler")


def decode_own(w, d, codes):
    for i in range(32):
        w[i] = d[0] * float32(codes[i])


OWN = block_type("Q8_COMPILED", 4310, 32, BLOCK, dequantize=decode_own)


@needs_a_compiler
@pytest.mark.usefixtures("folder")
def test_an_own_type() -> None:
    """It does not take the place of the package's."""
    assert loading.function_of("q8_compiled", "float32") is None
    types.compile(OWN)
    blocks = np.random.default_rng(0).integers(0, 80, (10, 34), np.uint8)  # no float16 overflows
    for dtype in ("float32", "float16"):
        found = np.zeros((10, 32), dtype)
        loading.function_of("q8_compiled", dtype)(blocks.ctypes.data, found.ctypes.data, 10)
        assert same_bits(found, by_plain_python(OWN, blocks).astype(dtype))
    assert loading.function_of("q4_k", "float32")
    assert [field.sentence for field in OWN.functions.layout.fields] == ["scale", "codes"]


@pytest.mark.parametrize(
    ("type_", "compiler", "problem"),
    [
        (block_type("Q8_UNDECLARED", 4311, 32, BLOCK), "cc", "Q8_UNDECLARED has no scalar function to compile: see formula_of"),
        (
            block_type("Q8-COMPILED", 4314, 32, BLOCK, dequantize=decode_own),
            "cc",
            "'Q8-COMPILED' cannot be compiled: expected a name of letters, digits and '_'",
        ),
        (OWN, "no-such-compiler", "Q8_COMPILED cannot be compiled: the compiler no-such-compiler cannot run: No such file.*"),
        (
            OWN,
            "sh -c '[ $1 = --version ] || echo no library > 1.so' sh",
            "Q8_COMPILED cannot be compiled: the compiled functions are damaged: .*1-.*",
        ),
    ],
)
def test_types_that_cannot_be_compiled(type_: TensorType, compiler: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(building, "LEVELS", {})
    with pytest.raises(OptionError, match=f"^{problem}$"):
        types.compile(type_)


def decode_sums(w, d, codes):
    """The sums of the codes so far, up to the first 0."""
    total = 0
    for i in range(32):
        w[i] = float32(0)
    for i in range(32):
        if codes[i] == 0:
            break
        total += codes[i]
        w[i] = d[0] * float32(total)


@needs_a_compiler
def test_a_formula_that_torch_cannot_run() -> None:
    type_ = block_type("Q8_SUMS", 4313, 32, BLOCK, dequantize=decode_sums)
    blocks = np.random.default_rng(0).integers(0, 60, (10, 34), np.uint8)
    unsupported = "expected no while, break, early return or local array, found Break"
    problem = f"decode_sums: as arrays, {unsupported}; glft.types.compile compiles it as C"
    with pytest.raises(ScalarError, match=f"^{problem}$"):
        on_torch.decode(type_, {"blocks": torch.from_numpy(blocks).to("meta")}, 32)
    expected = by_plain_python(type_, blocks)
    assert same_bits(type_.decode({"blocks": blocks}, 32), expected)
    types.compile(type_)
    assert same_bits(type_.decode({"blocks": blocks}, 32), expected)


def to_own(w, d, codes):
    """d is max |w| / 127."""
    store(w, largest(w), d, codes)


def to_own_by_importance(w, importance, mean_square, d, codes):
    """Weights above the root of the mean square are cut, if their importance is 0."""
    peak = float32(0)
    for i in range(32):
        peak = max(peak, abs(w[i]) if importance[i] > 0.0 else min(abs(w[i]), root(mean_square[0])))
    store(w, peak, d, codes)


def largest(x):
    peak = float32(0)
    for i in range(len(x)):
        peak = max(peak, abs(x[i]))
    return peak


def store(w, peak, d, codes):
    scale = float16(peak / 127)
    d[0] = scale
    for i in range(32):
        codes[i] = min(max(nearest(w[i] / scale), -127), 127) if scale > 0.0 else 0


def encoded_by_plain_python(encoder: Any, rows: np.ndarray, importance: np.ndarray | None = None) -> bytes:
    blocks = []
    for row in rows:
        mean_square = np.add.accumulate(row * row)[-1:] / np.float32(len(row))
        for at in range(0, len(row), 32):
            d, codes, part = np.zeros(1, np.float16), np.zeros(32, np.int8), slice(at, at + 32)
            given = {} if importance is None else {"importance": importance[part], "mean_square": mean_square}
            run(encoder, w=row[part], d=d, codes=codes, **given)
            blocks.append(d.tobytes() + codes.tobytes())
    return b"".join(blocks)


@needs_a_compiler
@pytest.mark.filterwarnings("ignore:.*stored as 0")  # rows of magnitude 1e-8
def test_an_encoder_writes_the_same_bytes_compiled_or_not() -> None:
    encoders, random = (to_own, to_own_by_importance), np.random.default_rng(0)
    type_ = block_type("Q8_ENCODED", 4315, 32, BLOCK, dequantize=decode_own, quantize=encoders)
    rows = random.standard_normal((9, 96), np.float32) * np.float32(10) ** random.integers(-8, 4, (9, 1)).astype(np.float32)
    rows[3, 40:70], importance = 0, random.integers(0, 2, 96).astype(np.float32)
    for encoder, given in zip(encoders, (None, importance), strict=True):
        expected = encoded_by_plain_python(encoder, rows, given)
        assert loading.encoder_of(type_.scheme, given is not None) is None
        assert type_.encode(rows, "w", importance=given)["blocks"].tobytes() == expected
    types.compile(type_)
    for encoder, given in zip(encoders, (None, importance), strict=True):
        assert loading.encoder_of(type_.scheme, given is not None)
        assert type_.encode(rows, "w", importance=given)["blocks"].tobytes() == encoded_by_plain_python(encoder, rows, given)


@alone
def halvings(x):
    """Returns how often x is halved until it is at most 1."""
    count = 0
    while x > 1.0:
        x, count = x / 2, count + 1
    return count


def to_halvings(w, d, codes):
    d[0] = largest(w)
    for i in range(32):
        codes[i] = halvings(abs(w[i]))


def to_views(w, d, codes):
    """Its view depends on data, so that it has no form in lanes."""
    first = min(max(nearest(w[0]), 0), 16)
    part = w[first : first + 16]
    d[0] = part[15]
    for i in range(32):
        codes[i] = nearest(part[i & 15]) & 127


@needs_a_compiler
@pytest.mark.parametrize(
    ("encoder", "problem"),
    [
        (to_halvings, "to_halvings: halvings is marked alone, so it cannot run on arrays"),
        (to_views, "w: expected a view that does not depend on data"),
    ],
)
def test_an_encoder_that_only_c_can_run(encoder: Callable[..., Any], problem: str) -> None:
    type_ = block_type(f"Q8_{encoder.__name__}", 4316, 32, BLOCK, quantize=encoder)
    rows = np.random.default_rng(0).uniform(-60, 60, (5, 64)).astype(np.float32)
    how = f"compile the library with {loading.command()}, or your own type with glft_schema.types.compile"
    with pytest.raises(TensorError, match=f"^tensor 'blk.0': {re.escape(f'{problem}; {how}')}$"):
        type_.encode(rows, "blk.0")
    types.compile(type_)
    assert type_.encode(rows, "blk.0")["blocks"].tobytes() == encoded_by_plain_python(encoder, rows)


def to_half(w, d, codes):
    d[0] = w[0]
    for i in range(16):
        codes[i] = 0


def to_nothing(w, d):
    d[0] = w[0]


def to_float(w, d, codes):
    d[0] = w[0]
    codes[0] = w[2]


def to_mean(w, mean, d, codes):
    d[0], codes[0] = mean[0], 0


def to_optional(w, d, codes, importance=None):
    d[0], codes[0] = w[0], 0


TO_FLOAT = f"to_float, line {to_float.__code__.co_firstlineno + 2}"
TWO = "expected one encoder, or two, of which the second has a parameter importance"
BY_IMPORTANCE = "(w, importance, mean_square, d, codes)"


@pytest.mark.parametrize(
    ("quantize", "problem"),
    [
        (to_nothing, "expected an encoder of (w, d, codes), which writes all fields, found (w, d)"),
        (lambda d, codes: {}, "expected an encoder of (w, d, codes), which writes all fields, found (d, codes)"),
        (to_float, f"{TO_FLOAT}: expected int32, found float32 in 'codes[0] = w[2]'"),
        (to_half, "to_half: expected every number of codes to be written on every path, found no proof for codes[16] of 32"),
        (to_mean, "to_mean: expected parameters among w, importance, mean_square, d, codes, found mean"),
        (to_optional, "expected two encoders, or importance without a default, found (w, d, codes, importance=None)"),
        ((to_own,), f"{TWO}, found (w, d, codes)"),
        ((to_own, to_own), f"{TWO}, found (w, d, codes) and (w, d, codes)"),
        ((to_own_by_importance, to_own), f"{TWO}, found {BY_IMPORTANCE} and (w, d, codes)"),
    ],
)
def test_encoders_that_are_refused(quantize: Any, problem: str) -> None:
    for _ in range(2):  # the name stays free
        with pytest.raises(ValueError, match=f"^{re.escape(problem)}$"):
            block_type("Q8_REFUSED", 4317, 32, BLOCK, quantize=quantize)


def decode_all_but_last(w, d, codes):
    for i in range(len(w) - 1):
        w[i] = d[0] * float32(codes[i])


def decode_two(w, d, codes):
    for i in range(2):
        w[i] = d[0] * float32(codes[i])


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

    def to_rows(w, importance, scales, codes):
        scales[0] = w[0]

    problem = "to_rows: expected parameters among w, scales, codes, found importance"
    with pytest.raises(ScalarError, match=f"^{problem}$"):
        TensorType("Q8_ROWS", 4319, Q8_PER_CHANNEL.payload, quantize=to_rows)
