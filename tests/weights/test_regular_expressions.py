"""Patterns in an adapter's settings, beside Python's `re`."""

from __future__ import annotations

import re
from random import Random

import pytest

from glft_schema.weights.regular_expressions import MOST, Patterns, compile_pattern, matches
from glft_schema.errors import FormatError

ONE = ["a", "b", "1", ".", r"\.", r"\d", r"\W", "[ab]", "[^a]", "[]a]", "[0-9.]", "^", "$"]
REPEATS = ["*", "+", "?", "*?", "{2}", "{0,1}", "{1,}?", ""]
LONG = "a" * 10_000


def some_pattern(random: Random, depth: int) -> str:
    """Returns a random pattern; one with repetitions in repetitions is common."""
    kind = random.random()
    if depth == 0 or kind < 0.4:
        return random.choice(ONE)
    first, second = some_pattern(random, depth - 1), some_pattern(random, depth - 1)
    if kind < 0.6:
        return first + second
    group = random.choice(["(", "(?:"])
    return f"{group}{first}|{second})" if kind < 0.75 else f"{group}{first}){random.choice(REPEATS)}"


def test_equals_re() -> None:
    random, matched = Random(0), 0
    for _ in range(2000):
        pattern = some_pattern(random, 4)
        code, expected = compile_pattern(pattern), re.compile(pattern)
        for _ in range(4):
            text = "".join(random.choices("ab1.", k=random.randint(0, 5)))
            assert matches(code, text) == bool(expected.fullmatch(text)), (pattern, text)
            matched += matches(code, text)
    assert matched > 1000


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(.*)*(.*)*b", "a*a*a*a*b", "((a{0,9}){0,9}){0,9}b"])
def test_patterns_that_take_re_exponential_time(pattern: str) -> None:
    assert Patterns.of({"p": {pattern: 1}}, "p", "file").find(LONG, 2) == 2
    assert Patterns.of({"p": {pattern: 1}}, "p", "file").find("x." + LONG[:9] + "b", 2) == 1


def test_the_first_match_counts() -> None:
    patterns = Patterns.of({"p": {"b": 1, "a.b": 2, "a(.)c": 3, "a.c": 4}}, "p", "file")
    assert [patterns.find(name, 0) for name in ("a.b", "axb", "x.axc", "xaxc", "ab")] == [1, 2, 3, 0, 0]
    assert Patterns.of({}, "p", "file").find("a", 5) == Patterns.of({"p": None}, "p", "file").find("a", 5) == 5


@pytest.mark.parametrize(
    "pattern",
    ["a**", "*a", "(", "(a", "a)+", "(?=a)", "(?i)a", "(?P<x>a)", r"(a)\b", r"(a)\1", "a{2,1}", "a{9999}b{9999}", "[z-a]",
     "a++", "x{", "((a{1000}){1000}){1000}", "(" * 50_000],
)  # fmt: skip
def test_other_patterns(pattern: str) -> None:
    with pytest.raises(
        FormatError, match=r"p: expected a pattern of letters, classes, groups, \|, repetitions, \^ and \$, found"
    ):
        Patterns.of({"p": {pattern: 1}}, "p", "file")


@pytest.mark.parametrize("given", [["q"], "q", 1, True])
def test_no_object(given: object) -> None:
    with pytest.raises(FormatError, match=r"^p: expected an object with values by pattern, found .* in file$"):
        Patterns.of({"p": given}, "p", "file")


@pytest.mark.parametrize("pattern", ["[[:a:]q", "[[:a:]q+"])
def test_sets_that_re_warns_about(pattern: str) -> None:
    assert Patterns.of({"p": {pattern: 1}}, "p", "file").find("aq", 0) == 1


def test_the_length_of_all_is_limited() -> None:
    with pytest.raises(FormatError, match=r"p: expected patterns of at most 10,000 instructions, found more in file"):
        Patterns.of({"p": {f"a{i}": i for i in range(MOST + 1)}}, "p", "file")
