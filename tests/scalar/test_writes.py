"""Which functions write all their outputs: proofs, refusals, and random functions run twice."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from glft_schema.formats.registry import FORMATS
from glft_schema.scalar.checking import check
from glft_schema.scalar.language import ScalarError, run
from glft_schema.scalar.tree import ArrayType
from glft_schema.scalar.writes import check_writes
from tests.scalar.sources import declared
from tests.tools.depth import FULL, some_by_default

LENGTH = 8
ARRAYS = {"w": ArrayType("f32", LENGTH, "out"), "m": ArrayType("u8", 2, "out"), "x": ArrayType("u8", LENGTH)}
HELPERS = """
def fill(part, start, *, count):
    for j in range(count):
        part[start + j] = float32(j)
def fill_one(part, x):
    part[0] = x
    return x * 2.0
def fill_some(part, n):
    for j in range(n):
        part[j] = float32(j)
def fill_or_return(part, n):
    if n > 3:
        return
    fill(part, 0, count=4)
"""
ALL = "\nfor k in range(8): w[k] = float32(k)"

# fmt: off
PROVED = {
    "each by itself":              "\n".join(f"w[{i}] = float32({i})" for i in range(8)),
    "a loop":                      "for i in range(8): w[i] = float32(1)",
    "nested loops":                "for i in range(2):\n    for j in range(4): w[4 * i + j] = float32(1)",
    "bits of the variable":        "for i in range(8): w[i ^ 5] = float32(1)",
    "a variable of the variable":  "for i in range(4):\n    a = 2 * i\n    w[a], w[a + 1] = float32(1), float32(2)",
    "a view":                      "for g in range(2):\n    v = w[4 * g : 4 * g + 4]\n    for i in range(4): v[i] = float32(1)",
    "both branches":               "if x[0] > 1: fill(w, 0, count=8)\nelse:\n    for i in range(8): w[i] = float32(2)",
    "a branch that is known":      "for i in range(8):\n    if i < 4: w[i] = float32(1)\n    else: w[i] = float32(2)",
    "a helper with a view":        "for g in range(2): fill(w[4 * g : 4 * g + 4], 0, count=4)",
    "a helper with a start":       "for g in range(4): fill(w, 2 * g, count=2)",
    "a helper with a result":      "for i in range(8): a = fill_one(w[i : i + 1], float32(1))",
    "a helper in a store":         "w[7] = fill_one(w[0:1], float32(1))\nfor i in range(6): w[i + 1] = float32(1)",
    "before a loop that breaks":   "fill(w, 0, count=8)\nfor i in range(8):\n    if x[i] > 1: break",
    "a search in each":            "for i in range(8):\n    for j in range(8):\n        if x[i] > j: break\n"
                                   "    w[i] = float32(i)",
    "two returns":                 "if x[0] > 1:\n    fill(w, 0, count=8)\n    return\nfill(w, 0, count=8)",
    "while, then all":             "k = 0\nwhile k < x[0]: k += 1\nfor i in range(8): w[i] = float32(k)",
}
REFUSED = {
    "nothing":                     ("pass", "w[0]"),
    "all but the last":            ("for i in range(7): w[i] = float32(1)", "w[7]"),
    "the odd ones":                ("for i in range(4): w[2 * i] = float32(1)", "w[1]"),
    "one branch":                  ("fill(w, 0, count=7)\nif x[0] > 1: w[7] = float32(1)", "w[7]"),
    "different branches":          ("if x[0] > 1: fill(w, 0, count=4)\nelse: fill(w, 2, count=6)", "w[0]"),
    "an early return":             ("if x[0] > 1: return\nfill(w, 0, count=8)", "w[0]"),
    "a return in a loop":          ("for i in range(8):\n    if x[i] > 1: return\n    w[i] = float32(1)", "w[0]"),
    "a return in an open loop":    ("w[0] = float32(1)\nfor i in range(x[0]):\n    return\nfill(w, 0, count=8)", "w[1]"),
    "a break":                     ("for i in range(8):\n    w[i] = float32(1)\n    if x[i] > 1: break", "w[1]"),
    "an open loop":                ("for i in range(x[0] & 7): w[i] = float32(1)", "w[0]"),
    "while":                       ("while x[0] > 1: fill(w, 0, count=8)", "w[0]"),
    "data as the index":           ("for i in range(8): w[x[i] & 7] = float32(1)", "w[0]"),
    "the same number again":       ("for i in range(8): w[i & 3] = float32(1)", "w[4]"),
    "a helper with an open loop":  ("fill_some(w, x[0] & 7)", "w[0]"),
    "a helper that returns":       ("fill_or_return(w[0:4], x[0])\nfill(w, 4, count=4)", "w[0]"),
    "a local array of that name":  ("v = floats(8)\nfor i in range(8): v[i] = float32(1)", "w[0]"),
    "a name of another loop": ("for i in range(8): w[0] = float32(i)\nfor i in range(x[0]): w[i & 7] = float32(1)", "w[1]"),
    "a variable after a loop":     ("k = 0\nfor i in range(x[0]): k = 1\nfill(w, 1, count=7)\nw[k & 7] = float32(1)", "w[0]"),
}
# fmt: on


def function(body: str) -> Any:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return declared(f"{HELPERS}def decode(w, m, x):\n{lines}")


@pytest.mark.parametrize("name", PROVED)
def test_functions_that_write_everything(name: str) -> None:
    check_writes(check(function(f"m[0], m[1] = 1, 2\n{PROVED[name]}"), ARRAYS))


@pytest.mark.parametrize("name", REFUSED)
def test_functions_that_may_leave_a_number_unwritten(name: str) -> None:
    body, number = REFUSED[name]
    with pytest.raises(ScalarError) as error:
        check_writes(check(function(f"m[0], m[1] = 1, 2\n{body}"), ARRAYS))
    problem = "expected every number of w to be written on every path"
    assert str(error.value) == f"decode: {problem}, found no proof for {number} of 8"


def test_every_output_is_checked() -> None:
    with pytest.raises(ScalarError, match=r"expected every number of m .* found no proof for m\[1\] of 2"):
        check_writes(check(function(f"{ALL}\nm[0] = 1"), ARRAYS))


PROGRAMS = 3000 if FULL else 100


def statements(random_: random.Random, depth: int, loops: int) -> list[str]:
    """Returns random statements inside `loops` loops, whose variables are i0, i1, ..."""
    variables = [f"i{number}" for number in range(loops)]
    index = random_.choice(
        ["0", "5", *[form.format(name) for name in variables for form in ("{}", "7 - {}", "{} ^ 3", "{} // 2")]]
    )
    count, data = random_.randint(1, 8), f"x[{index}]"
    leaves = [
        f"w[{index}] = float32({data})",
        f"w[{data} & 7] = float32(1)",
        "fill(w, 0, count=8)",
        f"fill_some(w, {data} & 7)",
    ]
    leaves += [f"a = {index}", f"if {data} > 250: return", *[f"if {data} > 200: break"] * (loops > 0)]
    heads = [f"for i{loops} in range({count}):", f"for i{loops} in range({data} & 7):", f"if {data} > 128:"]
    heads += [f"if {name} < {count}:" for name in variables]
    lines: list[str] = []
    for _ in range(random_.randint(1, 3)):
        if depth == 0 or random_.random() < 0.3:
            lines.append(random_.choice(leaves))
            continue
        head = random_.choice(heads)
        lines += [head, *(f"    {line}" for line in statements(random_, depth - 1, loops + head.startswith("for")))]
        if head.startswith("if") and random_.random() < 0.5:
            lines += ["else:", *(f"    {line}" for line in statements(random_, depth - 1, loops))]
    return lines


def test_what_is_proved_is_written() -> None:
    """Runs random functions in plain Python, on two fills of the memory."""
    random_, numbers, proved = random.Random(0), np.random.default_rng(0), 0
    for _ in range(PROGRAMS):
        random_function = function(
            "\n".join([*statements(random_, 3, 0), "m[0], m[1] = 1, 2"]).replace("return", "m[0], m[1] = 3, 4; return")
        )
        try:
            check_writes(check(random_function, ARRAYS))
        except ScalarError as error:
            assert "found no proof for w[" in str(error), error
            continue
        proved += 1
        for x in numbers.integers(0, 256, (8, LENGTH)).astype(np.uint8):
            for fill in (1000.5, -1000.5):
                w = np.full(LENGTH, fill, np.float32)
                run(random_function, w=w, m=np.zeros(2, np.uint8), x=x)
                assert fill not in w
    assert PROGRAMS // 20 < proved < PROGRAMS // 2


SCHEMES = {type_.scheme: type_ for format in FORMATS for type_ in format.types if type_.functions is not None}


@pytest.mark.parametrize("scheme", some_by_default([*SCHEMES], 4))
def test_the_functions_of_all_types_write_everything(scheme: str) -> None:
    type_ = SCHEMES[scheme]
    layout, decoder, encoders = type_.functions
    columns = None if layout.weights else 2 * type_.unit([1, 1 << 20])
    for source in encoders:
        check_writes(check(source, layout.encoder_arrays(columns)))
    check_writes(check(decoder, layout.arrays(columns=columns)))
