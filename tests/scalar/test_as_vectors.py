"""Loops over vectors: which loops they take, and weights equal to those of plain Python."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glft_schema.scalar.kinds import KINDS
from glft_schema.tensor_types.library.printing import TypesInC
from glft_schema.tensor_types.scalar_layout import ScalarField, ScalarLayout
from tests.scalar.sources import GNU, by_c, by_plain_python, columns, compiled, declared, pointer, same_bits

# fmt: off
FIELDS = (
    ScalarField("d", "f16", 2), ScalarField("h", "f16", 40), ScalarField("f", "f32", 40), ScalarField("u", "u32", 40),
    ScalarField("s", "i32", 40), ScalarField("q", "u8", 48), ScalarField("c", "i8", 40), ScalarField("v", "u16", 40),
    ScalarField("z", "i16", 40),
)
TABLES = {
    "SIGNED": tuple(range(-128, 128, 16)), "BYTES": tuple(range(7, 255, 16)), "LARGE": tuple(range(0, 70000, 137)),
    "GRID": tuple(n * 37 % 251 for n in range(1024)), "FEW": (3, 1, 2),
}
HELPERS = '''
def twice(x, n):
    return x * FEW[n] if x > 7 else -x
def sum_of(x, n):
    return x[n] + x[n + 1]
'''
# Decoders of 40 weights, by the number of their loops over vectors.
LOOPS = {
    "all_kinds": (1, """
    for i in range(40):
        w[i] = f[i] * float32(c[i] - q[i]) + float32(v[i] ^ z[i]) - float32(s[i] & u[i]) * h[i]
"""),
    "rest": (2, """
    for i in range(37): w[i] = d[1] * float32(q[i])
    for i in range(6): w[34 + i] = float32(i) - d[0]
"""),
    "short_loops": (2, """
    for g in range(5):
        for i in range(8): w[8 * g + i] = d[0] * float32(q[8 * g + i] >> g & 3)
    for g in range(4):
        for i in range(4): w[4 * g + i] = float32(c[4 + i] * (1 - 2 * (q[g] >> i & 1)))
