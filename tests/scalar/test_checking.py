"""What the language refuses, each with its text, and what it infers."""

from __future__ import annotations

from typing import Any

import pytest

from glft_schema.scalar import language
from glft_schema.scalar.checking import check
from glft_schema.scalar.kinds import ANY
from glft_schema.scalar.language import ScalarError
from glft_schema.scalar.tree import ArrayType, Builtin, Store
from tests.scalar.sources import declared

ARRAYS = {"w": ArrayType("f32", 8, "out"), "d": ArrayType("f16", 1), "qs": ArrayType("u8", 8), "row": ArrayType("i8", None)}
HELPERS = """
TABLE = (1, 2, 4)
def one(x):
    return x + 1
def two(x, *, top):
    return x, min(x, top)
def maybe(x):
    if x > 0:
        return x
def uneven(x):
    if x > 0:
        return x
    return float32(x)
def again(x):
    return again(x)
def nothing(x):
    y = x
"""
LINE = HELPERS.count("\n") + 2  # of the first statement

# fmt: off
REFUSED = [
    # statements
    ("with qs: pass",                    "expected a statement of the language in 'with qs: pass'"),
    ("for i in qs: pass",                "expected a statement of the language in 'for i in qs: pass'"),
    ("qs[0] += 1",                       "expected an array to write, found the input qs in 'qs[0] += 1'"),
    ("w = 1",                            "expected w to stay an array, found int32 in 'w = 1'"),
    ("x = 1\nx = float32(1)",            "expected x to stay int32, found float32 in 'x = float32(1)'", 1),
    ("x = 0.5",                          "expected a number with a kind, such as float32(0.5) in 'x = 0.5'"),
    ("x = floats(qs[0])",                "expected an array with a new name and a constant length in 'x = floats(qs[0])'"),
    ("x, y = floats(2), floats(qs[0])", "expected an array with a new name and a constant length in 'y = floats(qs[0])'"),
    ("x.y = 1",                          "expected a variable or an element on the left in 'x.y = 1'"),
    ("w[0:2] = 1",                       "expected a variable or an element on the left in 'w[0:2] = 1'"),
    ("for i in range(8): i = 2",         "expected no assignment to the loop variable i in 'i = 2'"),
    ("i = 1\nfor i in range(8): pass",   "expected a new name for the loop variable, found i in 'for i in range(8): pass'", 1),
    ("two(1, top=2)",                    "expected 0 results, found 2 in 'two(1, top=2)'"),
    ("a, b, c = two(1, top=2)",          "expected 3 results, found 2 in 'two(1, top=2)'"),
    ("if qs[0]: pass",                   "expected bool, found int32 in 'qs[0]'"),
    # names
    ("x = unknown",                      "expected a variable, a constant or a table, found unknown in 'unknown'"),
    ("if qs[0] > 1: x = 1\ny = x",       "expected a variable that is assigned on every path, found x in 'x'", 1),
    ("for i in range(qs[0]): x = i\ny = x", "expected a variable that is assigned on every path, found x in 'x'", 1),
    ("for i in range(2): pass\ny = i",   "expected a variable, a constant or a table, found i in 'i'", 1),
    # kinds
    ("w[0] = d[0] * qs[0]",              "expected one kind, found float32 and int32 in 'd[0] * qs[0]'"),
    ("w[0] = qs[0]",                     "expected float32, found int32 in 'w[0] = qs[0]'"),
    ("x = qs[0] + 0.5",                  "expected int32, found float in 'qs[0] + 0.5'"),
    ("x = qs",                           "expected a new name for a slice of an array in 'x = qs'"),
    ("x = qs + 1",                       "expected a number, found the array qs in 'qs'"),
    ("x = d[0] >> 1",                    "expected int32, found float32 in 'd[0] >> 1'"),
    ("x = (qs[0] > 1) + (qs[1] > 1)",    "expected int32, found bool in '(qs[0] > 1) + (qs[1] > 1)'"),
    ("x = qs[0] / 2",                    "expected float32, found int32 in 'qs[0] / 2'"),
    ("x = -(qs[0] > 1)",                 "expected int32, found bool in '-(qs[0] > 1)'"),
    ("x = not qs[0]",                    "expected bool, found int32 in 'not qs[0]'"),
    ("x = max(d[0], 0.5)",               "expected a number with a kind, such as float32(0.5) in 'max(d[0], 0.5)'"),
    ("x = int32(d[0])",                  "expected int32 or bool, found float32: round it with nearest() in 'int32(d[0])'"),
    ("x = root(qs[0])",                  "expected float32, found int32 in 'root(qs[0])'"),
    ("x = min(qs[0])",                   "expected 2 arguments in 'min(qs[0])'"),
    ("x = root()",                       "expected 1 argument in 'root()'"),
    ("x = 1 << 31",                      "expected an integer of 32 bits in '1 << 31'"),
    ("x = 'text'",                       "expected an expression of the language in \"'text'\""),
    ("x = 1 < qs[0] < 2",                "expected an expression of the language in '1 < qs[0] < 2'"),
    # arrays
    ("x = qs[8]",                        "expected an index of qs from 0 to 7, found 8 in 'qs[8]'"),
    ("for i in range(9): x = qs[i]",     "expected an index of qs from 0 to 7, found 0 to 8 in 'qs[i]'"),
    ("x = qs[qs[0]]",                    "expected an index of qs from 0 to 7, found 0 to 255 in 'qs[qs[0]]'"),
    ("x = TABLE[qs[0] & 3]",             "expected an index of TABLE from 0 to 2, found 0 to 3 in 'TABLE[qs[0] & 3]'"),
    ("x = row[-1]",                      "expected an index of row from 0 to 2147483646, found -1 in 'row[-1]'"),
    ("x = w[0]",                         "expected an array to read, found the output w in 'w[0]'"),
    ("x = d[0][1]",                      "expected an array in 'd[0]'"),
    ("x = qs[0:qs[1]]",                  "expected a slice of constant length, such as x[a : a + 8] in 'qs[0:qs[1]]'"),
    ("x = row[1:]",                     "expected a slice of constant length, such as x[a : a + 8] in 'row[1:]'"),
    ("x = qs[4:12]",                     "expected a slice of qs from 0 to 8, found one from 4 in 'qs[4:12]'"),
    # operands that C does not define, or defines differently
    ("x = 1 << qs[0]",                   "expected a shift by 0 to 31, found 0 to 255 in '1 << qs[0]'"),
    ("x = qs[0] // qs[1]",               "expected a positive constant as the divisor in 'qs[0] // qs[1]'"),
    ("x = row[0] % 3",                   "expected a dividend that is not negative, found -128 to 127 in 'row[0] % 3'"),
    ("x = as_bits(d[0]) % 3",            "expected a dividend that is not negative, found any integer in 'as_bits(d[0]) % 3'"),
    # calls
    ("x = qs.sum()",                     "expected a call of a scalar function in 'qs.sum()'"),
    ("x = print(1)",                     "expected a call of a scalar function in 'print(1)'"),
    ("x = nothing(1)",                   "expected 1 result, found 0 in 'nothing(1)'"),
    ("x = one(1, 2)",                    "expected one(x) with constants by keyword in 'one(1, 2)'"),
    ("a, b = two(1, top=qs[0])",         "expected two(x, *, top) with constants by keyword in 'two(1, top=qs[0])'"),
    ("a, b = two(1)",                    "expected two(x, *, top) with constants by keyword in 'two(1)'"),
]
IN_HELPERS = [
    ("x = again(1)",                     "again, line 15: expected no recursion, found a call of again in 'again(x)'"),
    ("x = maybe(qs[0])",                 "maybe, line 7: expected a result on every path"),
    ("x = uneven(qs[0])",
     "uneven, line 13: expected results (int32) as in the first return in 'return float32(x)'"),
]
# fmt: on


