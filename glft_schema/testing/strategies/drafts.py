"""Files on the way to their bytes: regions that may break rules, and the payloads as bytes.

A `Draft` is built without checking the rules, and its fields may be `Forged`: built by another
construct than their own. So it can become a file that no writer would make.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import construct

from glft_schema.codec.context import new_context
from glft_schema.codec.expressions import Reference
from glft_schema.codec.metadata import KeyValues
from glft_schema.codec.records import Record
from glft_schema.codec.structs import Forged, member
from glft_schema.describe.nodes import Lines, List, Schema
from glft_schema.describe.schema import node_of, rows_of
from glft_schema.files.file import File
from glft_schema.formats.format import Format
from glft_schema.tensors.region import TensorData


@cache
def row_struct(field: Any) -> construct.Struct | None:
    """Returns the Struct of the rows of a table, or None if `field` is not a table."""
    rows = rows_of(node_of(field, Schema(""), "table")) if field else None
    return rows.declared if rows else None


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
        """Returns the file."""
        return self.head()[0] + self.payloads

    def having(self, regions: Mapping[str, Any], payloads: bytes | None = None) -> Draft:
        """Returns a draft with these regions, and these payloads if they are given."""
        return replace(self, regions={**self.regions, **regions}, payloads=self.payloads if payloads is None else payloads)

    def table(self, name: str) -> Any:
        """Returns the construct of a region."""
        return member(self.format.struct, name)

    def rows(self, table: str) -> list[Mapping[str, Any]]:
        """Returns the rows of a table, or the entries of metadata."""
        value = self.regions.get(table)
        if isinstance(self.table(table), KeyValues):
            entries = ((key, value.stored(key)) for key in value) if value else ()
            return [{"key": key, "type": entry.type, "value": entry.value} for key, entry in entries]
        return list(value or ())

    def with_rows(self, table: str, rows: list[Mapping[str, Any]], seen: Any = None) -> Draft:
        """Returns a draft with these rows of a table, and a count that is the number of them.

        Args:
            table: the region.
            rows: fields by name; some may be `Forged`.
            seen: the table as other fields see it; by default the rows, or the old metadata.
        """
        field = self.table(table)
        if isinstance(field, KeyValues):
            forged = Forged(field.subcon, rows, self.regions[table] if seen is None else seen)
        else:
            plain = [{name: value.seen if isinstance(value, Forged) else value for name, value in row.items()} for row in rows]
            forged = Forged(field, rows, [Record(row) for row in plain] if seen is None else seen)
        return self.counted(field, len(rows)).having({table: forged})

    def counted(self, table: Any, count: int) -> Draft:
        """Returns a draft in which the field that counts `table`, a construct, says `count`."""
        node = node_of(table, Schema(""), "table")
        number = node.count if isinstance(node, List) else node.size if isinstance(node, Lines) else None
        if not isinstance(number, Reference) or len(number.names) != 2:
            return self
        region, name = number.names
        counter = member(self.table(region), name).subcon
        return self.having({region: {**self.regions.get(region, {}), name: Forged(counter, count, count)}})

    @property
    def data(self) -> TensorData:
        """The construct of the payloads."""
        found = self.table("data")
        assert isinstance(found, TensorData)
        return found
