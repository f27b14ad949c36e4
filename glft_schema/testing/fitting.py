"""Values that satisfy rules: checks of a value, and candidates near it.

The numbers, bytes and patterns in the expression of a rule are candidates and boundaries for the
guarded field. So a magic number or a version is found at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, singledispatch
from operator import attrgetter
from typing import Any

import construct
import numpy as np

from glft_schema.codec.context import Context
from glft_schema.codec.expressions import Constant, Expression, Length, Matches, Reference, read, references_in, subexpressions
from glft_schema.codec.json_table import Entry
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.metadata_rules import HasKey
from glft_schema.codec.records import NO_COUNTS
from glft_schema.codec.rules import Check, Rule
from glft_schema.codec.trace import Trace
from glft_schema.describe.nodes import BytesNode, DerivedNode, Field, ListNode, Schema, within
from glft_schema.describe.schema import node_of, struct_of
from glft_schema.errors import FormatError
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.region import TensorFits

least_row: Callable[[TensorType], int] = cache(attrgetter("least_row"))  # a computed property
LONG = 1 << 20  # bytes or elements beyond which no boundary is tried


def value_so_far(context: Context, expression: Expression) -> Any:
    """Returns the value of an expression, or None for a field that has not been drawn."""
    with suppress(KeyError, AttributeError, ArithmeticError):
        return expression(context)
    return None


def inner_context(outer: Context, declared: construct.Struct | None = None, row: Mapping[str, Any] = NO_COUNTS) -> Any:
    """Returns the context of a Struct, stored as `_declared`, or of a list, within another.

    Args:
        outer: the other context.
        declared: the Struct.
        row: the fields of the Struct; the counts of a `Record` are added.
    """
    context = Context(_=outer, _params=outer._params, _parsing=False, _building=True, _sizing=False)
    context.update({"_root": outer.get("_root", context)} | ({"_declared": declared} if declared else {}))
    context.update({**row, **getattr(row, "counts", NO_COUNTS)})
    return context


def is_wanted(check: Check, sets: Iterable[str]) -> bool:
    """Tells whether every reader enforces a rule, or one of the rule sets has it."""
    return check.is_required or bool(set(check.sets).intersection(sets))


def holds(check: Check, context: Context) -> bool:
    """Tells whether a rule holds in `context`, or needs a field that has not been drawn."""
    params = context._params
    params.findings, params.trace = [], Trace()
    try:
        check.check(context, "")
    except (FormatError, TypeError):  # also of a value of another kind
        return False
    except (KeyError, AttributeError):
        return True
    return not params.findings


def with_value(context: Context, name: str, value: Any) -> Any:
    """Returns `context` with another value of a field, its length, and what follows from it."""
    changed, declared = Context(context), context.get("_declared")
    changed[name] = value
    if declared:
        length = length_of(struct_of(declared).field(name).node)
        if isinstance(length, Reference) and length.names[0] in changed and length == Reference(length.names[:1]):
            changed[length.names[0]] = len(value)
    derive(changed, declared)
    return changed


def derive(context: Context, declared: construct.Struct | None) -> None:
    """Adds to `context` the fields of a Struct that follow from the fields in it."""
    for field in struct_of(declared).fields if declared else ():
        if field.name and isinstance(field.node, DerivedNode) and field.node.compute:
            with suppress(KeyError, AttributeError):
                context[field.name] = field.node.compute(context)


@singledispatch
def candidates(check: Check, value: Any, context: Context) -> Iterator[Any]:
    """Yields values of the guarded field near `value`, on both sides of each boundary."""
    yield from ()


@candidates.register
def _(check: Rule, value: Any, context: Context) -> Iterator[Any]:
    expression = read(check.condition)
    if isinstance(check.must, HasKey) and isinstance(value, TypedMetadata):
        key = check.must.key
        yield value | {key: "a" if value.key_types and value.key_types.type_of(key, False) == "string" else 1}
    lists = (part for part in subexpressions(check.condition) if isinstance(part, (Constant, Reference)))
    yield from (bound for part in lists if isinstance(bound := _bound(part, context, check.field), list))
    if expression is None:
        return
    parts = list(subexpressions(expression))
    bounds = [_bound(part, context, check.field) for part in parts]
    numbers = [bound for bound in bounds if isinstance(bound, int)]
    sizes = sorted({size for number in numbers for size in (number - 1, number, number + 1) if 0 <= size <= LONG})
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, np.floating):
        with np.errstate(over="ignore"):
            floats = [type(value)(bound) for bound in bounds if isinstance(bound, (int, np.floating))]
        yield from (near for bound in floats for near in (bound, np.nextafter(bound, -np.inf), np.nextafter(bound, np.inf)))
    elif isinstance(value, int):
        yield from (number + step for number in numbers for step in (0, -1, 1))
        yield from (value - value % number for number in numbers if number > 0)
    elif isinstance(value, bytes):
        constants = [part.value for part in parts if isinstance(part, Constant) and isinstance(part.value, bytes)]
        yield from constants
        yield from (bytes([constant[0] ^ 0x80]) + constant[1:] for constant in constants if constant)
    if isinstance(value, (bytes, str, list)) and any(isinstance(part, Length) for part in parts):
        yield from (resize(value, size) for size in sizes)
        yield from (repeat(value, size) for size in sizes if isinstance(value, list) and value)


def _bound(part: Expression, context: Context, field: str) -> Any:
    """Returns the value of a constant, or of an expression on other fields than the guarded one;
    otherwise None."""
    if isinstance(part, Constant):
        return part.value
    is_other = all(reference.up or reference.of_root or reference.names[0] != field for reference in references_in(part))
    return value_so_far(context, part) if is_other else None


def resize(value: Any, size: int) -> Any:
    """Returns bytes, a text or a list truncated or filled to a length."""
    filler: Any = b"\0" if isinstance(value, bytes) else "a" if isinstance(value, str) else [1]
    return value[:size] + filler * (size - len(value))


def repeat(value: list[Any], size: int) -> list[Any]:
    """Returns a list of `size` elements that repeats those of `value`."""
    return (value * -(-size // len(value)))[:size]


def pattern_of(check: Check) -> str | None:
    """Returns the regular expression of a rule, or None."""
    expression = check.holds if isinstance(check, Rule) else None
    return expression.pattern if isinstance(expression, Matches) else None


@candidates.register
def _(check: TensorFits, value: Any, context: Context) -> Iterator[list[int]]:
    """Yields dims that the row's type can hold, in either order: the least ones and multiples."""
    if (type_ := context.get("dtype")) is None:
        return
    least = least_row(type_)
    for dims in ([1, least], [2, least], [least], [1, 2 * least], [3, 1, least], [2, 2, least], [1, 1, 2, least], [0, least]):
        yield dims
        yield dims[::-1]


