"""Encoders in lanes of each width, and side by side by numpy, write the bytes of plain Python."""

from __future__ import annotations

import ctypes
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glft_schema.scalar.checking import check
from glft_schema.scalar.kinds import KINDS
from glft_schema.scalar.language import ScalarError, run
from glft_schema.scalar.side_by_side import run_side_by_side
from glft_schema.tensor_types.library.printing import TypesInC
from glft_schema.tensor_types.scalar_layout import ScalarField, ScalarLayout
from tests.scalar.sources import GNU, compiled, declared, grown, pointer, same_bits
from tests.tools.depth import FULL

LAYOUT = ScalarLayout(
    "own", (ScalarField("d", "f16", 2), ScalarField("e", "f32", 1), ScalarField("qs", "u8", 16), ScalarField("n", "u32", 2)), 16
)
RECORD = np.dtype([(field.name, KINDS[field.number].numpy, (field.count or 0,)) for field in LAYOUT.fields])
BLOCKS, PER_ROW = 21, 3  # the last lanes have no block
WIDTHS = (4, 8, 16)
PROGRAMS = 200 if FULL else 12
ZEROS = """
        d[0], d[1], e[0], n[0], n[1] = 0.0, 0.0, 0.0, 0, 0
        for i in range(16):
            qs[i] = 0"""
# fmt: off
BODIES = {
    "a condition": """
        peak, at = float32(0), 0
        for i in range(16):
            if abs(w[i]) > abs(peak):
                peak, at = w[i], i
        d[0], e[0], qs[0], n[1] = peak, peak / 3, at, at << 28""",
    "nested conditions": """
        for i in range(16):
            k = 0
            if w[i] > 0.0:
                if w[i] > 1.0:
                    k = 3
                elif not w[i] < 0.25 and i != 7:
                    k = 2
                else:
                    k = i
            qs[i] = k + (9 if w[i] == 0.0 or i < 3 else int32(w[i] > 2.0))""",
    "leaving a loop": """
        total, steps = float32(0), 0
        for i in range(16):
            total += abs(w[i])
            if total > 2.0:
                break
            steps += 1
        while total > 0.5:
            total = total * 0.5
            if total == 1.0:
                break
            steps += 16
        qs[0], e[0] = steps, total""",
    "leaving the function": """
        qs[1] = 7
        for i in range(16):
            if w[i] < -1.0:
                return
            qs[i] = i + 1
            if w[i] > 1.0:
                d[1] = w[i]
                return
        e[0] = 5.0""",
    "indices that depend on data": """
        counts, order = integers(4), integers(16)
        for i in range(16):
            k = min(max(nearest(w[i]), 0), 3)
            counts[k] += 1
            order[i] = k
        for i in range(16):
            if w[i] > 0.0:
                order[counts[order[i] & 3] & 15] = CODES[order[i] & 3]
        for i in range(16):
            qs[i] = order[i]
        n[0] = CODES[counts[0] & 3] if counts[0] < 4 else 0""",
    "bounds that depend on data": """
        k, total = min(max(nearest(w[0] * 4.0), 0), 15), float32(0)
        for i in range(k):
            total += w[i]
            qs[i] = k
        for i in range(k, 16):
            qs[i] = i - k
        e[0] = total""",
    "calls": """
        codes, mean = integers(16), mean_square[0]
        for h in range(2):
            x = w[8 * h : 8 * h + 8]
            low, high = ends(x)
            d[h] = search(x, codes[8 * h : 8 * h + 8], low, high, top=15)
            if high > 1.0:
                e[0] = first_above(x, high * 0.5) + far(x, h)
        for i in range(16):
            qs[i] = codes[i]
        n[0], n[1] = nearest(mean), longest(w[8:16], codes)""",
    "functions": """
        for i in range(16):
            x = w[i] * importance[i]
            y = float16(x * 1.001) + root(abs(x)) + min(x, w[0]) - max(w[1], x)
            k = truncated(y) ^ nearest(x) & 255 | truncated(x * 1e30) >> 30
            qs[i] = k + (as_bits(y) >> 20) % 8 - (k & 63) // 4 + (abs(k) & 1)
        e[0], d[0] = as_float(as_bits(w[2]) ^ 1), as_float16(nearest(w[3] * 100.0) & 0x7FFF)""",
}
HELPERS = """
def ends(x):
    low, high = x[0], x[0]
    for i in range(len(x)):
        low, high = min(low, x[i]), max(high, x[i])
    return low, high

def search(x, codes, low, high, *, top):
    scale = (high - low) / top
    if scale == 0.0:
        return float32(0)
    for i in range(len(x)):
        codes[i] = min(max(nearest((x[i] - low) / scale), 0), top)
    return scale

def first_above(x, limit):
    for i in range(len(x)):
        if x[i] > limit:
            return x[i]
    return float32(-1)

def far(x, h):
    return x[7 * h] if h > 0 else x[h]

@alone
def longest(x, codes):
    k, steps = codes[0], 0
    while k < 40:
        k += 1 + min(max(nearest(x[k & 7]), 0), 3)
        steps += 1
        codes[k & 7] = steps
    return steps
"""
# Z is a statement, N an integer, X a float, T a test; the rules of each, and its leaves.
RULES = {
    "Z": (
        "k = N; y = X; k, y = N, X; qs[i] = N; c[N & 15] = N; s[i] = X; y += s[N & 15]; e[0] = X; INDENT if T; INDENT if T:;"
        "INDENT for j in range(3); INDENT for j in range(N & 3); INDENT while y > 0.1 and t < 20",
        "k += 1; y = y * 0.5; break; return",
    ),
    "N": (
        "N + N; (N - N); N * N; (N & N); N ^ (N); (N) >> 3; (N) << (N & 7); min(N, N); abs(N); (N if T else N); int32(T);"
        "c[N & 15]; truncated(X); TABLE[N & 3]; helper(N, X)",
        "i; k; 7; -3; c[i]",
    ),
    "X": (
        "X + X; (X - X); X * (X); X / (X); float32(N); -(X); max(X, X); (X if T else X); w[N & 15]",
        "w[i]; y; float32(0.1); s[i]; importance[0]",
    ),
    "T": ("N < N; (N == N); X <= X; (T and T); (T or T); (not T)", "w[i] > 0.0; i < 12; k > 5"),
}
# fmt: on
HELPER = """
def helper(a, x):
    result = a
    if x > 0.5:
        if a > 3:
            return a - 1
        result = a ^ 5
    return result
"""


