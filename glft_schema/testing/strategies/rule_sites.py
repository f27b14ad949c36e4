"""Where the rules of a format stand: in its Structs, in the rows of its tables, and in the payloads of its tensor types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import construct

from glft_schema.codec.metadata import KeyValues
from glft_schema.codec.rules import Check
from glft_schema.codec.structs import Struct, unwrapped
from glft_schema.formats.format import Format
from glft_schema.tensor_types import TensorType
from glft_schema.testing.strategies.drafts import row_struct


@dataclass(frozen=True)
class Site:
    """A rule and its place.

    Attributes:
        check: the rule.
        struct: whose fields it sees.
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
    for part in format.struct.subcons:
        inner = unwrapped(part)
        if isinstance(part, Check):
            yield Site(part, format.struct)
            continue
        if isinstance(inner, Struct):
            yield from (Site(check, inner, part.name) for check in inner.subcons if isinstance(check, Check))
        if (row := row_struct(part)) is not None:
            yield from (Site(check, row, part.name, True) for check in row.subcons if isinstance(check, Check))
        if isinstance(inner, KeyValues) and row is not None:
            yield Site(inner.once, row, part.name)
    rows = row_struct(next(part for part in format.struct.subcons if part.name == format.table))
    assert rows is not None
    for type_ in format.types:
        checks = [check for check in type_.payload.subcons if isinstance(check, Check)]
        yield from (Site(check, rows, format.table, True, type_) for check in checks)
