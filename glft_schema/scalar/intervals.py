"""Spans of integer expressions: the least and the greatest value that an operation can give.

Spans decide whether an index is inside its array and whether a shift is defined, and how many bits
a printer of arrays needs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from glft_schema.scalar.kinds import ANY, Span

# fmt: off
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "and": lambda left, right: left and right, "or": lambda left, right: left or right,
}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=", "and", "or")
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
# fmt: on


def union(one: Span, other: Span) -> Span:
    return min(one[0], other[0]), max(one[1], other[1])


def wrap_span(low: int, high: int) -> Span:
    """Returns a span, or the span of all int32 if a value does not fit."""
    return (low, high) if ANY[0] <= low and high <= ANY[1] else ANY


def of_operation(sign: str, left: Span, right: Span) -> Span:
    """Returns the span of ``left sign right``, for operands that `checking` accepts."""
    if sign == "&" and max(left[0], right[0]) >= 0:  # the result is not negative
        return 0, min(high for low, high in (left, right) if low >= 0)
    if sign in "&|^":
        bits = max(number.bit_length() for number in (*left, *right))
        return -(1 << bits) if min(left[0], right[0]) < 0 else 0, (1 << bits) - 1
    if sign == "%":
        return (left[0] % right[1], left[1] % right[1]) if left[0] // right[1] == left[1] // right[1] else (0, right[1] - 1)
    ends = [OPERATORS[sign](one, other) for one in left for other in right]
    return wrap_span(min(ends), max(ends))


def of_function(name: str, given: Sequence[Span]) -> Span:
    """Returns the span of a function of the language whose result is an int32."""
    if name in ("min", "max"):
        choose = min if name == "min" else max
        return choose(low for low, _ in given), choose(high for _, high in given)
    if name == "abs":
        low, high = given[0]
        return wrap_span(max(low, -high, 0), max(abs(low), abs(high)))
    return (-(2**22), 2**22 - 1) if name == "nearest" else ANY


def narrow(span: Span, relation: str, other: Span) -> Span:
    """Returns the part of a span for which ``number relation other`` can hold."""
    low, high = span
    if relation in ("<", "<=", "=="):
        high = min(high, other[1] - (relation == "<"))
    if relation in (">", ">=", "=="):
        low = max(low, other[0] + (relation == ">"))
    return (low, high) if low <= high else span