def inputs() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random_ = np.random.default_rng(0)
    weights = random_.normal(size=(BLOCKS, 16)).astype(np.float32)
    weights[::4] = np.round(weights[::4])
    weights[5], weights[6] = 0, np.float32("nan")
    return weights, random_.random((PER_ROW, 16), np.float32)


def by_plain_python(function: Any) -> np.ndarray[Any, Any]:
    weights, importance = inputs()
    names, encoded = function.__code__.co_varnames[: function.__code__.co_argcount], np.zeros(BLOCKS, RECORD)
    for block, w in enumerate(weights):
        arrays = {name: encoded[name][block] for name in RECORD.names or ()}
        arrays |= {"w": w, "importance": importance[block % PER_ROW], "mean_square": means()[:, block]}
        run(function, **{name: arrays[name] for name in names})
    return encoded


def means() -> np.ndarray[Any, Any]:
    """Returns the mean square of each block's row, [1, blocks]."""
    rows = inputs()[0].reshape(-1, PER_ROW * 16)
    return np.repeat(np.add.accumulate(rows * rows, axis=1)[:, -1] / np.float32(PER_ROW * 16), PER_ROW)[None]


def by_c(library: ctypes.CDLL, name: str) -> np.ndarray[Any, Any]:
    weights, importance = inputs()
    found = np.zeros(BLOCKS + 1, RECORD)
    given = [pointer(weights), *[pointer(importance)] * name.endswith("_by_importance"), pointer(found)]
    library[name](*given, ctypes.c_int64(BLOCKS // PER_ROW), ctypes.c_int64(PER_ROW * 16))
    assert found[BLOCKS].tobytes() == bytes(RECORD.itemsize)
    return found[:BLOCKS]


def by_numpy(function: Any) -> np.ndarray[Any, Any]:
    weights, importance = inputs()
    arrays = {"w": weights.T, "importance": np.tile(importance.T, BLOCKS // PER_ROW), "mean_square": means()}
    for field in LAYOUT.fields:
        arrays[field.name] = np.zeros((field.count or 0, BLOCKS), np.float32 if field.number[0] == "f" else np.int32)
    run_side_by_side(check(function, LAYOUT.encoder_arrays()), arrays, BLOCKS)
    encoded = np.zeros(BLOCKS, RECORD)
    with np.errstate(all="ignore"):
        for name in RECORD.names or ():
            encoded[name] = arrays[name].T
    return encoded


def are_equal(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    return all(same_bits(found[name], expected[name]) for name in RECORD.names or ())


@pytest.mark.parametrize("body", BODIES)
def test_all_forms_are_equal(body: str, tmp_path: Path) -> None:
    unused = "d, e, qs, n" if body != "functions" else "importance, d, e, qs, n"
    given = f"w, {'mean_square, ' * (body == 'calls')}{unused}"
    function = declared(f"{HELPERS}\ndef encode({given}):{ZEROS}{BODIES[body]}\n", CODES=(200, 3, 70, 11))
    expected = by_plain_python(function)
    assert len({block.tobytes() for block in expected}) > 5
    plain, lanes = TypesInC(), TypesInC()
    name = plain.encoder(LAYOUT, function)
    assert lanes.encoder(LAYOUT, function, lanes=True) == name
    assert are_equal(by_c(compiled(str(plain), tmp_path, "-O1"), name), expected)
    for width in WIDTHS:
        library = compiled(str(lanes), tmp_path, "-O1", f"-DLANES_16={width}", *GNU)
        assert are_equal(by_c(library, name), expected), width
    if body == "calls":
        with pytest.raises(ScalarError, match=r"^encode: longest is marked alone, so it cannot run on arrays$"):
            by_numpy(function)
    else:
        assert are_equal(by_numpy(function), expected)


def statements(random_: random.Random, indent: str, depth: int, left: list[str]) -> str:
    """Returns a few statements, some with blocks."""
    text = ""
    for _ in range(random_.randint(1, 3)):
        line = grown(random_, "Z", 3, RULES)
        if not line.startswith("INDENT"):
            text += f"{indent}{line}\n"
            continue
        head = line.removeprefix("INDENT ").rstrip(":")
        if depth == 0 or ("for" in head and "j" in left):
            continue
        inner = [*left, "j"] if "for" in head else left
        text += f"{indent}{head}:\n{statements(random_, indent + '    ', depth - 1, inner)}"
        if "while" in head:
            text += f"{indent}    t += 1\n"
        if line.endswith(":"):
            text += f"{indent}else:\n{statements(random_, indent + '    ', depth - 1, left)}"
    return text or f"{indent}k = 1\n"


def program(random_: random.Random) -> Any:
    body = statements(random_, "        ", 2, [])
    last = "    for i in range(16):\n        n[i // 8] = c[i]\n    d[0], d[1] = s[0], s[15]\n"
    zeros = ZEROS.strip("\n").replace("        ", "    ", 1).replace("\n        ", "\n    ")
    head = f"{zeros}\n    k, t, y, c, s = 3, 0, w[1], integers(16), floats(16)\n    for i in range(16):\n"
    return declared(f"{HELPER}def encode(w, importance, d, e, qs, n):\n{head}{body}{last}", TABLE=(-3, 5, 700, 2))


def test_random_programs(tmp_path: Path) -> None:
    random_, functions, plain, lanes = random.Random(1), [], TypesInC(), TypesInC()
    while len(functions) < PROGRAMS:
        function, layout = program(random_), ScalarLayout(f"random_{len(functions)}", LAYOUT.fields, 16)
        try:
            name = plain.encoder(layout, function)
        except ScalarError as error:
            assert re.search("kind|shift|32 bits|index|every path|statement", str(error)), error
            continue
        assert lanes.encoder(layout, function, lanes=True) == name
        functions.append((function, name))
    libraries = [compiled(str(plain), tmp_path, "-O1", "-w")]
    libraries += [compiled(str(lanes), tmp_path, "-O1", "-w", f"-DLANES_16={width}", *GNU) for width in (4, 8)]
    for function, name in functions:
        expected = by_plain_python(function)
        for library in libraries:
            assert are_equal(by_c(library, name), expected), name
        assert are_equal(by_numpy(function), expected), name
