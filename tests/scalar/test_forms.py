"""Functions of the language: plain Python, C, numpy side by side and torch give the same bits."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glft_schema.scalar.checking import check
from glft_schema.scalar.language import LookupTable, ScalarError
from glft_schema.tensor_types.library.printing import TypesInC
from glft_schema.tensor_types.scalar_layout import ScalarField, ScalarLayout
from tests.scalar.sources import (
    by_c,
    by_numpy,
    by_plain_python,
    by_torch,
    by_triton,
    columns,
    compiled,
    declared,
    grown,
    same_bits,
)
from tests.tools.depth import FULL

LAYOUT = ScalarLayout(
    "own",
    (
        ScalarField("d", "f16", 2, "scales"),
        ScalarField("qs", "u8", 16, "codes"),
        ScalarField("c", "i8", 16),
        ScalarField("n", "u32", 2),
        ScalarField("h", "u16", 4),
    ),
    16,
)
HELPERS = """
def total(x, *, scale):
    sum = float32(0)
    for i in range(len(x)):
        sum += float32(x[i]) * scale
    return sum
def ends(x):
    low, high = x[0], x[0]
    for i in range(1, len(x)):
        low, high = min(low, x[i]), max(high, x[i])
    return low, high
def w_of(x, g, *, top, factor=2):
    if g > top - 1:
        return float32(0)
    return float32(x[g] * factor)
def nothing(x):
    fill(x)
    return x[1]
def fill(x):
    x[1] = 5
def weighted(x, g, *, scale):
    total = 0
    for i in range(4):
        total += x[4 * g % 10 + i]
    return total * scale
def put(y, start, x):
    for i in range(4):
        y[start + i] = x * float32(i)
def two(x, y):
    if x < y:
        low, high = x, y
    else:
        low, high = y, x
    return low, high
def bent(k):
    return k * k if k > 5 else -k
def halved(k):
    return HALVES[k % 7] if (k & 1) == 0 else float32(k) * 0.5
