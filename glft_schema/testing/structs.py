"""Values of a Struct, drawn field by field within the rules and the needs of later fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from itertools import product
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from glft_schema.codec.context import Context, new_context
from glft_schema.codec.expressions import Reference, ValueOfKey
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.metadata_rules import is_integer
from glft_schema.codec.records import Record
from glft_schema.codec.rules import Check
from glft_schema.codec.structs import Struct, unwrap
from glft_schema.codec.tables import NamesOnce
from glft_schema.codec.typed_values import Typed, ValueType
from glft_schema.describe.nodes import (
    DerivedNode,
    Field,
    Node,
    PayloadsNode,
    StructOf,
    SwitchNode,
    TextNode,
)
from glft_schema.describe.schema import rows_of
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.region import TensorFits
from glft_schema.testing.fitting import (
    candidates,
    counters,
    derive,
    fits,
    guards,
    holds,
    inner_context,
    is_wanted,
    pattern_of,
    value_so_far,
    with_value,
)

SMALL = 5  # drawn counts are less
TRIES = 20  # values drawn if no candidate satisfies the rules
BOUNDARY = 1 << 7  # the longest length that is tried as a boundary
MANY_DIMS = 64
MAX_BYTES = 1 << 16  # of payloads
GAP = 3  # bytes or multiples of the alignment, at most
OPAQUE = 16  # bytes of a payload of unknown type, at most

ValuesOf = Callable[[Any, Any], "st.SearchStrategy[Any]"]


@dataclass(frozen=True)
class Knobs:
    """Restrictions on drawn values.

    Attributes:
        rules: the rule sets to satisfy.
        types: the allowed tensor types; None for all.
        max_bytes: the maximum total size of the payloads in bytes.
        most: the maximum number of rows of a table, by the table's name.
    """

    rules: Sequence[str] = ()
    types: Sequence[TensorType] | None = None
    max_bytes: int = MAX_BYTES
    most: Mapping[str, int] = field(default_factory=dict)


def drawing_context(knobs: Knobs | None = None, /, *, rules: Sequence[str] = (), **params: Any) -> Any:
    """Returns the outermost context: the parameters of building, and the knobs as `_drawing`."""
    return new_context(False, _drawing=knobs or Knobs(rules), **params)


@st.composite
def struct_values(draw: st.DrawFn, struct: StructOf, outer: Context, values_of: ValuesOf) -> Any:
    """Draws a value to build the Struct from: a `Record`, or a `Context` for construct's Struct."""
    context, parts, drawn = inner_context(outer, struct.declared), struct.parts, dict[str, None]()
    for i, part in enumerate(parts):
        if isinstance(part, Check):
            keep(draw, part, struct, context, values_of)
        elif part.is_computed:
            derive(context, struct.declared)
        elif part.name:
            context._field = part.name
            value = draw(field_values(part, context, values_of))
            for later in parts[i + 1 :]:
                value = claim(later.node if isinstance(later, Field) else later, part, value, draw, context)
            context[part.name] = value
            drawn[part.name] = None
    counts = [part for part in struct.fields if part.is_count]
    counted = Context({**context, **{part.name: unwrap(part.declared).count_of(context) for part in counts}})
    if not all(holds(check, counted) for part in counts for check in guards(part, context)):
        reject()
    fields = {name: context[name] for name in drawn}
    if not isinstance(struct.declared, Struct):
        return Context(fields)
    return Record(fields, {part.name: context[part.name] for part in struct.fields if part.name in context.keys() - drawn})


def field_values(part: Field, context: Context, values_of: ValuesOf) -> st.SearchStrategy[Any]:
    """Returns a strategy of a field: texts of a pattern, small numbers if lengths depend on it."""
    values = values_of(part.node, context)
    pattern = next((text for check in guards(part, context) if (text := pattern_of(check))), None)
    if pattern:
        alphabet = st.characters(codec=part.node.encoding) if isinstance(part.node, TextNode) else None
        texts = st.from_regex(pattern, fullmatch=True, alphabet=alphabet)
        values = texts.filter(lambda text: fits(part, text, context))
    if isinstance(part.node, SwitchNode) and part.node.wrappers:  # a default need not fit each case
        values = values.filter(lambda value: fits(part, value, context))
    outermost = context
    while "_declared" in outermost.get("_", {}):
        outermost = outermost["_"]
    if part.name in counters(outermost["_declared"]):
        values = values.map(lambda value: value % SMALL if isinstance(value, int) else value)
    return values


