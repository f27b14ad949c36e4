"""Operations of torch, and numpy side by side, decode to the bits of plain Python."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from glft_schema.scalar.as_torch import decoder, print_function
from glft_schema.scalar.checking import check
from glft_schema.scalar.kinds import KINDS
from glft_schema.scalar.language import LookupTable, ScalarError, run
from glft_schema.scalar.tree import Function
from glft_schema.tensor_types.scalar_layout import ScalarField, ScalarLayout
from tests.scalar.sources import ARITHMETIC, by_numpy, declared, same_bits

LAYOUT = ScalarLayout(
    "own",
    (
        ScalarField("d", "f16", 2),
        ScalarField("qs", "u8", 16),
        ScalarField("c", "i8", 16),
        ScalarField("n", "u32", 2),
        ScalarField("h", "u16", 4),
    ),
    16,
)
HELPERS = """
def part(x, g, *, scale):
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
    **ARITHMETIC,
    "integers": """
        for i in range(16):
            k = (qs[i] - 200) * 16777216 + i
            w[i] = float32(k // 8 % 32 ^ qs[i] % 7 | i // 3 - 1 & 5) - float32(-k) - float32(abs(c[i]))""",
    "words": """
        for i in range(16):
            w[i] = float32(n[i // 8] >> 2 * (i % 8) & 3) + float32(n[1] >> 16) * float32(h[i % 4] >> 8)""",
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
            x = float32(part(qs[1:14], g, scale=3))
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
    "two writes": """
        for i in range(8):
            w[2 * i] = float32(qs[i])
            w[2 * i + 1] = d[0]""",
    "writes to views": """
        for g in range(2):
            y = w[8 * g : 8 * g + 8]
            put(y[4:8], 0, d[g])
            put(w[0:12], 8 * g, d[g] * 2)""",
}
# fmt: on
NO_SPANS = ("two writes", "writes to views")  # statements that write no neighbours, or some weights twice: not in torch
TABLES = {
    "HALVES": LookupTable(lambda: [0.5, -1.5, 2.5, 0.1, 7, 8, 9]),
    "CODES": (-1, 3, 7, 2, 5, 9, 11),
    "BIG": (-1, 300, 70000, 2),
}  # fmt: skip


def source(body: str) -> Any:
    lines = "\n".join(line[4:] for line in body.splitlines())
    return declared(f"{HELPERS}def decode(w, d, qs, c, n, h):\n    pass{lines}\n", **TABLES)