# Lengths, and the numbers that they depend on


@cache
def counters(declared: construct.Struct) -> frozenset[str]:
    """Returns the names of the fields on which lengths in a Struct depend, at any depth."""
    schema = Schema("")
    node_of(declared, schema, "struct")
    nodes = (node for struct in schema.structs.values() for part in struct.fields for node in within(part.node))
    lengths = filter(None, map(length_of, nodes))
    return frozenset(reference.names[-1] for length in lengths for reference in references_in(length))


def length_of(node: Any) -> Expression | None:
    """Returns the number of elements of a list or bytes, if another field has it."""
    return node.count if isinstance(node, ListNode) else node.size if isinstance(node, BytesNode) else None


def guards(field: Field, context: Context) -> list[Check]:
    """Returns the rules on a field that must hold."""
    return [check for check in field.rules if is_wanted(check, context._params._drawing.rules)]


class Unkept(Entry):
    """A stream for fields in bytes and in JSON. Written bytes are not kept."""

    def write(self, stored: bytes) -> int:
        return len(stored)


def fits(field: Field, value: Any, context: Context) -> bool:
    """Tells whether a field can be built from a value, if the fields that it needs are known."""
    length, is_plain = length_of(field.node), not any(wrapper.decode for wrapper in field.node.wrappers)
    if length and is_plain and hasattr(value, "__len__") and value_so_far(context, length) not in (None, len(value)):
        return False
    at = Context(context)
    at._params = Context(context._params)  # building changes it: it sets the byte order
    at._params.pop("findings", None)  # forged values may break rules
    at._io = Unkept()
    try:
        field.declared._build(value, at._io, at, "(drawing)")
    except (KeyError, AttributeError):
        return True
    except (construct.ConstructError, TypeError, ValueError, ArithmeticError):
        return False
    return True
