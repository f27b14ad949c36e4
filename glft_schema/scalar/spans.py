"""Spans of integer expressions: the least and the greatest value that an operation can give.

Spans decide whether an index is inside its array, whether a shift is defined, and how many bits a
printer of arrays needs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from glft_schema.scalar.tree import ANY, Span

# fmt: off
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "and": lambda left, right: left and right, "or": lambda left, right: left or right,
}
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
# fmt: on


def union(*spans: Span) -> Span:
    return min(low for low, _ in spans), max(high for _, high in spans)


def wrapped(low: int, high: int) -> Span:
    """Returns a span, or all int32 if a value does not fit."""
    return (low, high) if ANY[0] <= low and high <= ANY[1] else ANY


def of_operation(sign: str, left: Span, right: Span) -> Span:
    """Returns the span of ``left sign right``; the divisor of ``//`` and ``%`` is one positive
    number, a shift is 0 to 31."""
    if sign in "&|^":
        return _of_bits(sign, left, right)
    if sign == "%":
        return (left[0] % right[1], left[1] % right[1]) if left[0] // right[1] == left[1] // right[1] else (0, right[1] - 1)
    ends = [OPERATORS[sign](one, other) for one in left for other in right]
    return wrapped(min(ends), max(ends))


def _of_bits(sign: str, left: Span, right: Span) -> Span:
    if sign == "&" and max(left[0], right[0]) >= 0:  # the result is not negative
        return 0, min(high for low, high in (left, right) if low >= 0)
    bits = max(number.bit_length() for number in (*left, *right))
    return -(1 << bits) if min(left[0], right[0]) < 0 else 0, (1 << bits) - 1


def narrowed(span: Span, sign: str, other: Span) -> Span:
    """Returns the part of a span for which a comparison with a number of another span can hold."""
    low, high = span
    if sign in ("<", "<="):
        high = min(high, other[1] - (sign == "<"))
    elif sign in (">", ">="):
        low = max(low, other[0] + (sign == ">"))
    elif sign == "==":
        low, high = max(low, other[0]), min(high, other[1])
    return (low, high) if low <= high else span
