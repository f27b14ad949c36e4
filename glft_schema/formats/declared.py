"""Mistakes in a declaration that small files need not show: names of fields, ids of rules, and the
place of the byte order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import construct
from construct.expr import ExprMixin

from glft_schema.codec.expressions import Expression, Reference, references_in
from glft_schema.codec.numbers import ByteOrderOf, Number
from glft_schema.codec.rules import Check
from glft_schema.codec.structs import Count, member, unwrap
from glft_schema.codec.trace import STEP
from glft_schema.errors import quote
from glft_schema.words import suggestion

LATER = (Check, Count, construct.Default)  # refer to fields before or after them
Part = tuple[str, Any, tuple[construct.Struct, ...]]


def parts_of(declared: Any, path: str = "", outer: tuple[construct.Struct, ...] = ()) -> Iterator[Part]:
    """Yields the constructs in a declaration, in order, each with its path and the Structs around
    it, innermost first. The parts of construct's other groups are left out."""
    path = STEP.join(filter(None, (path, getattr(declared, "name", None))))
    yield path, (declared := unwrap(declared)), outer
    is_struct = isinstance(declared, construct.Struct)
    parts = declared.subcons if is_struct else [*vars(declared).values(), *getattr(declared, "cases", {}).values()]
    for part in parts:
        if isinstance(part, construct.Construct) and (is_struct or not isinstance(part, Check)):
            yield from parts_of(part, path, (declared, *outer) if is_struct else outer)


def mistakes(declared: construct.Struct) -> Iterator[tuple[str, str]]:
    """Yields the path of each part that cannot work as declared, and what is expected of it."""
    wide, checks = "", dict[str, Check]()
    for path, part, outer in parts_of(declared):
        if isinstance(part, Check):
            path = STEP.join(filter(None, (path, f"rule {quote(part.id)}")))
            if checks.setdefault(part.id, part) is not part:
                yield path, "another id, which no other rule of the format has"
        if isinstance(part, ByteOrderOf) and wide:
            yield path, f"its place before {wide}, the first number of several bytes"
        if isinstance(part, Number) and part.itemsize > 1:
            wide = wide or path
        given = [value for value in vars(part).values() if isinstance(value, Expression | ExprMixin)]
        guarded = [Reference((part.field,))] if isinstance(part, Check) else []
        for reference in (*guarded, *(found for value in given for found in references_in(value))):
            if unknown := _unknown(reference, outer):
                yield path, f"the name of a field, found {unknown}"
            elif not isinstance(part, LATER) and reference.names and _is_later(reference, outer, path.rpartition(STEP)[2]):
                yield path, f"its place after {reference.names[0]}"


def _is_later(reference: Reference, outer: tuple[construct.Struct, ...], name: str) -> bool:
    """Returns whether a field of the innermost Struct refers to a later one, or to itself."""
    names = [part.name for part in outer[0].subcons] if outer else []
    is_inside = not (reference.up or reference.of_root or reference.of_params)
    return is_inside and {name, reference.names[0]} <= {*names} and names.index(name) <= names.index(reference.names[0])


def _unknown(reference: Reference, outer: tuple[construct.Struct, ...]) -> str:
    """Returns the name in a reference that no field has, with a suggestion, or an empty string."""
    above = outer[-1:] if reference.of_root else outer[reference.up :]
    struct = None if reference.of_params or not above else above[0]
    for name in reference.names:
        if not isinstance(struct, construct.Struct) or name.startswith("_"):
            break
        names = [part.name for part in struct.subcons if part.name]
        if name not in names:
            return quote(name) + suggestion(name, names)
        struct = member(struct, name)
    return ""
