"""The values of a Struct: field by field in order, each within the rules that guard it, and as later fields need it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import construct
from hypothesis import reject
from hypothesis import strategies as st

from glft_schema.codec.context import Context
from glft_schema.codec.expressions import Reference, ValueOfKey, read
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.records import Record
from glft_schema.codec.rules import Check
from glft_schema.codec.structs import Derived, Padding, Struct, unwrapped
from glft_schema.codec.tables import NamesOnce
from glft_schema.codec.typed_values import StoredValue
from glft_schema.errors import FormatError
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.region import TensorData, TensorFits
from glft_schema.testing.strategies.fitting import candidates, derive, holds, is_wanted, pattern, with_value
from glft_schema.testing.strategies.layouts import laid_out, size_of
from glft_schema.testing.strategies.lengths import all_hold, as_count, fits, wanted

TRIES = 20  # values drawn where no candidate keeps the rules
BOUNDARY = 1 << 7  # lengths up to this are tried on purpose
MANY_DIMS = 64
MAX_BYTES = 1 << 16  # of payloads, unless told otherwise

ValuesOf = Callable[[Any, Any], "st.SearchStrategy[Any]"]


@dataclass(frozen=True)
class Knobs:
    """What narrows down what is drawn.

    Attributes:
        rules: the rule sets that are kept to.
        types: the tensor types that may come up; None for all.
        max_bytes: how many bytes all payloads have at most.
        most: how many rows a table has at most, by its name.
    """

    rules: Sequence[str] = ()
    types: Sequence[TensorType] | None = None
    max_bytes: int = MAX_BYTES
    most: Mapping[str, int] = field(default_factory=dict)


class DrawingContext(Context):
    """The context of what is drawn.

    Attributes:
        _drawing: the knobs; in the context around all.
        _declared: the Struct whose fields are drawn.
        _field: the name of the field that is drawn.
    """

    if not TYPE_CHECKING:
        __slots__ = Context.__slots__

    _drawing: Knobs
    _declared: construct.Struct
    _field: str


def drawing_context(knobs: Knobs | None = None, /, *, rules: Sequence[str] = (), **params: Any) -> DrawingContext:
    """Returns the context around what is drawn: what building has, what rules note in, and the knobs."""
    context = DrawingContext(params, _parsing=False, _building=True, _sizing=False)
    context._params, context._drawing = context, knobs or Knobs(rules)
    return context


@st.composite
def struct_values(draw: st.DrawFn, declared: construct.Struct, outer: Context, values_of: ValuesOf) -> Any:
    """Draws a `Record`, or one of construct's containers, that `declared` builds from."""
    context = DrawingContext(_=outer, _params=outer._params, _parsing=False, _building=True, _sizing=False)
    context._root, context._declared = outer.get("_root", context), declared
    made: list[str] = []
    for part in declared.subcons:
        if isinstance(part, Check):
            settle(draw, part, declared, context)
        elif never_drawn(part):
            derive(context, declared)
        elif part.name:
            context._field = part.name
            context[part.name] = draw_field(draw, part, declared, context, values_of)
            made.append(part.name)
        else:
            values_of(part, context)  # which says so where it is not known: it may be a rule or an end
    fields = {name: context[name] for name in made}
    if not isinstance(declared, Struct):
        return Context(fields)
    others = {part.name: context[part.name] for part in declared.subcons if part.name in context and part.name not in made}
    return Record(fields, others)


def never_drawn(part: construct.Construct) -> bool:
    """Tells whether building computes a field, so that a value leaves it out."""
    part = unwrapped(part)
    return isinstance(part, (construct.Rebuild, construct.Computed, type(construct.Tell), Derived, Padding))


def draw_field(draw: st.DrawFn, part: Any, declared: construct.Struct, context: Context, values_of: ValuesOf) -> Any:
    """Draws the value of one field, within the rules that guard it as far as they can be told yet."""
    sets = context._params._drawing.rules
    all_guards = [check for check in declared.subcons if isinstance(check, Check) and check.field == part.name]
    guards = [check for check in all_guards if is_wanted(check, sets)]
    patterns = [text for check in guards if (text := pattern(check))]
    values = values_of(part, context)
    if patterns:
        values = matching_texts(part, patterns[0]).filter(lambda text: fits(part, text, context))
    later = declared.subcons[declared.subcons.index(part) + 1 :]

    def broken(value: Any) -> list[Check]:
        changed = with_value(context, part.name, value)
        return [check for check in guards if not holds(check, changed)]

    def near(value: Any, checks: list[Check]) -> list[Any]:
        found = (near for check in checks for near in candidates(check, value, with_value(context, part.name, value)))
        return [candidate for candidate in found if fits(part, candidate, context) and not broken(candidate)]

    def fresh() -> Any:
        value = draw(values)
        if isinstance(value, int) and not isinstance(value, bool):
            value = as_count(part, value, context)
        for claiming in later:
            value = claimed(
                claiming.subcon if isinstance(claiming, construct.Renamed) else claiming, part, value, draw, context
            )
        return value

    value = fresh()
    for _ in range(TRIES):
        if not (checks := broken(value)):
            break
        if options := near(value, checks):
            value = draw(st.sampled_from(options))
            break
        value = fresh()
    if all_guards and not isinstance(value, int) and draw(st.integers(0, 7)) == 7:
        short = [near for near in near(value, all_guards) if isinstance(near, (bytes, str, list)) and len(near) <= BOUNDARY]
        value = draw(st.sampled_from(short)) if short else value
    return value


