"""Random functions of the language: plain Python, C, numpy and torch give the same bits."""

from __future__ import annotations

import ctypes
import random
import re
from pathlib import Path
from typing import Any

import numpy as np

from glft_schema.scalar.checking import check
from glft_schema.scalar.language import ScalarError, run
from glft_schema.tensor_types.library.printing import TypesInC
from glft_schema.tensor_types.scalar_layout import ScalarLayout
from tests.scalar.sources import by_numpy, compiled, declared, pointer, same_bits
from tests.scalar.test_as_torch import LAYOUT, by_torch, columns
from tests.tools.depth import FULL

PROGRAMS = 300 if FULL else 20
QUIET = "-w"  # random comparisons may be constant
HELPER = """
def helper(a, b):
    if a > b:
        r = a - b
    else:
        r = b ^ 5
    return r
"""
# fmt: off
# N is an integer, X a float, T a test; each becomes a rule of its kind, or a leaf.
GRAMMAR = {
    "N": ["N + N", "(N - N)", "N * N", "(N & N)", "N | N", "N ^ (N)", "(N) << (qs[i] & 7)", "(N) >> 3", "(N) // 8", "(N) % 16",
          "-(N)", "min(N, N)", "max(N, N)", "abs(N)", "(N if T else N)", "int32(T)", "helper(N, N)"],
    "X": ["X + X", "(X - X)", "X * (X)", "X / (X)", "X * 0.1", "(X - 3.7)", "float32(N)", "-(X)", "min(X, X)", "max(X, X)",
          "abs(X)", "(X if T else X)"],
    "T": ["N < N", "(N >= N)", "(N == N)", "N != (N)", "X <= X", "(T and T)", "(T or T)", "(not T)"],
}
LEAVES = {
    "N": ["i", "qs[i]", "c[i]", "n[i // 8]", "h[i % 4]", "7", "-3", "250", "k", "TABLE[qs[i] & 3]"],
    "X": ["d[0]", "d[i % 2]", "y", "float32(0.1)", "float32(3)"],
    "T": ["qs[i] > 99", "i < 12"],
}
STATEMENTS = ["k = N", "y = X", "k, y = N, X", "if T: k = N", "if T: y = X\n        else: k, y = N, X"]
# fmt: on


def grown(random_: random.Random, text: str, depth: int) -> str:
    """Replaces the symbols of a text by rules, up to a depth."""

    def replaced(symbol: re.Match[str]) -> str:
        if depth == 0 or random_.random() < 0.2:
            return random_.choice(LEAVES[symbol[0]])
        return grown(random_, random_.choice(GRAMMAR[symbol[0]]), depth - 1)

    return re.sub(r"\b[NXT]\b", replaced, text)


def program(random_: random.Random) -> Any:
    statements = [grown(random_, random_.choice(STATEMENTS), 3) for _ in range(random_.randint(0, 3))]
    lines = "".join(f"        {line}\n" for line in ["k, y = qs[i], d[1]", *statements, f"w[i] = {grown(random_, 'X', 4)}"])
    return declared(f"{HELPER}def decode(w, d, qs, c, n, h):\n    for i in range(16):\n{lines}", TABLE=(-3, 5, 700, 2))


def test_all_forms_are_bit_equal(tmp_path: Path) -> None:
    random_, unit, functions = random.Random(0), TypesInC(), []
    blocks = np.random.default_rng(0).integers(0, 256, (12, 52), np.uint8)
    blocks[:, :4] = np.random.default_rng(1).normal(size=(12, 2)).astype(np.float16).view(np.uint8)
    while len(functions) < PROGRAMS:
        function = program(random_)
        try:
            functions.append((function, check(function, LAYOUT.arrays())))
        except ScalarError as error:
            assert re.search("expected a (shift|number with a kind)|32 bits", str(error))
            continue
        unit.decoder(ScalarLayout(f"random_{len(functions)}", LAYOUT.fields, 16), function)
    library = compiled(str(unit), tmp_path, "-O1", QUIET)
    fields = columns(LAYOUT, blocks)
    for number, (function, tree) in enumerate(functions, 1):
        expected, by_c = np.zeros((2, 12, 16), np.float32)
        for block in range(12):
            run(function, w=expected[block], **{name: field[block] for name, field in fields.items()})
        library[f"random_{number}"](pointer(blocks), pointer(by_c), ctypes.c_int64(12))
        assert same_bits(by_c, expected), number
        assert same_bits(by_numpy(tree, fields), expected), number
        assert same_bits(by_torch(tree, fields), expected), number