def columns(layout: ScalarLayout, blocks: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the fields of blocks."""
    spans = zip(layout.fields, pairwise(layout.offsets), strict=True)
    return {
        field.name: np.ascontiguousarray(blocks[:, start:end]).view(KINDS[field.number].numpy) for field, (start, end) in spans
    }


def by_torch(function: Function, fields: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Returns the weights [blocks, weights] of fields; torch gets unsigned words as signed ones."""
    words = {name: field for name, field in fields.items() if field.itemsize > 1}
    signed = fields | {name: field.view(field.dtype.str.replace("u", "i")) for name, field in words.items()}
    given = {name: torch.from_numpy(signed[name]) for name in function.parameters if name != "w"}
    weights = decoder(function)[0](w=torch.empty(len(next(iter(fields.values())))), **given)
    return weights.flatten(1).numpy()


@pytest.mark.parametrize("name", BODIES)
def test_all_forms_equal_plain_python(name: str) -> None:
    blocks = np.random.default_rng(0).integers(0, 256, (30, 52), np.uint8)
    blocks[:, :4] = np.random.default_rng(1).normal(size=(30, 2)).astype(np.float16).view(np.uint8)
    function, expected, fields = source(BODIES[name]), np.zeros((30, 16), np.float32), columns(LAYOUT, blocks)
    for block in range(30):
        run(function, w=expected[block], **{key: array[block] for key, array in fields.items()})
    checked = check(function, LAYOUT.arrays())
    assert same_bits(by_numpy(checked, fields), expected)
    if not name.startswith(NO_SPANS):
        assert same_bits(by_torch(checked, fields), expected)


# fmt: off
REFUSED = [
    ("for i in range(4):\n    if i > 2: break",       "expected no while, break, early return or local array, found Break"),
    ("i = 0\nwhile i < qs[0]: i += 1",                "expected no while, break, early return or local array, found While"),
    ("for i in range(4):\n    if i > 2: w[i] = d[0]", "expected weights to be written once each, without conditions"),
    ("w[qs[0] & 15] = d[0]",                          "expected weights to be written once each, without conditions"),
    ("x = floats(4)",                                 "expected no while, break, early return or local array, found Declare"),
    ("for i in range(qs[0]): x = i",                  "expected loops with constant bounds"),
    ("for i in range(8): w[i * i % 8] = d[0]",        "expected each statement to write contiguous weights"),
    ("for i in range(8): w[2 * i] = d[0]",            "expected each statement to write contiguous weights"),
    ("x = c[qs[0] & 15]",                             "expected an index of c that does not depend on data"),
    ("x = CODES[2:4][qs[0] & 1]",                     "expected no slices of CODES"),
    ("a = qs[1] & 7\nx = c[a:a + 2]",                 "expected views that do not depend on data"),
]
# fmt: on


@pytest.mark.parametrize(("body", "text"), REFUSED)
def test_refusals(body: str, text: str) -> None:
    function = source("\n" + "\n".join(f"        {line}" for line in body.splitlines()))
    with pytest.raises(ScalarError, match=f"^decode: as arrays, {text}$"):
        print_function(check(function, LAYOUT.arrays()))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_a_compiler_gives_the_same_bits() -> None:
    """Views, a gather and neighbours in a table, in one graph."""
    body = """
        for g in range(4):
            x = d[g // 2] * float32(c[g] * 3 - 1) / 7 + d[1]
            at = qs[15 - g] & 3
            for i in range(4):
                w[4 * g + i] = x * float32(CODES[at + i] - (c[4 * g + i] >> i))"""
    function = check(source(body), LAYOUT.arrays())
    fields = columns(LAYOUT, np.random.default_rng(4).integers(0, 256, (64, 52), np.uint8))
    given = {name: torch.from_numpy(fields[name]) for name in ("d", "qs", "c")}
    run_, axes = decoder(function)
    assert axes == (2, 2, 4)
    compiled = torch.compile(run_, fullgraph=True)
    given |= dict.fromkeys("nh", torch.empty(0))
    assert same_bits(compiled(w=torch.empty(64), **given).flatten(1).numpy(), by_numpy(function, fields))


def test_lengths_must_be_known() -> None:
    function = declared("def decode(w, row):\n    for i in range(len(w)):\n        w[i] = float32(row[i])\n")
    rows = ScalarLayout("rows", (ScalarField("row", "u8", None),), None)
    with pytest.raises(ScalarError, match=r"^decode: as arrays, expected known lengths, found ArrayLength$"):
        print_function(check(function, rows.arrays()))
    assert "range" not in print_function(check(function, rows.arrays(columns=6)))[0]


def test_the_text() -> None:
    """Equal texts are computed once."""
    body = """
        for g in range(2):
            for i in range(8):
                w[8 * g + i] = d[0] * float32((qs[i] >> 4 * g & 15) - 8) + d[0]"""
    text, tables, axes = print_function(check(source(body), LAYOUT.arrays()))
    assert (tables, axes) == ({}, (2, 8))
    assert (
        text
        == """def decode(on, w, d, qs, c, n, h):
    t0 = on.view(d, 0, (0, 0), (1, 1))
    t1 = on.cast(t0, 'float32')
    t2 = on.view(qs, 0, (0, 1), (1, 8))
    t3 = on.cast(t2, 'int32')
    t4 = on.linear(w, 0, (4,), (2,))
    t5 = t3 >> t4[..., None]
    t6 = t5 & 15
    t7 = t6 - 8
    t8 = on.cast(t7, 'float32')
    t9 = t1 * t8
    t10 = t9 + t1
    return on.join(on.weights(w, t10, (2, 8), (0, 1)))
"""
    )
