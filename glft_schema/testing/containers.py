"""Whole files: valid by construction, as bytes, and in parts that may be changed."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hypothesis import strategies as st

from glft_schema.codec.context import Context
from glft_schema.codec.expressions import Reference
from glft_schema.codec.json_table import JsonRows
from glft_schema.codec.json_text import decode
from glft_schema.codec.rules import REQUIRED, rule_sets
from glft_schema.codec.structs import Raw, unwrap
from glft_schema.codec.trace import STEP, without_root
from glft_schema.describe.byte_range import select
from glft_schema.describe.nodes import Field, JsonTableNode, ListNode, PaddingNode, RefNode, StructOf
from glft_schema.describe.schema import rows_of, struct_of
from glft_schema.errors import Finding, FormatError, SchemeError, quote
from glft_schema.files.file import File
from glft_schema.formats.format import Format
from glft_schema.formats.registry import format_named
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.region import TensorMap
from glft_schema.testing.fitting import is_wanted, value_so_far
from glft_schema.testing.structs import MAX_BYTES, Knobs, alignment_of, drawing_context
from glft_schema.testing.values import values_of

MAX_TENSORS = 6
TRAILING = 3  # limit for the bytes after the last payload
SPACES = (b"", b"", b" ", b"\n\t", b"\r\n  ")
OTHER_VALUES = (b"null", b"-0", b"1.5e3", b'"\\u00e4"', b"[[], {}]", b'{"a": {"a": true}}')  # of unknown keys
ROOT = "(building)"  # of the paths of a draft's fields


def containers(
    format: str | Format,
    *,
    rules: str | Iterable[str] = (),
    types: Iterable[str] | None = None,
    max_tensors: int = MAX_TENSORS,
    max_bytes: int = MAX_BYTES,
) -> st.SearchStrategy[bytes]:
    """Returns a strategy of valid files as bytes; map it with ``Container.parse`` to open them.

    The files vary in everything that the rules allow: versions, byte orders, types, nested arrays,
    alignments, order of payloads, gaps, tied tensors and trailing bytes. Payloads are arbitrary
    bits, including NaN and infinite scales.

    Args:
        format: a `Format` or its name, such as ``gguf``.
        rules: the rule sets to satisfy, such as ``spec``, in addition to the required rules.
        types: the names of tensor types; by default all types of the format, and unknown ones.
        max_tensors: the maximum number of tensors in a file.
        max_bytes: the maximum total size of the payloads in bytes.

    Raises:
        OptionError: for an unknown format or rule set.
        SchemeError: for an unknown type.
    """
    declared = format if isinstance(format, Format) else format_named(format)
    allowed = None if types is None else tuple(_type(declared, name) for name in types)
    knobs = Knobs(rule_sets(rules), allowed, max_bytes, {declared.table: max_tensors})
    return _files(declared, knobs)


def _type(format: Format, name: str) -> TensorType:
    if isinstance(name, str) and name.lower() in format.types:
        return format.types[name.lower()]
    raise SchemeError(f"expected one of {', '.join(type_.scheme for type_ in format.types)}, found {quote(name)}")


@st.composite
def _files(draw: st.DrawFn, format: Format, knobs: Knobs) -> bytes:
    """Draws regions and payloads. Bytes without a field are arbitrary, unless rules guard them."""
    regions = draw(values_of(format.struct, drawing_context(knobs)))
    draft = Draft(format, {name: value for name, value in regions.items() if name != "data"})
    if not format.has_tensors:
        return draft.build()
    built = draft.built
    whole = struct_of(format.struct)
    if isinstance(whole.field(format.table).node, JsonTableNode):
        rows = built[format.table]
        draft = draft.with_text(draw(respell(rows, is_plain=bool(knobs.rules))))
    guarded = {check.field for check in whole.rules if is_wanted(check, knobs.rules)}
    payloads = _region(draw, built[format.table], regions.data, "data" not in guarded)
    if "data" in guarded or draw(st.booleans()):
        payloads += bytes(-len(payloads) % alignment_of(whole.field("data").node, built))
    else:
        payloads += draw(st.binary(max_size=TRAILING))
    for part in whole.fields:
        if isinstance(padding := part.node, PaddingNode) and part.name not in guarded and draw(st.booleans()):
            nbytes = len(built[part.name])
            may_lack = not payloads and padding.may_lack and padding.may_lack(built)
            stored = draw(st.binary(min_size=0 if may_lack else nbytes, max_size=nbytes))
            draft = draft.replace({part.name: stored})
    return draft.head[0] + payloads


def _region(draw: st.DrawFn, rows: Sequence[Any], payloads: dict[str, bytes], any_bytes: bool) -> bytes:
    """Returns the payloads, each at its row's offset, with gaps of zeros or any bytes."""
    region = bytearray()
    for row in sorted(rows, key=lambda row: (row.offset, len(payloads[row.name]))):
        gap = row.offset - len(region)
        if gap > 0:
            region += draw(st.binary(min_size=gap, max_size=gap)) if any_bytes and draw(st.booleans()) else bytes(gap)
        if gap >= 0:
            region += payloads[row.name]
    return bytes(region)


