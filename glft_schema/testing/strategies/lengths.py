"""How long something is, where its declaration says so: which numbers count others, and what may be built where.

A number that says how many of something follow is drawn small, whatever expression leads from it to the length.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from functools import lru_cache, singledispatch
from typing import Any

import construct

from glft_schema.codec import arrays
from glft_schema.codec.context import Context
from glft_schema.codec.expressions import Constant, Length, Reference, read, subexpressions
from glft_schema.codec.rules import Check, Rule
from glft_schema.testing.strategies.fitting import LONG, NOT_YET, evaluated, holds, is_wanted, with_value

SMALL = 5  # a number that says how many of something follow is less


@singledispatch
def size_of_value(declared: Any) -> Any:
    """Returns the expression of how many elements or bytes a construct's value has, or None where the value says it."""
    return None


@size_of_value.register(construct.Renamed)
@size_of_value.register(construct.Aligned)
@size_of_value.register(construct.Prefixed)
def _(declared: construct.Subconstruct) -> Any:
    return size_of_value(declared.subcon)


@size_of_value.register(construct.Array)
@size_of_value.register(arrays.Numbers)
@size_of_value.register(arrays.Strings)
def _(declared: Any) -> Any:
    return declared.count


@size_of_value.register
def _(declared: construct.Bytes) -> Any:
    return declared.length


@lru_cache(maxsize=4096)
def sizes_in(declared: construct.Construct) -> tuple[tuple[Any, int], ...]:
    """Returns the lengths that are declared in a construct, each with how many contexts lie between."""
    return tuple(_sizes_in(declared))


def _sizes_in(declared: Any) -> Iterator[tuple[Any, int]]:
    if isinstance(declared, (construct.Array, construct.Bytes, arrays.Numbers, arrays.Strings)):
        yield size_of_value(declared), 0
    elif isinstance(declared, construct.FixedSized):
        yield declared.length, 0
    if isinstance(declared, (construct.Struct, construct.FocusedSeq)):
        for part in declared.subcons:
            yield from ((size, depth + 1) for size, depth in sizes_in(part))
    elif isinstance(declared, construct.Switch):
        for case in (*declared.cases.values(), declared.default):
            yield from sizes_in(case)
    elif isinstance(declared, construct.IfThenElse):
        yield from sizes_in(declared.thensubcon)
        yield from sizes_in(declared.elsesubcon)
    elif isinstance(declared, construct.Subconstruct):
        yield from sizes_in(declared.subcon)


def counted_by(field: Any, context: Context) -> list[tuple[Any, bool]]:
    """Returns the parts after a field, in its Struct or in those around it, with a length that the field is in.

    With each stands whether the part beside the field has just as many elements as the field says. What a function depends on
    cannot be read: it may be any number before it.
    """
    found: list[tuple[Any, bool]] = []
    at, part = context, field
    names: tuple[str, ...] = (field.name,)
    while (declared := at.get("_declared")) is not None:
        outer = at.get("_")
        is_whole = outer is None or outer.get("_declared") is None
        for later in declared.subcons[declared.subcons.index(part) + 1 :]:
            for size, depth in sizes_in(later):
                said = read(size)
                if said is None:
                    found.append((later, False))
                    continue
                refers = (
                    ref.names == names and (is_whole if ref.of_root else ref.up == depth)
                    for ref in subexpressions(said)
                    if isinstance(ref, Reference)
                )
                if any(refers):
                    found.append((later, at is context and depth == 0 and isinstance(said, Reference)))
        if is_whole or (name := outer.get("_field")) is None:
            break
        part = next((other for other in outer._declared.subcons if other.name == name), None)
        if part is None:
            break
        at, names = outer, (name, *names)
    return found


def as_count(field: Any, value: int, context: Context) -> int:
    """Returns a number that counts what follows, if it does: a small one, or one that the rules on what it counts ask for."""
    if not (counted := counted_by(field, context)):
        return value
    options = list(range(SMALL))
    for later in (later for later, as_many in counted if as_many):
        checks = list(rules_on_size(later, context))
        near = {number + step for check in checks for number in numbers_in(check) for step in (-1, 0, 1)}
        options = [size for size in sorted({*options, *near}) if 0 <= size <= LONG]
        options = [size for size in options if all_hold(checks, later, range(size), context)]
    guards = [check for check in wanted(context) if check.field == field.name]
    options = [size for size in options if all_hold(guards, field, size, context)]
    return options[value % len(options)] if options else value % SMALL


def wanted(context: Context) -> list[Check]:
    """Returns the rules of the Struct at hand that are kept to."""
    checks = [part for part in context._declared.subcons if isinstance(part, Check)]
    return [check for check in checks if is_wanted(check, context._params._drawing.rules)]


def rules_on_size(part: Any, context: Context) -> Iterator[Rule]:
    """Yields the rules on how many elements a field has, and on nothing else."""
    own = Reference((part.name,))
    for check in wanted(context):
        if isinstance(check, Rule) and check.field == part.name and (said := read(check.holds)):
            found = list(subexpressions(said))
            lengths = sum(isinstance(one, Length) and not one.in_bytes and one.of == own for one in found)
            if lengths and lengths == sum(isinstance(one, Reference) for one in found):
                yield check


def numbers_in(check: Rule) -> Iterator[int]:
    """Yields the numbers in the expression of a rule."""
    said = read(check.holds)
    for part in subexpressions(said) if said else ():
        if isinstance(part, Constant) and isinstance(part.value, int):
            yield part.value


def all_hold(checks: Iterable[Check], part: Any, value: Any, context: Context) -> bool:
    """Tells whether rules hold with this value of a field."""
    changed = with_value(context, part.name, value)
    return all(holds(check, changed) for check in checks)


def fits(part: Any, value: Any, context: Context) -> bool:
    """Tells whether a field can be built from a value, and is as long as the fields before it say.

    What depends on fields that are not there yet does not count.
    """
    size = size_of_value(part)
    if size is not None and hasattr(value, "__len__") and evaluated(size, context) not in (NOT_YET, len(value)):
        return False
    at = Context(context)
    at._params = Context(context._params)  # building notes things in it, such as the byte order
    at._io = stream = io.BytesIO()
    try:
        part._build(value, stream, at, "(drawing)")
    except (KeyError, AttributeError):
        return True
    except (construct.ConstructError, TypeError, ValueError, ArithmeticError):
        return False
    return True
