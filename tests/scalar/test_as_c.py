"""The C of functions: its text, its names, and weights of other dtypes and of rows."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch

from glft_schema.scalar.language import ScalarError
from glft_schema.tensor_types.library.printing import TypesInC
from glft_schema.tensor_types.scalar_layout import ScalarField, ScalarLayout
from tests.scalar.sources import by_c, by_plain_python, compiled, declared, pointer, same_bits


def test_halves(tmp_path: Path) -> None:
    """NAME_f16 and NAME_bf16 round each weight, half to even, over all exponents."""
    unit = TypesInC()
    unit.decoder(
        ScalarLayout("kept", (ScalarField("x", "f32", 2),), 2), declared("def f(w, x):\n    w[0], w[1] = x[0], x[1]\n")
    )
    library = compiled(str(unit), tmp_path, "-O1")
    near = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xF000, 0x1000, 0xFFFF], np.uint32)
    x = (np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | near).reshape(-1).view(np.float32)
    for suffix, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        found = torch.zeros(x.size, dtype=dtype)
        library[f"kept_{suffix}"](pointer(x), ctypes.c_void_p(found.data_ptr()), ctypes.c_int64(x.size // 2))
        assert same_bits(found.float().numpy(), torch.from_numpy(x).to(dtype).float().numpy())


def test_rows(tmp_path: Path) -> None:
    """A length that is an argument reaches called functions."""
    source = (
        "def count(x):\n    return len(x)\n"
        "def half(x, i):\n    return float32(count(x) - i)\n"
        "def decode(w, d, template):\n    for i in range(len(w)):\n"
        "        w[i] = d[0] * float32(template[i // 2]) + half(w, i)\n"
    )
    unit, function = TypesInC(), declared(source)
    fields = ScalarField("d", "f16", 1), ScalarField("unused", "u8", 3), ScalarField("template", "u8", None, weights=2)
    unit.decoder(ScalarLayout("rows", fields, None), function)
    library, random = compiled(str(unit), tmp_path, "-O1"), np.random.default_rng(2)
    d, codes = random.normal(size=(5, 1)).astype(np.float16), random.integers(0, 256, (5, 6), np.uint8)
    expected = by_plain_python(function, {"d": d, "template": codes}, 12)
    for suffix, dtype in (("", np.float32), ("_f16", np.float16)):
        found = np.zeros((5, 12), dtype)
        arrays = d, np.zeros(15, np.uint8), codes, found
        library["rows" + suffix](*map(pointer, arrays), ctypes.c_int64(5), ctypes.c_int64(12))
        assert same_bits(found, expected.astype(dtype))


def test_the_text_reads_like_the_declaration() -> None:
    unit, source = (
        TypesInC("its_"),
        """
def decode(w, d, qs, n):
    '''Of a test.'''
    for i in range(16):
        code = qs[i] >> 4 & 15
        w[i] = d[0] * float32(code - 8)
""",
    )
    fields = ScalarField("d", "f16", 2, "scales"), ScalarField("qs", "u8", 16, "codes"), ScalarField("n", "u32", 2)
    unit.decoder(ScalarLayout("own", fields, 16), declared(source))
    printed = str(unit)
    assert printed[printed.index("// its_own") :].startswith(
        """// its_own: 16 weights in 28 bytes
//   d: f16[2], scales
//   qs: u8[16], codes
//   n: u32[2],
// Of a test.
static inline void its_decode(f32 *__restrict w, const u16 *__restrict d, const uint8_t *__restrict qs,
        const u32 *__restrict n) {
    (void)n;
    for (int32_t i = 0; i < 16; i++) {
        int32_t code = (qs[i] >> 4) & 15;
        w[i] = of_half(d[0]) * (float)(code - 8);
    }
}

static inline void its_own(const uint8_t *blocks, float *w, int64_t n) {
    for (int64_t b = 0; b < n; b++, blocks += 28, w += 16)
        its_decode("""
    )


def test_names_of_c_and_equal_names(tmp_path: Path) -> None:
    """Names of C get an underscore; functions and tables of one name get a number unless equal."""
    unit, fields = TypesInC(), (ScalarField("short", "u8", 1),)
    for number, table in enumerate([(1, 2), (1, 2), (3, 400)]):
        double = f"def double(x):\n    return x * TABLE[{number // 2}]\n"
        function = declared(f"{double}def f(w, short):\n    w[0] = float32(double(short[0]))\n", TABLE=table)
        unit.decoder(ScalarLayout(f"own{number}", fields, 1), function)
    printed = str(unit)
    assert [printed.count(f"int32_t double_{number}(") for number in (2, 3, 4)] == [1, 1, 0]
    for name in ("own0", "double", "f", "f32", "TABLE"):
        with pytest.raises(ScalarError, match=f"^{name}: expected a name that is not in use in C$"):
            unit.decoder(ScalarLayout(name, fields, 1), function)
    library, block = compiled(printed, tmp_path, "-O1"), np.array([[5]], np.uint8)
    assert [by_c(library[f"own{number}"], block, 1).item() for number in range(3)] == [5, 5, 2000]