def function(body: str, parameters: str = "w, d, qs, row") -> Any:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return declared(f"{HELPERS}def decode({parameters}):\n{lines}")


@pytest.mark.parametrize(
    ("body", "text"),
    [*((body, f"decode, line {LINE + sum(after)}: {text}") for body, text, *after in REFUSED), *IN_HELPERS],
)
def test_refusals_name_function_and_line(body: str, text: str) -> None:
    with pytest.raises(ScalarError) as error:
        check(function(body), ARRAYS)
    assert str(error.value) == text


def test_whole_functions_that_are_refused() -> None:
    without_source: dict[str, Any] = {}
    exec("def decode(w): pass", without_source)
    for refused, problem in (
        (function("pass", "w, m"), "decode: expected parameters among w, d, qs, row, found m"),
        (function("return 1"), "decode: expected a function without results"),
        (lambda w: None, "<lambda>: expected a def with its source in a file"),
        (without_source["decode"], "decode: expected a def with its source in a file"),
    ):
        with pytest.raises(ScalarError, match=f"^{problem}$"):
            check(refused, ARRAYS)


def test_indices_are_proved_if_the_length_is_known() -> None:
    rows = function("x = row[qs[0]]")
    assert check(rows, ARRAYS).variables == {"x": "int32"}
    with pytest.raises(ScalarError, match="expected an index of row from 0 to 63, found 0 to 255 in"):
        check(rows, {**ARRAYS, "row": ArrayType("i8", 64)})