"""
# fmt: off
BODIES = {
    "arithmetic": """
        for i in range(16):
            x = float32(qs[i] - 8) * d[0]
            w[i] = -x / 3 + 0.1 - d[1] * x""",
    "constants": """
        for i in range(16):
            x = float32(0.1) / float32(3) * float32(1.5) - float32(-3)
            w[i] = x + abs(float32(-0.1)) * d[0] / (float32(0.1) * 3) + max(d[1], float32(1) / float32(i))""",
    "integers": """
        for i in range(16):
            k = (qs[i] - 200) * 16777216 + i
            w[i] = float32(k // 8 % 32 ^ qs[i] % 7 | i // 3 - 1 & 5) - float32(-k) - float32(abs(c[i]))""",
    "words": """
        for i in range(16):
            w[i] = float32(n[i // 8] >> 2 * (i % 8) & 3) + float32(n[1] >> 16) * float32(h[i % 4] >> 8)""",
    "literals on the left": """
        for i in range(16):
            x, k = d[i % 2], qs[i] * 16777216 + c[i]
            y = (1 + x) * (2 - x) + 0.5 * x - 1 / (3 + x * x)
            w[i] = y + float32((1 + k) * 3 ^ 2 * k | (7 - k) & 1023) + float32(-1 & k) - float32(5 | k) + float32(6 ^ k)""",
    "branches by place": """
        for i in range(16):
            if i < 12 and i != 3:
                k, x = qs[i + 4] + (-i if i > 5 else 2 * i), float32(1)
            elif i >= 14:
                k, x = 100, d[0]
            else:
                k, x = qs[15 - i] if i > 3 else i, d[1] if i % 2 == 0 else d[0]
            w[i] = float32(k) * x""",
    "branches by value": """
        for i in range(16):
            if qs[i] > 100 and not c[i] < 0:
                k, x = qs[i], float32(1)
            else:
                k, x = i, d[1] if qs[i] != 50 else d[0]
            w[i] = float32(k) * x + float32(int32(c[i] == 3 or i == 1))""",
    "carried": """
        total, best = 0, 0
        for i in range(16):
            total = total + qs[i] * 3 & 1023
            best = max(best, min(qs[i], 200))
        for g in range(2):
            for i in range(8):
                w[8 * g + i] = float32(total - best) * float32(g - i)""",
    "calls": """
        for g in range(4):
            low, high = two(qs[4 * g], qs[4 * g + 1])
            x = float32(weighted(qs[1:14], g, scale=3))
            y = qs[4 * g : 4 * g + 4]
            for i in range(4):
                w[4 * g + i] = x * float32(high - low) + float32(y[3 - i]) * HALVES[i] + float32(BIG[y[i] & 3])""",
    "calls of few values": """
        for i in range(16):
            w[i] = float32(bent(qs[i] & 15) + bent(i)) * halved(qs[i]) + float32(bent(qs[i] * 256))""",
    "neighbours": """
        for g in range(4):
            at = qs[g] & 3
            for i in range(4):
                w[4 * g + i] = float32(CODES[at + i]) * HALVES[at + i] + float32(CODES[i + at])""",
    "functions": """
        for i in range(16):
            x = d[i % 2] * float32(c[i])
            y = float16(x * 1.001) + root(abs(x)) + min(x, d[1]) + max(d[0], x)
            w[i] = y + as_float(as_bits(x) ^ 1) + as_float16(qs[i] << 7) + float32(nearest(x) + len(qs))""",
}
NOT_IN_TORCH = {  # loops that end early, local arrays, and statements that write no neighbours or some weights twice
    "two writes": """
        for i in range(8):
            w[2 * i] = float32(qs[i])
            w[2 * i + 1] = d[0]""",
    "writes to views": """
        for g in range(2):
            y = w[8 * g : 8 * g + 8]
            put(y[4:8], 0, d[g])
            put(w[0:12], 8 * g, d[g] * 2)""",
    "branches": """
        for i in range(16):
            if qs[i] > 200 and i % 2 == 0 or qs[i] == 7:
                k, x = qs[i], float32(1)
            elif not qs[i] < 100:
                k, x = 100, float32(0)
            else:
                k, x = i, d[1] if qs[i] != 50 else d[0]
            w[i] = float32(k) * x""",
    "loops": """
        best, at = 0, 0
        for i in range(16):
            if qs[i] > best:
                best, at = qs[i], i
        while best > 3:
            best = best >> 1
            if best == 12:
                break
        for i in range(at % 4, at % 4 + 3):
            w[i] = float32(best + at)
        for i in range(16):
            if i > at:
                return
            w[i] = float32(i)""",
    "calls with local arrays": """
        sums, spare = floats(4), integers(2)
        spare[0] = 1
        for g in range(4):
            part = qs[4 * g : 4 * g + 4]
            sums[g] = total(part[1:], scale=0.25)
            low, high = ends(part)
            w[g] = float32(high - low)
            w[4 + g], w[g] = w_of(qs, g, top=3), float32(low)
        for g in range(8):
            w[8 + g] = sums[g % 4] * HALVES[g & 1] + float32(BIG[qs[g] & 3] + spare[g % 2])""",
    "functions of both kinds": """
        for i in range(16):
            x = d[i % 2] * float32(qs[i])
            y = float16(x * 1.001) + root(abs(x)) + min(x, d[1]) + max(d[0], x)
            k = min(max(nearest(x), -5), qs[i])
            w[i] = y + as_float(as_bits(x) ^ 1) + as_float16(qs[i] << 7) + float32(int32(x > 0.5) + k + len(qs))""",
    "exchange": """
        a, b = qs[0], qs[1]
        for i in range(16):
            a, b = b, (a + b) & 255
            signed, double = i - 8, as_bits(d[0]) & 255
            w[i] = float32(a * signed + double)
        kept = integers(2)
        kept[0], kept[1] = a, b
        kept[0], kept[1] = kept[1], kept[0]
        kept[0], kept[1] = ends(kept)
        for i in range(4, 4):
            kept[i] = undeclared
        if len(kept) > 1:
            kept[0] += 1 if len(qs) == 16 else undeclared
        w[0] = float32(kept[0])
        w[1] = float32(nothing(kept))""",
}
# fmt: on
TABLES = {
    "HALVES": LookupTable(lambda: [0.5, -1.5, 2.5, 0.1, 7, 8, 9]),
    "CODES": (-1, 3, 7, 2, 5, 9, 11),
    "BIG": (-1, 300, 70000, 2),
}  # fmt: skip