def settle(draw: st.DrawFn, check: Check, declared: construct.Struct, context: Context) -> None:
    """Makes a rule hold, once all that it depends on is there: by another value of the field that it guards.

    Where none is found, the example is given up.
    """
    if not is_wanted(check, context._params._drawing.rules) or holds(check, context):
        return
    before = declared.subcons[: declared.subcons.index(check) + 1]
    checks = [part for part in before if isinstance(part, Check) and is_wanted(part, context._params._drawing.rules)]
    fields = [part for part in before if part.name and not isinstance(part, Check) and not never_drawn(part)]
    names = [part.name for part in fields]
    drawn = fields[names.index(check.field) :] if check.field in names else []  # it, and what may be as long as it says
    options = []
    for candidate in candidates(check, context[check.field], context):
        changed = with_value(context, check.field, candidate)
        if all(holds(other, changed) for other in checks) and all(fits(part, changed[part.name], changed) for part in drawn):
            options.append(candidate)
    if not options:
        reject()
    context[check.field] = draw(st.sampled_from(options))
    derive(context, declared)


def matching_texts(part: Any, pattern: str) -> st.SearchStrategy[str]:
    """Returns texts that match a pattern, of the characters that the field's encoding has."""
    part = unwrapped(part)
    is_strict = isinstance(part, construct.StringEncoded) or getattr(part, "strict", False)
    alphabet = st.characters(codec=getattr(part, "encoding", "utf-8")) if is_strict else None
    return st.from_regex(pattern, fullmatch=True, alphabet=alphabet)


@singledispatch
def claimed(later: Any, field: Any, value: Any, draw: st.DrawFn, context: Context) -> Any:
    """Returns the value of `field` as a later part of its Struct needs it: by default as it is."""
    return value


@claimed.register
def _(later: NamesOnce, field: Any, value: Any, draw: st.DrawFn, context: Context) -> Any:
    """Of rows with the same name the first one stays."""
    return list({row.name: row for row in reversed(value)}.values())[::-1] if field.name == later.field else value


@claimed.register
def _(later: TensorFits, field: Any, value: Any, draw: st.DrawFn, context: Context) -> Any:
    """Dims are small; sometimes there are many of them."""
    if field.name != later.field:
        return value
    dims = draw(st.lists(st.integers(0, 4), max_size=4))
    ones = [1] * (draw(st.integers(1, MANY_DIMS - 4)) if draw(st.integers(0, 15)) == 15 else 0)
    guards = [check for check in wanted(context) if check.field == field.name]
    return dims + ones if all_hold(guards, field, dims + ones, context) else dims


@claimed.register
def _(later: TensorData, field: Any, value: Any, draw: st.DrawFn, context: Context) -> Any:
    """The rows of the table get their offsets; those that would make the file too large are left out."""
    if field.name != later.table:
        return value
    left, rows = context._params._drawing.max_bytes, []
    for row in value:
        left -= size_of(row)
        if left >= 0:
            rows.append(row)
    return laid_out(draw, field, rows, later, context)


@claimed.register
def _(later: Derived, field: Any, value: Any, draw: st.DrawFn, context: Context) -> Any:
    """A key whose value something is derived from is there now and then, in each type and with the values that rules allow."""
    said = read(later.of)
    if not (isinstance(said, ValueOfKey) and said.mapping == Reference((field.name,)) and isinstance(value, TypedMetadata)):
        return value
    if draw(st.integers(0, 2)) != 2 or not (options := entries(field, said, context)):
        return value
    made = [(key, value.stored(key)) for key in value if key != said.key]
    made.insert(draw(st.integers(0, len(made))), (said.key, draw(st.sampled_from(options))))
    return value.replaced(dict(made))


def entries(field: construct.Renamed, said: ValueOfKey, context: Context) -> list[StoredValue]:
    """Returns values for a key that a mapping is asked for, around its default, that can be stored and keep the rules."""
    row, found = field.subcon.subcon.subcon, []
    (coded,) = (part.subcon for part in row.subcons if part.name == "type")
    values = sorted({1, 8, said.default // 4, 3 * said.default // 4, said.default, 2 * said.default, 4 * said.default})
    checks = [part for part in row.subcons if isinstance(part, Check) and is_wanted(part, context._params._drawing.rules)]
    for type_ in coded.table:
        for value in (value for value in values if can_store(type_.field, value)):
            at = Context(_=context, _params=context._params, _root=context.get("_root", context), _declared=row)
            at.update({"key": said.key, "type": type_, "value": value})
            if all(holds(check, at) for check in checks):
                found.append(StoredValue(type_, value))
    return found


def can_store(number: Any, value: int) -> bool:
    """Tells whether a construct is a number that can hold `value`."""
    try:
        return hasattr(number, "stored") and bool(number.stored(value))
    except FormatError:
        return False
