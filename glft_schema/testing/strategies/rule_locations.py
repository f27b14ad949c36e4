"""The rules of a format: on its Structs, on rows of its tables, and on payloads of its types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glft_schema.codec.rules import Check
from glft_schema.describe.nodes import ListNode, RefNode, StructOf
from glft_schema.describe.schema import rows_of, struct_of
from glft_schema.formats.format import Format
from glft_schema.tensor_types import TensorType


@dataclass(frozen=True)
class RuleLocation:
    """A rule and the Struct that it guards.

    Attributes:
        check: the rule.
        struct: the Struct of the guarded field.
        region: the region of the Struct or of its rows; empty for the whole file.
        of_rows: whether the Struct is a row of the region.
        type: the tensor type whose payload has the rule, or None.
    """

    check: Check
    struct: StructOf
    region: str = ""
    of_rows: bool = False
    type: TensorType | None = None


def rule_locations(format: Format) -> Iterator[RuleLocation]:
    """Yields the rules of a format, in order, and then those of its tensor types."""
    whole = struct_of(format.struct)
    for part in whole.parts:
        if isinstance(part, Check):
            yield RuleLocation(part, whole)
            continue
        node = part.node
        if isinstance(node, RefNode):
            struct = struct_of(node.declared)
            yield from (RuleLocation(check, struct, part.name) for check in struct.rules)
        if row := rows_of(node):
            yield from (RuleLocation(check, row, part.name, True) for check in row.rules)
            if isinstance(node, ListNode) and node.once:
                yield RuleLocation(node.once, row, part.name)
    rows = rows_of(whole.field(format.table).node)
    assert rows
    for type_ in format.types:
        rules = struct_of(type_.payload).rules
        yield from (RuleLocation(check, rows, format.table, True, type_) for check in rules)