def decoder_of(body: str) -> Any:
    lines = "\n".join(line[4:] for line in body.splitlines())
    return declared(f"{HELPERS}def decode(w, d, qs, c, n, h):\n    '''Of a test.'''{lines}\n", **TABLES)


def random_blocks(count: int) -> np.ndarray[Any, Any]:
    blocks = np.random.default_rng(0).integers(0, 256, (count, 52), np.uint8)
    blocks[:, :4] = np.random.default_rng(1).normal(size=(count, 2)).astype(np.float16).view(np.uint8)
    return blocks


def assert_forms_are_equal(functions: list[Any], blocks: np.ndarray[Any, Any], folder: Path, *, in_torch: bool) -> None:
    unit, fields = TypesInC(), columns(LAYOUT, blocks)
    for number, function in enumerate(functions):
        unit.decoder(ScalarLayout(f"own_{number}", LAYOUT.fields, 16), function)
    library = compiled(str(unit), folder, "-O1", *["-w"] * (len(functions) > 1))  # random comparisons may be constant
    for number, function in enumerate(functions):
        expected, tree = by_plain_python(function, fields, 16), check(function, LAYOUT.arrays())
        assert same_bits(by_c(library[f"own_{number}"], blocks, 16), expected), number
        assert same_bits(by_numpy(tree, fields), expected), number
        if in_torch:
            assert same_bits(by_torch(tree, fields), expected), number
            assert same_bits(by_triton(function, LAYOUT, blocks), expected), number


@pytest.mark.parametrize("name", [*BODIES, *NOT_IN_TORCH])
def test_all_forms_equal_plain_python(name: str, tmp_path: Path) -> None:
    function = decoder_of({**BODIES, **NOT_IN_TORCH}[name])
    assert_forms_are_equal([function], random_blocks(40), tmp_path, in_torch=name in BODIES)


PROGRAMS = 300 if FULL else 20
HELPER = """
def helper(a, b):
    if a > b:
        r = a - b
    else:
        r = b ^ 5
    return r
"""
# N is an integer, X a float, T a test: the rules of each, and its leaves.
RULES = {
    "N": (
        "N + N; (N - N); N * N; (N & N); N | N; N ^ (N); (N) << (qs[i] & 7); (N) >> 3; (N) // 8; (N) % 16; -(N); min(N, N);"
        "max(N, N); abs(N); (N if T else N); int32(T); helper(N, N)",
        "i; qs[i]; c[i]; n[i // 8]; h[i % 4]; 7; -3; 250; k; TABLE[qs[i] & 3]",
    ),
    "X": (
        "X + X; (X - X); X * (X); X / (X); X * 0.1; (X - 3.7); float32(N); -(X); min(X, X); max(X, X); abs(X); (X if T else X)",
        "d[0]; d[i % 2]; y; float32(0.1); float32(3)",
    ),
    "T": ("N < N; (N >= N); (N == N); N != (N); X <= X; (T and T); (T or T); (not T)", "qs[i] > 99; i < 12"),
}
STATEMENTS = ["k = N", "y = X", "k, y = N, X", "if T: k = N", "if T: y = X\n        else: k, y = N, X"]


def program(random_: random.Random) -> Any:
    statements = [grown(random_, random_.choice(STATEMENTS), 3, RULES) for _ in range(random_.randint(0, 3))]
    statements = ["k, y = qs[i], d[1]", *statements, f"w[i] = {grown(random_, 'X', 4, RULES)}"]
    lines = "".join(f"        {line}\n" for line in statements)
    return declared(f"{HELPER}def decode(w, d, qs, c, n, h):\n    for i in range(16):\n{lines}", TABLE=(-3, 5, 700, 2))


def test_random_programs(tmp_path: Path) -> None:
    random_, functions = random.Random(0), list[Any]()
    while len(functions) < PROGRAMS:
        function = program(random_)
        try:
            check(function, LAYOUT.arrays())
        except ScalarError as error:
            assert re.search("expected a (shift|number with a kind)|32 bits", str(error))
            continue
        functions.append(function)
    assert_forms_are_equal(functions, random_blocks(12), tmp_path, in_torch=True)
