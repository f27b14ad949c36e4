"""The rules of a format: on its Structs, on rows of its tables, and on payloads of its types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import construct

from glft_schema.codec.rules import Check
from glft_schema.describe.nodes import List, Ref
from glft_schema.describe.schema import rows_of, struct_of
from glft_schema.formats.format import Format
from glft_schema.tensor_types import TensorType


@dataclass(frozen=True)
class Site:
    """A rule and its place.

    Attributes:
        check: the rule.
        struct: the Struct whose fields it is about.
        region: the region that the Struct is, or whose rows it is; empty for the whole file.
        of_rows: whether the Struct is a row of the region.
        type: the tensor type whose payload has the rule, or None.
    """

    check: Check
    struct: construct.Struct
    region: str = ""
    of_rows: bool = False
    type: TensorType | None = None


def sites(format: Format) -> Iterator[Site]:
    """Yields the rules of a format, in order, and then those of its tensor types."""
    whole = struct_of(format.struct)
    for part in whole.parts:
        if isinstance(part, Check):
            yield Site(part, format.struct)
            continue
        node = part.node
        if isinstance(node, Ref):
            yield from (Site(check, node.declared, part.name) for check in struct_of(node.declared).rules)
        if row := rows_of(node):
            yield from (Site(check, row.declared, part.name, True) for check in row.rules)
            if isinstance(node, List) and node.once:
                yield Site(node.once, row.declared, part.name)
    rows = rows_of(whole.field(format.table).node)
    assert rows
    for type_ in format.types:
        yield from (Site(check, rows.declared, format.table, True, type_) for check in struct_of(type_.payload).rules)