# Files in parts


@dataclass(frozen=True)
class Draft:
    """A file in parts, built without checking its rules.

    The rules that it breaks follow from its values, without a reader.

    Attributes:
        format: its format.
        regions: the regions before the payloads, by name; these or fields in them may be `Raw`.
        payloads: the last region, as bytes.
        fault: the byte that must be reported; None for the first byte of the reported field.
    """

    format: Format
    regions: Mapping[str, Any]
    payloads: bytes = b""
    fault: int | None = None

    @classmethod
    def of(cls, file: File) -> Draft:
        """Returns the parts of a file."""
        regions = {name: value for name, value in file.regions.items() if name != "data"}
        data = file.tensors
        assert isinstance(data, TensorMap)
        return cls(file.format, regions, bytes(file.source.view(data.start, data.size)))

    @cached_property
    def head(self) -> tuple[bytes, Context]:
        """The part before the payloads as it is built: its bytes, and the regions."""
        return self.format.build(self.regions, forging=True, positions={})

    @property
    def built(self) -> Context:
        """The regions before the payloads, as they are built."""
        return self.head[1]

    def build(self) -> bytes:
        """Returns the bytes of the file."""
        return self.head[0] + self.payloads

    def start(self, path: str) -> int:
        """Returns the offset of the first byte of a field, or of the payloads."""
        if path == "data":
            return len(self.head[0])
        region, *parts = path.split(STEP)
        rows, positions = self.built[region], self.built._params.positions
        if parts and isinstance(rows, JsonRows):  # as built, without irregularities
            return positions[region][0] + rows.spans(rows.entry(int(parts[0])))[parts[1]][0]
        return positions[path][0]

    def broken_rules(self) -> list[Finding] | None:
        """Returns findings for the rules that the values break, up to the first `REQUIRED` one.

        Returns None for values that cannot be stored, and for payloads that overlap or do not fit
        into the region.
        """
        findings: list[Finding] = []
        try:
            context = self.format.build(self.regions, forging=True, findings=findings, trace=None)[1]
            if self.format.has_tensors:
                data = self.declared("data")
                context["data"] = data._parse(io.BytesIO(self.payloads), context, f"{ROOT} -> data")
            for check in self.format.struct.subcons[len(self.format.head.subcons) + 1 :]:
                check._build(None, None, context, ROOT)
        except FormatError as error:
            required = Finding(error.rule or "", (REQUIRED,), without_root(error.path), error.problem)
            return [*findings, required] if error.rule else None
        except (TypeError, ValueError, ArithmeticError):
            return None
        return findings

    # Facts of the regions

    def declared(self, region: str) -> Any:
        """Returns the construct of a region."""
        return unwrap(self.field(region).declared)

    def field(self, region: str) -> Field:
        """Returns the declared field of a region, with the node that it has in this file."""
        field = struct_of(self.format.struct).field(region)
        return replace(field, node=select(field.node, self.built))

    def is_metadata(self, region: str) -> bool:
        """Tells whether a region has typed key-values."""
        node = self.field(region).node
        return isinstance(node, ListNode) and node.key is not None

    def struct_in(self, region: str) -> StructOf | None:
        """Returns the struct of a region or of its rows; None if it has neither in this file."""
        node = self.field(region).node
        return struct_of(node.declared) if isinstance(node, RefNode) else rows_of(node)

    def rows(self, table: str) -> list[Mapping[str, Any]]:
        """Returns the rows of a table, or the entries of metadata."""
        value = self.regions.get(table)
        if isinstance(value, Raw):
            return list(value.stored)
        return value.rows() if value and self.is_metadata(table) else list(value or ())

    def counter(self, region: str) -> tuple[str, ...]:
        """Returns the path of the field that counts a region as a tuple of names, or ``()``."""
        node = self.field(region).node
        number = getattr(node, "count", None) or getattr(node, "size", None)
        return number.names if isinstance(number, Reference) and len(number.names) <= 2 else ()

    @property
    def counts_fit(self) -> bool:
        """Whether each table has as many rows as other fields say."""
        nodes = ((name, self.field(name).node) for name in self.format.regions)
        return all(
            value_so_far(self.built, node.count) in (None, len(self.rows(name)))
            for name, node in nodes
            if isinstance(node, ListNode) and rows_of(node)
        )

    # Changes

    def replace(self, regions: Mapping[str, Any], payloads: bytes | None = None) -> Draft:
        """Returns a draft with these regions, and these payloads if they are given."""
        return replace(self, regions={**self.regions, **regions}, payloads=self.payloads if payloads is None else payloads)

    def with_row(self, table: str, at: int, row: Mapping[str, Any], seen: Any = None) -> Draft:
        """Returns a draft with a row in place of row `at`, or after the last.

        Args:
            table: the region.
            at: the number of the row.
            row: fields by name; some may be `Raw`.
            seen: metadata as other fields see it; by default the old metadata.
        """
        rows, old = self.rows(table), self.regions.get(table)
        rows[at : at + 1] = [row]
        if self.is_metadata(table):
            old = old.seen if isinstance(old, Raw) else old
            return self.with_count(table, len(rows)).replace({table: Raw(rows, old if seen is None else seen)})
        if isinstance(self.field(table).node, JsonTableNode):  # the text is made of the rows, not of the old text
            texts = self.declared(table).metadata
            return self.replace({table: rows, texts: dict(self.regions[texts])})
        return self.with_count(table, len(rows)).replace({table: rows})

    def with_text(self, text: bytes) -> Draft:
        """Returns a draft with another text of the rows of a JSON table."""
        old = self.built[self.format.table]
        rows = JsonRows(old.table, text, old.start)
        for row in old:
            rows.add(row)
        rows.reserved = old.reserved
        return self.replace({self.format.table: rows})

    def with_count(self, region: str, count: int) -> Draft:
        """Returns a draft in which the field that counts a region is `count`."""
        match self.counter(region):
            case (name,):
                return self.replace({name: count})
            case (outer, name):
                return self.replace({outer: {**self.regions.get(outer, {}), name: count}})
        return self


