"""Values that keep to rules: which rules a value breaks, and which values near it do not.

A rule is data: the numbers, bytes and patterns in its expression are the candidates and boundaries of the field that it guards,
and `holds` decides. So a magic number or a version is found, not waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, singledispatch
from typing import Any

import construct
from construct.core import evaluate

from glft_schema.codec.context import Context
from glft_schema.codec.expressions import Constant, Expression, Length, Matches, Reference, read, subexpressions
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.metadata_rules import HasKey
from glft_schema.codec.rules import Check, Rule
from glft_schema.codec.structs import Derived
from glft_schema.codec.trace import Trace
from glft_schema.errors import FormatError
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.region import TensorFits

NOT_YET = object()  # what depends on fields that are not there yet
EXAMPLES = (32, 1, "a")  # values of many types; 32 keeps every rule on alignments
LONG = 1 << 20  # bytes or elements beyond which no boundary is tried


def evaluated(expression: Any, context: Context) -> Any:
    """Returns the value of an expression, or `NOT_YET`."""
    try:
        return evaluate(expression, context)
    except (KeyError, AttributeError):
        return NOT_YET


def is_wanted(check: Check, sets: Iterable[str]) -> bool:
    """Tells whether a rule is kept to: no reader can do without it, or one of the rule sets has it."""
    return check.is_required or bool(set(check.sets).intersection(sets))


def holds(check: Check, context: Context) -> bool:
    """Tells whether a rule holds in `context`; what depends on fields that are not there yet does."""
    params = context._params
    params.findings, params.trace = [], Trace()
    try:
        check.check(context, "")
    except FormatError:
        return False
    except (KeyError, AttributeError):
        return True
    return not params.findings


def with_value(context: Context, name: str, value: Any) -> Any:
    """Returns `context` with another value of a field, and with what is derived from it in the same Struct."""
    changed = Context(context)
    changed[name] = value
    derive(changed, context.get("_declared"))
    return changed


def derive(context: Context, declared: construct.Struct | None) -> None:
    """Puts into `context` what follows from the fields that are there, as far as it does."""
    for part in declared.subcons if declared else ():
        field = part.subcon if isinstance(part, construct.Renamed) else None
        if isinstance(field, (Derived, construct.Computed)):
            value = evaluated(field.of if isinstance(field, Derived) else field.func, context)
            if value is not NOT_YET:
                context[part.name] = value


@singledispatch
def candidates(check: Check, value: Any, context: Context) -> Iterator[Any]:
    """Yields values near `value`, on both sides of each boundary, for the field that `check` guards."""
    yield from ()


@candidates.register
def _(check: Rule, value: Any, context: Context) -> Iterator[Any]:
    expression = read(check.condition)
    if isinstance(check.must, HasKey) and isinstance(value, TypedMetadata):
        key = check.must.key
        yield value | {key: "a" if value.key_types and value.key_types.type_of(key, False) == "string" else 1}
    if expression is None:
        return
    found = list(subexpressions(expression))
    numbers = [number for part in found if isinstance(number := _constant(part, context), int)]
    sizes = sorted({size for number in numbers for size in (number - 1, number, number + 1) if 0 <= size <= LONG})
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (number + step for number in numbers for step in (0, -1, 1))
        yield from (value - value % number for number in numbers if number > 0)
    elif isinstance(value, bytes):
        constants = [part.value for part in found if isinstance(part, Constant) and isinstance(part.value, bytes)]
        yield from constants
        yield from (bytes([constant[0] ^ 0x80]) + constant[1:] for constant in constants if constant)
    if isinstance(value, (bytes, str, list)) and any(isinstance(part, Length) for part in found):
        yield from (resized(value, size) for size in sizes)
        yield from (repeated(value, size) for size in sizes if isinstance(value, list) and value)


def _constant(part: Expression, context: Context) -> Any:
    """Returns the number or bytes that a part of an expression stands for, where it is one already."""
    if isinstance(part, Constant):
        return part.value
    if isinstance(part, Reference) and (part.up or part.of_root):
        at = context.get("_root", {}) if part.of_root else context
        for name in ("_",) * part.up + part.names:
            at = at.get(name, {}) if isinstance(at, Mapping) else {}
        return at
    return None


def resized(value: Any, size: int) -> Any:
    """Returns bytes, a text or a list of another length: cut, or filled up with what does the least."""
    filler: Any = b"\0" if isinstance(value, bytes) else "a" if isinstance(value, str) else [1]
    return value[:size] + filler * (size - len(value))


def repeated(value: list[Any], size: int) -> list[Any]:
    """Returns a list of another length, of the same elements again and again."""
    return (value * -(-size // len(value)))[:size]


def pattern(check: Check) -> str | None:
    """Returns the regular expression that the guarded text has to match, where the rule is one."""
    expression = read(check.holds) if isinstance(check, Rule) else None
    return expression.pattern if isinstance(expression, Matches) else None


@cache
def least_row(type_: TensorType) -> int:
    """Returns the fewest numbers that a row can have, found once."""
    return type_.least_row


@candidates.register
def _(check: TensorFits, value: Any, context: Context) -> Iterator[list[int]]:
    """Dims, in either order, that the type of the row can hold: the least ones, and small multiples of them."""
    if (type_ := context.get("dtype")) is None:
        return
    least = least_row(type_)
    for dims in ([1, least], [2, least], [least], [1, 2 * least], [3, 1, least], [2, 2, least], [1, 1, 2, least], [0, least]):
        yield dims
        yield dims[::-1]
