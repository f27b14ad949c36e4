"""Files before building: regions that may break rules, and the payloads as bytes.

A `Draft` is built without checking rules, and its fields may be `Forged`: built by a construct
other than their own. So it can become a file that no writer would produce. The rules that it breaks
follow from its values, which are known before there are bytes to parse.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import construct

from glft_schema.codec.context import Context, byte_order, new_context
from glft_schema.codec.expressions import Reference
from glft_schema.codec.json_table import JsonRows
from glft_schema.codec.rules import REQUIRED
from glft_schema.codec.structs import Forged, unwrap
from glft_schema.codec.trace import without_root
from glft_schema.describe.nodes import Field, JsonTableNode, LinesNode, ListNode, StructOf
from glft_schema.describe.schema import rows_of, struct_of
from glft_schema.errors import Finding, FormatError
from glft_schema.files.file import File
from glft_schema.formats.format import Format
from glft_schema.storage.source import BytesSource
from glft_schema.tensors.region import PayloadPositions, TensorMap, gaps_between
from glft_schema.testing.strategies.fitting import inner_context
from glft_schema.testing.strategies.json_texts import with_json_row
from glft_schema.testing.strategies.layouts import payload_key


@dataclass
class Region(Forged):
    """A region built from bytes or rows.

    Attributes:
        see: (the file's context, path) -> the value that other fields see. Checks the rules in the
            region that the construct of its field would check.
    """

    _: KW_ONLY
    see: Callable[[Context, str], Any]

    def build(self, stream: Any, context: Context, path: str) -> Any:
        """Writes the region, and returns the value that other fields see."""
        super().build(stream, context, path)
        return self.see(context, path)


def plain(value: Any) -> Any:
    """Returns a value as other fields see it."""
    return value.seen if isinstance(value, Forged) else value


class Head(NamedTuple):
    """The part of a file before its payloads.

    Attributes:
        stored: its bytes.
        regions: the context with its regions.
        positions: the offset of the first byte of each field, by path.
    """

    stored: bytes
    regions: Any
    positions: Mapping[str, int]


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

    @cached_property
    def head(self) -> Head:
        """The part before the payloads, as it is built."""
        stream, params = io.BytesIO(), new_context(False, forging=True, positions={})
        regions = self.format.head._build(dict(self.regions), stream, params, "(building)")
        return Head(stream.getvalue(), regions, params.positions)

    def build(self) -> bytes:
        """Returns the bytes of the file."""
        return self.head.stored + self.payloads

    def start(self, path: str) -> int:
        """Returns the offset of the first byte of a field, or of the payloads."""
        return len(self.head.stored) if path == "data" else self.head.positions[path]

    def broken_rules(self) -> list[Finding] | None:
        """Returns findings for the rules that the values break, up to the first `REQUIRED` one.

        Returns None for values that cannot be stored, and for payloads that overlap or do not fit
        into the region.
        """
        params = new_context(False, forging=True, positions={}, findings=[], trace=None)
        data = Region(construct.GreedyBytes, self.payloads, None, see=self._tensors)
        try:
            self.format.struct._build({**self.regions, "data": data}, io.BytesIO(), params, "(building)")
        except FormatError as error:
            required = Finding(error.rule or "", (REQUIRED,), without_root(error.path), error.problem)
            return [*params.findings, required] if error.rule else None
        except (construct.ConstructError, TypeError, ValueError, ArithmeticError):
            return None
        return params.findings

    def _tensors(self, context: Context, path: str) -> TensorMap:
        """Returns the tensors of the payloads. An unknown type extends to the next offset."""
        rows, size = context[self.format.table], len(self.payloads)
        ends = sorted({row.offset for row in rows} | {size})
        extents = []
        for row in rows:
            end = next((end for end in ends if end > row.offset), row.offset)
            extents.append(row.dtype.nbytes(row.shape) if row.dtype.is_known else end - row.offset)
        spans = {payload_key(row): (row.offset, nbytes) for row, nbytes in zip(rows, extents, strict=True)}
        gaps = gaps_between(sorted(spans.values()), size)
        if gaps is None or ends[-1] > size:
            raise FormatError("expected payloads without overlap, within the region", path)
        return TensorMap(rows, PayloadPositions(extents, gaps), BytesSource(self.payloads), 0, size, byte_order(context))

    def replace(self, regions: Mapping[str, Any], payloads: bytes | None = None) -> Draft:
        """Returns a draft with these regions, and these payloads if they are given."""
        return replace(self, regions={**self.regions, **regions}, payloads=self.payloads if payloads is None else payloads)

    def field(self, region: str) -> Field:
        """Returns the declared field of a region."""
        return struct_of(self.format.struct).field(region)

    def is_metadata(self, region: str) -> bool:
        """Tells whether a region has typed key-values."""
        node = self.field(region).node
        return isinstance(node, ListNode) and node.key is not None

    def row_struct(self, table: str) -> StructOf:
        """Returns the struct of the rows of a table."""
        struct = rows_of(self.field(table).node)
        assert struct
        return struct

    def rows(self, table: str) -> list[Mapping[str, Any]]:
        """Returns the rows of a table, or the entries of metadata, forged or not."""
        value = self.regions.get(table)
        if isinstance(self.field(table).node, JsonTableNode):
            return list(plain(value))
        if isinstance(value, Forged):
            return list(value.value)
        if self.is_metadata(table):
            return value.rows() if value else []
        return list(value or ())

    def with_row(self, table: str, at: int, row: Mapping[str, Any], seen: Any = None) -> Draft:
        """Returns a draft with a row in place of row `at`, or after the last.

        Args:
            table: the region.
            at: the number of the row.
            row: fields by name; some may be `Forged`.
            seen: metadata as other fields see it; by default the old metadata.
        """
        field, rows = self.field(table), self.rows(table)
        declared = unwrap(field.declared)
        if isinstance(field.node, JsonTableNode):
            return self.with_json(table, with_json_row(declared, plain(self.regions[table]), at, row), at)
        rows[at : at + 1] = [row]
        if not self.is_metadata(table):
            return self.replace({table: rows})
        seen = plain(self.regions[table]) if seen is None else seen

        def see(context: Context, path: str) -> Any:
            if "findings" in context._params:
                declared.once.check_rows([{"key": plain(row["key"])} for row in rows], context, path)
            return seen

        region = Region(declared.subcon, rows, seen, see=see)
        return self.with_count(table, len(rows)).replace({table: region})

    def with_json(self, table: str, rows: JsonRows, changed: int | None = None) -> Draft:
        """Returns a draft with the text of `rows`, and a count to match.

        Args:
            table: the region.
            rows: the rows.
            changed: the number of the row whose fields get positions.
        """

        def see(context: Context, path: str) -> JsonRows:
            if changed is not None:
                starts = {f"{table} -> {changed} -> {name}": start for name, (start, _) in rows.spans(changed).items()}
                context._params.positions.update(starts)
            if "findings" in context._params:
                for i, row in enumerate(rows):
                    for rule in self.row_struct(table).rules:
                        rule.check(inner_context(context, row=row), f"{path} -> {i}")
            return rows

        region = Region(construct.GreedyBytes, rows.stored, rows, see=see)
        return self.with_count(table, len(rows.stored)).replace({table: region})

    def counter(self, region: str) -> tuple[str, ...]:
        """Returns the path of the field that counts a region as a tuple of names, or ``()``."""
        node = self.field(region).node
        number = (
            node.count if isinstance(node, ListNode) else node.size if isinstance(node, (LinesNode, JsonTableNode)) else None
        )
        return number.names if isinstance(number, Reference) and len(number.names) <= 2 else ()

    def with_count(self, region: str, count: int) -> Draft:
        """Returns a draft in which the field that counts a region is `count`."""
        match self.counter(region):
            case (name,):
                return self.replace({name: count})
            case (outer, name):
                return self.replace({outer: {**self.regions.get(outer, {}), name: count}})
        return self
