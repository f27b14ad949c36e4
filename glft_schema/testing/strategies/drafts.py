"""Files before building: regions that may break rules, and the payloads as bytes.

A `Draft` is built without checking rules, and its fields may be `Forged`: built by a construct
other than their own. So it can become a file that no writer would produce.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import construct

from glft_schema.codec.context import new_context
from glft_schema.codec.expressions import Reference
from glft_schema.codec.json_table import JsonRows
from glft_schema.codec.records import Record
from glft_schema.codec.structs import Forged, unwrapped
from glft_schema.describe.nodes import Field, JsonTable, Lines, List, StructOf
from glft_schema.describe.schema import rows_of, struct_of
from glft_schema.files.file import File
from glft_schema.formats.format import Format
from glft_schema.testing.strategies.json_texts import with_json_row


def forged(struct: StructOf, name: str, value: Any) -> Forged:
    """Returns a value of a field that is built although it breaks a rule."""
    return Forged(struct.field(name).declared, value, value)


def plain(value: Any) -> Any:
    """Returns a value as other fields see it."""
    return value.seen if isinstance(value, Forged) else value


@dataclass(frozen=True)
class Draft:
    """A file in parts.

    Attributes:
        format: its format.
        regions: the regions before the payloads, by name; values may be `Forged`.
        payloads: the last region, as bytes.
    """

    format: Format
    regions: Mapping[str, Any]
    payloads: bytes

    @classmethod
    def of(cls, file: File) -> Draft:
        """Returns the parts of a file."""
        regions = {name: value for name, value in file.regions.items() if name != "data"}
        data = file.regions.data
        return cls(file.format, regions, bytes(file.source.view(data.start, data.size)))

    def head(self) -> tuple[bytes, Any]:
        """Returns the bytes before the payloads, and the regions as they were built."""
        stream = io.BytesIO()
        context = self.format.head._build(dict(self.regions), stream, new_context(False, forging=True), "(building)")
        return stream.getvalue(), context

    def stored(self) -> bytes:
        """Returns the bytes of the file."""
        return self.head()[0] + self.payloads

    def replaced(self, regions: Mapping[str, Any], payloads: bytes | None = None) -> Draft:
        """Returns a draft with these regions, and these payloads if they are given."""
        return replace(self, regions={**self.regions, **regions}, payloads=self.payloads if payloads is None else payloads)

    def field(self, region: str) -> Field:
        """Returns the declared field of a region."""
        return struct_of(self.format.struct).field(region)

    def is_metadata(self, region: str) -> bool:
        """Tells whether a region has typed key-values."""
        node = self.field(region).node
        return isinstance(node, List) and node.key is not None

    def row_struct(self, table: str) -> StructOf:
        """Returns the struct of the rows of a table."""
        struct = rows_of(self.field(table).node)
        assert struct
        return struct

    def rows(self, table: str) -> list[Mapping[str, Any]]:
        """Returns the rows of a table, or the entries of metadata, forged or not."""
        value = self.regions.get(table)
        if isinstance(self.field(table).node, JsonTable):
            return list(plain(value))
        if isinstance(value, Forged):
            return list(value.value)
        if self.is_metadata(table):
            entries = ((key, value.stored(key)) for key in value) if value else ()
            return [{"key": key, "type": entry.type, "value": entry.value} for key, entry in entries]
        return list(value or ())

    def with_row(self, table: str, at: int, row: Mapping[str, Any], seen: Any = None) -> Draft:
        """Returns a draft with a row in place of row `at`, or after the last, and a count to match.

        Args:
            table: the region.
            at: the number of the row.
            row: fields by name; some may be `Forged`.
            seen: the table as other fields see it; by default the rows, or the old metadata.
        """
        declared, rows = unwrapped(self.field(table).declared), self.rows(table)
        if isinstance(self.field(table).node, JsonTable):
            return self.with_json(table, with_json_row(declared, plain(self.regions[table]), at, row))
        rows[at : at + 1] = [row]
        if self.is_metadata(table):
            declared, seen = declared.subcon, plain(self.regions[table]) if seen is None else seen
        else:
            seen = [Record({name: plain(value) for name, value in row.items()}) for row in rows]
        return self.counted(table, len(rows)).replaced({table: Forged(declared, rows, seen)})

    def with_json(self, table: str, rows: JsonRows) -> Draft:
        """Returns a draft with the text of `rows`, and a count to match."""
        return self.counted(table, len(rows.stored)).replaced({table: Forged(construct.GreedyBytes, rows.stored, rows)})

    def counter(self, region: str) -> tuple[str, Field] | None:
        """Returns the field that counts a region, after the name of its own region, or None.

        The name is empty if the field is a region itself.
        """
        node = self.field(region).node
        number = node.count if isinstance(node, List) else node.size if isinstance(node, (Lines, JsonTable)) else None
        if not isinstance(number, Reference) or len(number.names) > 2:
            return None
        if len(number.names) == 1:
            return "", self.field(number.names[0])
        outer = self.field(number.names[0])
        return outer.name, struct_of(outer.node.declared).field(number.names[1])  # type: ignore[union-attr]

    def counted(self, region: str, count: int) -> Draft:
        """Returns a draft in which the field that counts a region is `count`."""
        if (found := self.counter(region)) is None:
            return self
        outer, counter = found
        number = Forged(unwrapped(counter.declared).subcon, count, count)
        changed = {counter.name: number}
        return self.replaced({outer: {**self.regions.get(outer, {}), **changed}} if outer else changed)