# JSON tables: equivalent spellings of a text


@st.composite
def respell(draw: st.DrawFn, rows: JsonRows, is_plain: bool) -> bytes:
    """Draws another text with the same rows and metadata.

    Args:
        draw: the draw function of a composite strategy.
        rows: the rows, as built.
        is_plain: whether only spaces, escapes and the order of keys may differ. Otherwise the text
            may also have duplicate entries and keys, unknown keys, and entries in other forms.
    """
    space, is_ascii = draw(st.sampled_from(SPACES)), draw(st.booleans())

    def spell(value: Any) -> bytes:
        match value:
            case bytes():
                return value
            case tuple():
                inner = (b",%s" % space).join(spell(key) + space + b":" + spell(part) for key, part in value)
                return b"{%s%s}" % (inner, space)
            case list():
                return b"[%s]" % (b"," + space).join(map(spell, value))
        return json.dumps(value, ensure_ascii=is_ascii).encode()

    members = [(name, _reorder(draw, value, rows.table.keys)) for name, value in decode(rows.stored)]
    if not is_plain:
        members = list(_irregular(draw, members, rows))
    after = b" " * draw(st.integers(0, 9)) if is_plain else draw(st.sampled_from([b"", b" ", b"\n", b" \t "]))
    return (b"" if is_plain else space) + spell(tuple(members)) + after


def _reorder(draw: st.DrawFn, value: Any, keys: tuple[str, ...]) -> Any:
    is_row = isinstance(value, tuple) and tuple(key for key, _ in value) == keys
    return tuple(draw(st.permutations(value))) if is_row and draw(st.booleans()) else value


def _irregular(draw: st.DrawFn, members: list[tuple[str, Any]], rows: JsonRows) -> Iterator[tuple[str, Any]]:
    """Yields members with irregularities that leave rows and metadata as they are."""
    other = draw(st.sampled_from(OTHER_VALUES))
    if not any(name == rows.table.reserved for name, _ in members) and draw(st.booleans()):
        yield rows.table.reserved, None
    for name, value in members:
        match draw(st.integers(0, 7)):
            case 0 if name != rows.table.reserved:
                yield name, value  # replaced by the same entry
            case 0:
                yield name, (("a", "b"),)
            case 1 if value:
                value = (value[0], *value)
            case 2 if name != rows.table.reserved:
                value = (*value, ("?", other))
            case 3 if name != rows.table.reserved:
                value = [dict(value)[key] for key in rows.table.keys]
            case 4 if name != rows.table.reserved:
                value = tuple((key, ((part, None),) if isinstance(part, str) else part) for key, part in value)
        yield name, value