def keep(draw: st.DrawFn, check: Check, struct: StructOf, context: Context, values_of: ValuesOf) -> None:
    """Makes a rule hold by another value of the guarded field, or rejects the example.

    In some examples, the value is replaced by a boundary of the rule, although it holds or the rule
    is not one of the sets to satisfy.
    """
    sets, name, value = context._params._drawing.rules, check.field, context.get(check.field)
    is_kept = not is_wanted(check, sets) or holds(check, context)
    if is_kept and (not isinstance(value, (bytes, str, list)) or draw(st.integers(0, 7)) < 7):
        return
    field = struct.field(name)
    checks = [other for other in struct.rules if is_wanted(other, sets)]
    unkept = [other for other in checks if other.field == name and not holds(other, context)] or [check]

    def possible(values: Iterable[Any]) -> list[Any]:
        changed = ((value, with_value(context, name, value)) for value in values)
        return [
            value
            for value, at in changed
            if all(holds(other, at) for other in checks) and all(fits(part, at[part.name], at) for part in drawn)
        ]

    drawn = [part for part in struct.fields if part.name in context and not part.is_computed]
    drawn = drawn[drawn.index(field) :] if field in drawn else []  # lengths may depend on it
    options = possible(near for other in unkept for near in candidates(other, value, context))
    if is_kept:
        options = [near for near in options if len(near) <= BOUNDARY] or [value]
    for _ in range(TRIES):
        if options:
            break
        options = possible([draw(field_values(field, context, values_of))])
    if not options:
        reject()
    context.update(with_value(context, name, draw(st.sampled_from(options))))


@singledispatch
def claim(later: Any, field: Field, value: Any, draw: st.DrawFn, context: Context) -> Any:
    """Returns the value of `field` as a later node or rule needs it; by default unchanged."""
    return value


@claim.register
def _(later: NamesOnce, field: Field, value: Any, draw: st.DrawFn, context: Context) -> Any:
    """Keeps the first one of rows with the same name."""
    return list({row.name: row for row in reversed(value)}.values())[::-1] if field.name == later.field else value


@claim.register
def _(later: TensorFits, field: Field, value: Any, draw: st.DrawFn, context: Context) -> Any:
    """Draws small dims, sometimes many."""
    if field.name != later.field:
        return value
    dims = draw(st.lists(st.integers(0, 4), max_size=4).filter(lambda dims: fits(field, dims, context)))
    ones = [1] * (draw(st.integers(1, MANY_DIMS - 4)) if draw(st.integers(0, 15)) == 15 else 0)
    many = with_value(context, field.name, dims + ones)
    return dims + ones if all(holds(check, many) for check in guards(field, context)) else dims


@claim.register
def _(later: PayloadsNode, field: Field, value: Any, draw: st.DrawFn, context: Context) -> Any:
    """Sets the offsets of the rows. Drops rows that would make the file too large."""
    if field.name != later.table:
        return value
    left, rows = context._params._drawing.max_bytes, []
    for row in value:
        left -= size_of(row)
        if left >= 0:
            rows.append(row)
    return place_payloads(draw, field, rows, later, context)


@claim.register
def _(later: DerivedNode, field: Field, value: Any, draw: st.DrawFn, context: Context) -> Any:
    """Sets the key that a field is derived from, in some examples, to a value that rules allow."""
    lookup = later.value
    if not (isinstance(lookup, ValueOfKey) and lookup.mapping == Reference((field.name,)) and isinstance(value, TypedMetadata)):
        return value
    if draw(st.integers(0, 2)) != 2 or not (options := values_of_key(field, lookup, value.types, context)):
        return value
    entries = [(key, value.stored_value(key)) for key in value if key != lookup.key]
    entries.insert(draw(st.integers(0, len(entries))), (lookup.key, draw(st.sampled_from(options))))
    return value.replace(dict(entries))