"""),
    "shared_numbers": (1, """
    for i in range(40):
        a = float32(q[i // 2] >> 4 * (i % 2) & 15) * h[i // 4] + float32(c[i // 8] + q[1 + i // 16])
        w[i] = a - f[i // 2] * float32(z[i // 4]) + float32(u[i // 32])
"""),
    "thirds": (1, "    for i in range(40): w[i] = float32(q[i // 3] - i % 3)\n"),
    "tables": (1, """
    for i in range(40):
        w[i] = float32(SIGNED[q[i] & 15]) * float32(BYTES[q[i] >> 4]) + float32(LARGE[v[i] & 255] - FEW[2])
"""),
    "runs": (1, """
    for i in range(40):
        a = GRID[4 * q[i // 4] + i % 4] + GRID[8 * (q[i // 8] & 127) + i % 8]
        w[i] = float32(a) + float32(LARGE[i // 4 + i % 4]) * h[i // 8 + i % 4] - float32(c[i // 4 + i % 2])
"""),
    "rows_of_a_table": (1, """
    for g in range(5):
        entry = 8 * (q[g] & 127)
        for i in range(8): w[8 * g + i] = d[0] * float32(GRID[entry + i])
"""),
    "conditions": (1, """
    for i in range(40):
        a = f[i] if q[i] > 99 and c[i] < 3 else -d[0]
        w[i] = a + float32(twice(q[i], 1) + int32(z[i] == 0))
"""),
    "functions": (1, """
    for i in range(40):
        x = f[i] * 0.25
        x = max(min(x, float32(50)), float32(-50))
        n = nearest(x) + truncated(x)
        w[i] = abs(x) + float32(abs(n)) + root(abs(x)) + float16(x) + as_float16(q[i]) + as_float(as_bits(x) ^ q[i])
"""),
    "mixed": (1, """
    for i in range(40):
        a = q[0]
        b = a + 1
        a = q[i]
        w[i] = float32(a + b)
"""),
    "shared_sum": (1, "    for i in range(40): w[i] = float32(sum_of(q, 2) + q[i])\n"),
    "sums": (0, """
    total = 0
    for i in range(40):
        total += q[i]
        w[i] = float32(total)
"""),
    "last": (0, """
    last = 0
    for i in range(40):
        last = q[i]
        w[i] = 0
    w[3] = float32(last)
"""),
    "backwards": (0, "    for i in range(40): w[39 - i] = float32(q[i])\n"),
    "every_second": (0, "    for i in range(20): w[2 * i], w[2 * i + 1] = float32(q[i]), d[0]\n"),
    "local": (1, """
    x = floats(40)
    for i in range(40): x[i] = float32(q[i])
    for i in range(40): w[i] = x[39 - i]
"""),
    "halves_anywhere": (0, "    for i in range(40): w[i] = h[q[i] & 31]\n"),
    "view_of_data": (0, "    for i in range(40): w[i] = float32(sum_of(q[i : i + 2], 0))\n"),
    "leaving": (1, """
    for i in range(40): w[i] = 0
    for i in range(40):
        if q[i] == 7: break
        w[i] = 1
"""),
}
# fmt: on
LEVEL_3 = ("-mavx2", "-mf16c")
LEVEL_4 = (*LEVEL_3, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512cd")
FLAGS = {
    "4 lanes": (),
    "8 lanes": ("-DLANES_16=8",),
    "16 lanes": ("-DLANES_16=16",),
    "4 lanes of level 3": (*LEVEL_3, "-DLANES_16=4"),
    "level 3": LEVEL_3,
    "level 4": LEVEL_4,
}


def library_of(unit: TypesInC, level: str, folder: Path) -> ctypes.CDLL:
    """Compiles for a level, or skips the test if this processor lacks it."""
    path = Path("/proc/cpuinfo")
    has = path.read_text("utf-8").split() if path.exists() else []
    if not {flag.removeprefix("-m") for flag in FLAGS[level] if flag.startswith("-m")} <= {*has}:
        pytest.skip("this processor cannot run it")
    return compiled(str(unit), folder, "-O2", *GNU, *FLAGS[level])


def decoder_of(name: str) -> tuple[ScalarLayout, Any]:
    body = f"def {name}(w, {', '.join(field.name for field in FIELDS)}):\n{LOOPS[name][1].lstrip(chr(10))}"
    return ScalarLayout(f"own_{name}", FIELDS, 40), declared(HELPERS + body, **TABLES)


def random_blocks(layout: ScalarLayout) -> Any:
    """Returns blocks of finite floats and any integers."""
    random = np.random.default_rng(3)
    blocks = random.integers(0, 256, (60, layout.offsets[-1]), np.uint8)
    for field, at in zip(layout.fields, layout.offsets, strict=False):
        if field.number in ("f16", "f32"):
            content = (random.standard_normal((60, field.count)) * 40).astype(KINDS[field.number].numpy).view(np.uint8)
            blocks[:, at : at + content.shape[1]] = content
    return blocks


@pytest.mark.parametrize("name", LOOPS)
def test_loops_that_are_over_vectors(name: str) -> None:
    unit = TypesInC()
    unit.decoder(*decoder_of(name))
    text = str(unit)
    assert text[text.index(f"// own_{name}") :].count("+= LANES") == LOOPS[name][0]


@pytest.mark.parametrize("level", FLAGS)
def test_they_have_the_weights_of_plain_python(level: str, tmp_path: Path) -> None:
    unit, sources = TypesInC(), dict(map(decoder_of, LOOPS))
    for layout, source in sources.items():
        unit.decoder(layout, source)
    library, blocks = library_of(unit, level, tmp_path), random_blocks(next(iter(sources)))
    for layout, expected in zip(sources, expected_weights(), strict=True):
        assert same_bits(by_c(library[layout.name], blocks, 40), expected), layout.name


@cache
def expected_weights() -> list[Any]:
    """Returns the weights of all loops by plain Python."""
    sources = dict(map(decoder_of, LOOPS))
    blocks = random_blocks(next(iter(sources)))
    return [by_plain_python(source, columns(layout, blocks), 40) for layout, source in sources.items()]


@pytest.mark.parametrize("level", FLAGS)
def test_rows_of_any_length_in_all_dtypes(level: str, tmp_path: Path) -> None:
    """The rest of a row is computed number by number."""
    source = declared("def decode(w, d, h, q):\n    for i in range(len(w)): w[i] = d[0] * float32(q[i]) + h[i]\n")
    fields = ScalarField("d", "f16", 1), ScalarField("h", "f16", None), ScalarField("q", "u8", None)
    unit, random = TypesInC(), np.random.default_rng(4)
    unit.decoder(ScalarLayout("rows", fields, None), source)
    library = library_of(unit, level, tmp_path)
    for length in (*range(1, 20), 40):
        d, h = random.standard_normal((3, 1)).astype(np.float16), random.standard_normal((3, length)).astype(np.float16)
        q = random.integers(0, 256, (3, length), np.uint8)
        expected = by_plain_python(source, {"d": d, "h": h, "q": q}, length)
        bits = expected.view(np.uint32)
        bfloat16 = (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)
        for suffix, weights in {"": expected, "_f16": expected.astype(np.float16), "_bf16": bfloat16}.items():
            found = np.zeros((3, length), weights.dtype)
            library["rows" + suffix](*map(pointer, (d, h, q, found)), ctypes.c_int64(3), ctypes.c_int64(length))
            assert found.tobytes() == weights.tobytes(), (suffix, length)