# fmt: off
SPANS = [
    ("x = qs[0] & 15 | 16",                                 (0, 31)),
    ("x = qs[0] >> 4 << 2",                                 (0, 60)),
    ("x = row[0] ^ 8",                                      (-256, 255)),
    ("x = (qs[0] - 8) // 16",                               (-1, 15)),
    ("x = qs[0] % 5",                                       (0, 4)),
    ("x = min(max(row[0], 0), 7)",                          (0, 7)),
    ("x = abs(row[0])",                                     (0, 128)),
    ("x = 3 if qs[0] > 4 else -1",                          (-1, 3)),
    ("x = qs[0]\nif x > 7: x = 7",                          (0, 7)),
    ("x = qs[0]\nif x < 8 or x >= 16: return\ny = x\nx = y", (8, 15)),
    ("x = qs[0]\nif not (x == 3 and 1 < x): return",        (3, 3)),
    ("x = 0\nfor i in range(4): x += 1",                    ANY),
    ("x = 0\nwhile x < 4: x += 1",                          ANY),
    ("for i in range(4): x = i * 2",                        (0, 6)),
    ("x = qs[0] * 2147483647",                              ANY),
    ("x = int32(qs[0] > 3)",                                (0, 1)),
    ("x = nearest(d[0])",                                   (-(2**22), 2**22 - 1)),
    ("x = TABLE[qs[0] & 1]",                                (1, 4)),
    ("x = len(qs)",                                         (8, 8)),
    ("x = one(qs[0])",                                      (1, 256)),
]
# fmt: on


@pytest.mark.parametrize(("body", "span"), SPANS)
def test_spans(body: str, span: tuple[int, int]) -> None:
    store = check(function(f"{body}\nw[0] = float32(x)"), ARRAYS).body[-1]
    assert isinstance(store, Store)
    assert isinstance(store.value, Builtin)
    assert store.value.operands[0].span == span


def test_tables_are_computed_when_they_are_read() -> None:
    def fails() -> list[int]:
        raise AssertionError

    unused = declared("def decode(w):\n    w[0] = float32(1)\n", UNUSED=language.LookupTable(fails))
    assert check(unused, ARRAYS).parameters == {"w": ARRAYS["w"]}
