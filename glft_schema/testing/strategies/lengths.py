"""Declared lengths, the numbers that they depend on, and values of the right length.

A number is drawn small if the length of another field depends on it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import construct

from glft_schema.codec.context import Context
from glft_schema.codec.expressions import Constant, Expression, Length, Reference, read, subexpressions
from glft_schema.codec.json_table import Entry
from glft_schema.codec.rules import Check
from glft_schema.describe.nodes import BytesNode, CountedNode, Field, ListNode, Node, RefNode, SwitchNode
from glft_schema.describe.schema import struct_of
from glft_schema.testing.strategies.fitting import LONG, holds, is_wanted, value_so_far, with_value

SMALL = 5  # drawn counts are less


@cache
def counters(declared: construct.Struct) -> frozenset[str]:
    """Returns the names of the fields on which lengths in a Struct depend, at any depth."""
    parts = (part for length in _lengths_in(RefNode("", declared)) for part in subexpressions(length))
    return frozenset(part.names[-1] for part in parts if isinstance(part, Reference))


def _lengths_in(node: Node | None) -> Iterator[Expression]:
    match node:
        case ListNode():
            yield node.count
            yield from _lengths_in(node.item)
        case BytesNode() if node.size:
            yield node.size
        case CountedNode():
            yield from _lengths_in(node.item)
        case SwitchNode():
            for inner in (*(case.node for case in node.cases), node.default):
                yield from _lengths_in(inner)
        case RefNode() if node.declared and not node.level:
            for part in struct_of(node.declared).fields:
                yield from _lengths_in(part.node)


def as_count(field: Field, value: int, context: Context) -> int:
    """Returns `value`; if lengths depend on `field`, a small number or one that rules require."""
    outermost = context
    while "_declared" in outermost.get("_", {}):
        outermost = outermost["_"]
    if field.name not in counters(outermost["_declared"]):
        return value
    options, own = list(range(SMALL)), Reference((field.name,))
    for later in struct_of(context["_declared"]).fields:
        if own not in (getattr(later.node, "count", None), getattr(later.node, "size", None)):
            continue
        conditions = dict(rules_on_length(later, context))
        parts = [part for condition in conditions.values() for part in subexpressions(condition)]
        numbers = [part.value for part in parts if isinstance(part, Constant) and isinstance(part.value, int)]
        near = {number + step for number in numbers for step in (-1, 0, 1)}
        options = [size for size in sorted({*options, *near}) if 0 <= size <= LONG]
        options = [size for size in options if all_hold(conditions, later, range(size), context)]
    options = [size for size in options if all_hold(guards(field, context), field, size, context)]
    return options[value % len(options)] if options else value % SMALL


def guards(field: Field, context: Context) -> list[Check]:
    """Returns the rules on a field that must hold."""
    return [check for check in field.rules if is_wanted(check, context._params._drawing.rules)]


def rules_on_length(field: Field, context: Context) -> Iterator[tuple[Check, Expression]]:
    """Yields the rules on the number of a field's elements alone, with their conditions."""
    own = Length(Reference((field.name,)))
    for check in guards(field, context):
        if condition := read(getattr(check, "holds", None)):
            parts = list(subexpressions(condition))
            lengths = parts.count(own)
            if lengths and lengths == sum(isinstance(part, Reference) for part in parts):
                yield check, condition


def all_hold(checks: Iterable[Check], field: Field, value: Any, context: Context) -> bool:
    """Tells whether rules hold with a value of a field."""
    changed = with_value(context, field.name, value)
    return all(holds(check, changed) for check in checks)


def fits(field: Field, value: Any, context: Context) -> bool:
    """Tells whether a field can be built from a value, if the fields that it needs are known."""
    node = field.node
    length = node.count if isinstance(node, ListNode) else node.size if isinstance(node, BytesNode) else None
    is_plain = not any(wrapper.decode for wrapper in node.wrappers)
    if length and is_plain and hasattr(value, "__len__") and value_so_far(context, length) not in (None, len(value)):
        return False
    at = Context(context)
    at._params = Context(context._params)  # building changes it: it sets the byte order
    at._io = stream = Entry() if field.is_json else io.BytesIO()
    try:
        field.declared._build(value, stream, at, "(drawing)")
    except (KeyError, AttributeError):
        return True
    except (construct.ConstructError, TypeError, ValueError, ArithmeticError):
        return False
    return True
