"""C gives the bits of plain Python, for every construct of the language."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glft_schema.scalar import language
from glft_schema.scalar.checking import check
from glft_schema.scalar.language import run
from glft_schema.tensor_types.library.printing import TypesInC
from glft_schema.tensor_types.scalar_layout import ScalarField, ScalarLayout
from tests.scalar.sources import ARITHMETIC, compiled, declared, pointer, same_bits

LAYOUT = ScalarLayout(
    "own", (ScalarField("d", "f16", 2, "scales"), ScalarField("qs", "u8", 16, "codes"), ScalarField("n", "u32", 2)), 16
)

# fmt: off
BODIES = {
    **ARITHMETIC,
    "integers": """
        for i in range(16):
            k = (qs[i] - 200) * 16777216 + i
            w[i] = float32(k // 8 % 32 ^ qs[i] % 7 | i // 3 - 1 & 5) - float32(-k) - float32(abs(k))""",
    "words": """
        for i in range(16):
            w[i] = float32(n[i // 8] >> 2 * (i % 8) & 3) + float32(n[1] >> 16)""",
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
    "calls": """
        sums, spare = floats(4), integers(2)
        spare[0] = 1
        for g in range(4):
            part = qs[4 * g : 4 * g + 4]
            sums[g] = total(part[1:], scale=0.25)
            low, high = ends(part)
            w[g] = float32(high - low)
            w[4 + g], w[g] = w_of(qs, g, top=3), float32(low)
        for g in range(8):
            w[8 + g] = sums[g % 4] * HALVES[g & 1] + float32(CODES[qs[g] & 3] + spare[g % 2])""",
    "functions": """
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
"""
CONSTANTS = {"HALVES": language.LookupTable(lambda: [0.5, -1.5]), "CODES": (-1, 300, 70000, 2)}


def decoder(body: str) -> Any:
    lines = "\n".join(line[4:] for line in body.splitlines())
    return declared(f"{HELPERS}def decode(w, d, qs, n):\n    '''Of a test.'''{lines}\n", **CONSTANTS)


def random_blocks(count: int) -> np.ndarray[Any, Any]:
    blocks = np.random.default_rng(0).integers(0, 256, (count, 28), np.uint8)
    blocks[:, :4] = np.random.default_rng(1).normal(size=(count, 2)).astype(np.float16).view(np.uint8)
    return blocks


@pytest.mark.parametrize("name", BODIES)
def test_c_equals_plain_python(name: str, tmp_path: Path) -> None:
    unit, function = TypesInC(), decoder(BODIES[name])
    unit.decoder(LAYOUT, function)
    library, blocks = compiled(str(unit), tmp_path, "-O1"), random_blocks(40)
    found, expected = np.zeros((2, 40, 16), np.float32)
    library.own(pointer(blocks), pointer(found), ctypes.c_int64(40))
    for block, w in zip(blocks, expected, strict=True):
        run(function, w=w, d=block[:4].view(np.float16), qs=block[4:20], n=block[20:].view(np.uint32))
    assert same_bits(found, expected)


def test_halves(tmp_path: Path) -> None:
    """NAME_f16 and NAME_bf16 round each weight, half to even, over all exponents."""
    unit = TypesInC()
    unit.decoder(
        ScalarLayout("kept", (ScalarField("x", "f32", 2),), 2), declared("def f(w, x):\n    w[0], w[1] = x[0], x[1]\n")
    )
    library = compiled(str(unit), tmp_path, "-O1")
    near = np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | np.array(
        [0, 1, 0x7FFF, 0x8000, 0x8001, 0xF000, 0x1000, 0xFFFF], np.uint32
    )
    x = near.reshape(-1).view(np.float32)
    for suffix in ("f16", "bf16"):
        found = np.zeros(x.size, np.uint16)
        library[f"kept_{suffix}"](pointer(x), pointer(found), ctypes.c_int64(x.size // 2))
        with np.errstate(over="ignore"):
            expected = x.astype(np.float16) if suffix == "f16" else _bfloat(x)
        as_floats = found.view(np.float16) if suffix == "f16" else (found.astype(np.uint32) << 16).view(np.float32)
        assert same_bits(as_floats, expected)


def _bfloat(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns float32 rounded to eight bits by the definition: to the nearest, or the even one."""
    bits = x.view(np.uint32).astype(np.int64)
    low, rest = bits >> 16, bits & 0xFFFF
    rounded = low + ((rest > 0x8000) | (rest == 0x8000) & (low & 1 == 1))
    return np.where(np.isnan(x), x, (rounded << 16).astype(np.uint32).view(np.float32))


def test_rows(tmp_path: Path) -> None:
    """A length that is an argument reaches called functions."""
    source = (
        "def count(x):\n    return len(x)\n"
        "def half(x, i):\n    return float32(count(x) - i)\n"
        "def decode(w, d, template):\n    for i in range(len(w)):\n"
        "        w[i] = d[0] * float32(template[i // 2]) + half(w, i)\n"
    )
    unit, function = TypesInC(), declared(source)
    unit.decoder(
        ScalarLayout(
            "rows",
            (ScalarField("d", "f16", 1), ScalarField("unused", "u8", 3), ScalarField("template", "u8", None, weights=2)),
            None,
        ),
        function,
    )
    library = compiled(str(unit), tmp_path, "-O1")
    random = np.random.default_rng(2)
    d, unused, codes = (
        random.normal(size=5).astype(np.float16),
        np.zeros(15, np.uint8),
        random.integers(0, 256, (5, 6), np.uint8),
    )
    expected = np.zeros((5, 12), np.float32)
    for row in range(5):
        run(function, w=expected[row], d=d[row : row + 1], template=codes[row])
    for suffix, dtype in (("", np.float32), ("_f16", np.float16)):
        found = np.zeros((5, 12), dtype)
        library["rows" + suffix](*map(pointer, (d, unused, codes, found)), ctypes.c_int64(5), ctypes.c_int64(12))
        assert same_bits(found, expected.astype(dtype))


def test_the_text_reads_like_the_declaration() -> None:
    unit, body = (
        TypesInC(),
        "\n        for i in range(16):\n            code = qs[i] >> 4 & 15\n            w[i] = d[0] * float32(code - 8)",
    )
    unit.decoder(LAYOUT, decoder(body))
    printed = str(unit)
    assert printed[printed.index("// own") :].startswith(
        """// own: 16 weights in 28 bytes
//   d: f16[2], scales
//   qs: u8[16], codes
//   n: u32[2],
// Of a test.
static inline void decode(f32 *__restrict w, const u16 *__restrict d, const uint8_t *__restrict qs,
        const u32 *__restrict n) {
    (void)n;
    for (int32_t i = 0; i < 16; i++) {
        int32_t code = (qs[i] >> 4) & 15;
        w[i] = of_half(d[0]) * (float)(code - 8);
    }
}

void own(const uint8_t *blocks, float *w, int64_t n) {
    for (int64_t b = 0; b < n; b++, blocks += 28, w += 16)
        decode("""
    )


def test_names_of_c_and_equal_names(tmp_path: Path) -> None:
    """Names of C get an underscore; functions and tables of one name get a number unless equal."""
    unit, functions = TypesInC(), []
    for number, table in enumerate([(1, 2), (1, 2), (3, 400)]):
        source = (
            f"def double(x):\n    return x * TABLE[{number // 2}]\ndef f(w, short):\n    w[0] = float32(double(short[0]))\n"
        )
        functions.append(declared(source, TABLE=table))
        unit.decoder(ScalarLayout(f"own{number}", (ScalarField("short", "u8", 1),), 1), functions[-1])
    printed = str(unit)
    assert [printed.count(f"int32_t double_{number}(") for number in (2, 3, 4)] == [1, 1, 0]
    library, out = compiled(printed, tmp_path, "-O1"), np.zeros(1, np.float32)
    for name in ("own0", "double", "f", "f32", "TABLE"):
        with pytest.raises(language.ScalarError, match=f"^{name}: expected a name that is not in use in C$"):
            unit.decoder(ScalarLayout(name, (ScalarField("short", "u8", 1),), 1), functions[0])
    results = []
    for number in range(3):
        library[f"own{number}"](pointer(np.array([5], np.uint8)), pointer(out), ctypes.c_int64(1))
        results.append(out[0])
    assert results == [5, 5, 2000]
    assert check(functions[0], {"w": LAYOUT.arrays()["w"], "short": LAYOUT.arrays()["qs"]}).name == "f"