def values_of_key(field: Field, lookup: ValueOfKey, types: Iterable[ValueType], context: Context) -> list[Typed]:
    """Returns values for a key, around its default, that can be stored and satisfy the rules."""
    row, options, default = rows_of(field.node), [], lookup.default
    assert row
    assert isinstance(default, int)
    values = sorted({1, 8, default // 4, 3 * default // 4, default, 2 * default, 4 * default})
    checks = [check for check in row.rules if is_wanted(check, context._params._drawing.rules)]
    for type_, value in product(filter(is_integer, types), values):
        at = inner_context(context, row.declared, {"key": lookup.key, "type": type_, "value": value})
        if all(holds(check, at) for check in checks) and fits(row.field("value"), value, at):
            options.append(Typed(value, type_.name))
    return options


# Offsets of payloads, one after another or in any other legal layout


def payload_key(row: Any) -> tuple[Any, ...]:
    """Returns offset, type and shape, which are equal in rows that share a payload."""
    return row.offset, row.dtype, tuple(row.shape)


def size_of(row: Any) -> int:
    """Returns the size of a row's payload in bytes; for an unknown type, the largest size."""
    return int(row.dtype.nbytes(row.shape)) if row.dtype.is_known else OPAQUE


def alignment_of(data: Node, context: Context) -> int:
    """Returns the alignment of the payloads of a region."""
    return int((isinstance(data, PayloadsNode) and data.to and value_so_far(context, data.to)) or 1)


def move(row: Record, offset: int) -> Record:
    """Returns a row with another offset."""
    return Record({**row, "offset": offset}, dict(row.counts))


def tight(rows: list[Record], alignment: int) -> list[Record]:
    """Returns rows whose payloads follow one another, each at a multiple of the alignment."""
    placed, end = [], 0
    for row in rows:
        end += -end % alignment
        placed.append(move(row, end))
        end += size_of(row)
    return placed


def place_payloads(draw: st.DrawFn, table: Field, rows: list[Record], data: PayloadsNode, context: Context) -> list[Record]:
    """Sets the offsets of rows, in any order, with gaps and shared payloads, if rules allow these.

    Rejects the example if the rules do not allow payloads one after another either.
    """
    alignment = alignment_of(data, context)
    if draw(st.booleans()) and rows:
        loose = loosely(draw, rows, draw(st.sampled_from([1, alignment])))
        if keeps(table, loose, context):
            return loose
    if not keeps(table, rows := tight(rows, alignment), context):
        reject()
    return rows


def loosely(draw: st.DrawFn, rows: list[Record], step: int) -> list[Record]:
    """Returns rows in any order of offsets, multiples of `step`, with gaps and aliases."""
    placed = dict(enumerate(rows))
    aliases = {i: draw(st.integers(0, i - 1)) for i in range(1, len(rows)) if draw(st.integers(0, 3)) == 3}
    end = 0
    for i in draw(st.permutations(range(len(rows)))):
        if i not in aliases:
            end += step * draw(st.integers(0, GAP))
            end += -end % step
            placed[i] = move(rows[i], end)
            end += size_of(rows[i])
    for i, of in aliases.items():  # in order, so that row `of` has its offset
        placed[i] = Record({**placed[of], "name": rows[i].name}, dict(placed[of].counts))
    return list(placed.values())


def keeps(table: Field, rows: list[Record], context: Context) -> bool:
    """Tells whether the rules of the rows and the rules on their table hold."""
    struct = rows_of(table.node)
    assert struct
    checks = [check for check in struct.rules if is_wanted(check, context._params._drawing.rules)]
    for row in rows:
        at = inner_context(context, row=row)
        if not all(holds(check, at) for check in checks):
            return False
    at = Context({**context, table.name: rows})
    return all(holds(check, at) for check in guards(table, context))
