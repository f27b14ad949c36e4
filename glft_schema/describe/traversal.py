"""Walks over a schema that the writers share: structs in order, fields by name, tables by code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import glft_schema.describe.nodes as s
from glft_schema.codec.type_codes import TypeTable


def in_order(schema: s.Schema) -> tuple[list[str], list[str]]:
    """Returns the names of the structs, each after those that it contains.

    Returns:
        The names, and those of recursive structs, which must be declared in advance.
    """
    ordered: list[str] = []
    recursive: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above and name not in recursive:
            recursive.append(name)
        if name in ordered or name in above:
            return
        for part in schema.structs[name].fields:
            for inner in s.refs(part.node):
                visit(inner, (*above, name))
        ordered.append(name)

    for name in schema.structs:
        visit(name, ())
    return ordered, recursive


def container_structs(schema: s.Schema) -> dict[str, s.StructOf]:
    """Returns the structs that belong to no tensor type."""
    of_types = {name for type_ in schema.types for name in (type_.payload, type_.block)}
    return {name: struct for name, struct in schema.structs.items() if name not in of_types}


def by_code(table: TypeTable[Any]) -> list[Any]:
    """Returns the types of a table in order of their codes."""
    return sorted(table, key=lambda type_: int(type_.code))


def field_of(struct: s.StructOf | None, name: str) -> s.Field | None:
    """Returns the field of this name, or None."""
    return next((part for part in struct.fields if part.name == name), None) if struct else None


def rows_of(struct: s.StructOf, table: str) -> tuple[s.Field, s.List, str]:
    """Returns the field of a table, its node, and the name of the struct of a row.

    Raises:
        NotImplementedError: if the rows are not structs.
    """
    field = field_of(struct, table)
    if field is None or not isinstance(field.node, s.List) or not isinstance(field.node.item, s.Ref):
        raise NotImplementedError(f"the rows of {table} are not structs")
    return field, field.node, field.node.item.name


def byte_order_number(schema: s.Schema, root: str) -> tuple[int, s.Number] | None:
    """Returns the offset and the number that determine the byte order; None if it is fixed.

    Raises:
        NotImplementedError: if there are several such numbers, or the offset varies.
    """
    found = [(offset, part.node) for offset, part in _nested_fields(schema, root, 0) if isinstance(part.node, s.ByteOrder)]
    if not found:
        return None
    offset, node = found[0]
    if len(found) > 1 or offset is None:
        raise NotImplementedError("expected one number at a fixed offset to determine the byte order")
    return offset, node.number


def _nested_fields(schema: s.Schema, struct: str, start: int | None) -> Iterator[tuple[int | None, s.Field]]:
    """Yields the fields of a struct and of structs in it, with their offsets if fixed."""
    described = schema.structs[struct]
    for part, offset in zip(described.fields, described.offsets, strict=True):
        at = None if offset is None or start is None else start + offset
        yield at, part
        if isinstance(part.node, s.Ref):
            yield from _nested_fields(schema, part.node.name, at)
