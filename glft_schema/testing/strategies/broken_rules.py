"""Files with one broken rule, made by changing a field, a row or a region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from hypothesis import strategies as st

from glft_schema.codec.context import Context, byte_order
from glft_schema.codec.expressions import equality, read
from glft_schema.codec.json_table import JsonRule
from glft_schema.codec.metadata_rules import HasKey
from glft_schema.codec.rules import REQUIRED, Check, Rule
from glft_schema.codec.structs import unwrap
from glft_schema.codec.tables import NamesOnce
from glft_schema.codec.typed_values import array_of, with_type
from glft_schema.describe.nodes import (
    ByteOrderNode,
    CodeNode,
    JsonTextsNode,
    Node,
    PaddingNode,
    PayloadsNode,
    StructOf,
    SwitchNode,
    TextNode,
)
from glft_schema.describe.schema import struct_of
from glft_schema.errors import Finding, FormatError
from glft_schema.files.file import File
from glft_schema.formats.registry import MAGIC
from glft_schema.storage.streams import START
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.engine.chunks import matrix
from glft_schema.tensors.region import TensorFits
from glft_schema.testing.strategies.broken_json import BrokenText, TextBreaker
from glft_schema.testing.strategies.constructs import values_of
from glft_schema.testing.strategies.corruption import Corruption
from glft_schema.testing.strategies.drafts import Draft, plain
from glft_schema.testing.strategies.fitting import EXAMPLES, candidates, derive, holds, inner_context, resize, with_value
from glft_schema.testing.strategies.json_texts import with_text
from glft_schema.testing.strategies.layouts import alignment_of
from glft_schema.testing.strategies.lengths import fits
from glft_schema.testing.strategies.rule_locations import RuleLocation
from glft_schema.testing.strategies.structs import drawing_context

SHARED = ("dims", "dtype", "offset")  # fields that are equal in rows that share a payload
HUGE = 1 << 31  # three such dims overflow 64 bits


class Attempt(NamedTuple):
    """A draft with an edge value at the field `path`.

    Attributes:
        draft: the file.
        path: the field that must be reported.
        offset: the byte that must be reported; None for the first byte of the field.
    """

    draft: Draft
    path: str
    offset: int | None = None


class Breaker:
    """Breaks rules in one file.

    Tries edge values. To find the rules that a value breaks, evaluates the predicates of all rules
    on the values of the draft, without a reader.

    Args:
        draw: the draw function of a composite strategy.
        file: a file that every reader accepts.
    """

    def __init__(self, draw: st.DrawFn, file: File) -> None:
        self.draw = draw
        self.file = file
        self.table = file.format.table
        self.whole = struct_of(file.format.struct)
        self.draft = Draft.of(file)
        regions = self.draft.head.regions
        params = drawing_context(byte_order=byte_order(regions))
        self.root = Context({**regions, "_params": params, "_declared": file.format.struct})
        self.alignment = alignment_of(self.whole.field("data").node, self.root)

    def break_rule(self, location: RuleLocation) -> Corruption | None:
        """Returns the file with a rule broken, or None if that is impossible in this file."""
        check, before = location.check, self.draft.broken_rules() or []
        rule = "its rule" if location.type is None else f"the rule of {location.type}"
        sentence = f"{check.field or 'the file'} breaks {rule}: {check.expected or check.id}"
        for draft, path, offset in self._attempts(location):
            expected = _expectation(location, path, before, draft.broken_rules())
            if expected is None or is_unchanged(self.file, stored := draft.build()):
                continue
            if not self.file.format.claims(stored[:START]):
                return Corruption(stored, sentence, MAGIC, 0, check.id, FormatError)
            return Corruption(stored, sentence, path, draft.start(path) if offset is None else offset, check.id, **expected)
        return None

    def _attempts(self, location: RuleLocation) -> Iterator[Attempt]:
        if isinstance(location.check, NamesOnce):
            return self._same_name(location)
        if isinstance(location.check, JsonRule):
            return self._irregular(location.check)
        if location.of_rows:
            return self._entries(location) if self.draft.is_metadata(location.region) else self._rows(location)
        return self._fields(location) if location.region else self._file(location)

    # Values of fields

    def context(self, struct: StructOf, row: Mapping[str, Any]) -> Any:
        """Returns the context of a Struct in the file."""
        context = inner_context(self.root, struct.declared, {name: plain(value) for name, value in row.items()})
        derive(context, struct.declared)
        return context

    def _patches(self, location: RuleLocation, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the row with edge values for which the rule's predicate does not hold."""
        check, struct = location.check, location.struct
        switches = {name for name, *_ in typed_fields(struct)}
        others = [rule for rule in struct.rules if rule.is_required and not check.is_required]
        for patch in self._near(check, struct, row):
            changed = {**row, **patch}
            context = self.context(struct, changed)
            can_be_built = all(fits(struct.field(name), changed[name], context) for name in {*patch, *switches})
            if can_be_built and not holds(check, context) and all(holds(other, context) for other in others):
                yield changed

    def _near(self, check: Check, struct: StructOf, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields other values of the guarded field, with other fields that must change with it."""
        field, required = check.field, _required_values(check)
        context = self.context(struct, {**row, **required})
        values = [*candidates(check, row[field], context), *_edges(struct.field(field).node), *check.broken_by]
        yield from ({**required, field: value} for value in values)
        for name, code, type_, node in typed_fields(struct):
            if field in (name, code):
                examples = [*EXAMPLES, *([array_of(type_, ())] if node.level else [])]
                typed = [*values, *examples] if field == name else examples
                yield from ({**required, code: type_, name: value} for value in typed)

    def _fields(self, location: RuleLocation) -> Iterator[Attempt]:
        """Breaks a rule of a region that is one Struct."""
        region, field = location.region, location.check.field
        for row in self._patches(location, dict(self.draft.regions[region])):
            yield Attempt(self.draft.replace({region: row}), f"{region} -> {field}")

    # Typed metadata

    def _entries(self, location: RuleLocation) -> Iterator[Attempt]:
        """Breaks a rule of an entry, which is added, or replaces the one with the same key."""
        region, field = location.region, location.check.field
        rows, metadata = self.draft.rows(region), self.draft.regions[region]
        for row in self._patches(location, self.new_row(region)):
            at = next((i for i, other in enumerate(rows) if other["key"] == row["key"]), len(rows))
            draft, seen = self.draft, None
            if not location.check.is_required:
                known = {other: metadata.stored_value(other) for other in metadata}
                seen = metadata.replace({**known, row["key"]: with_type(row["type"], row["value"])})
                draft = self._realign(region, seen)
            yield Attempt(draft.with_row(region, at, row, seen), f"{region} -> {at} -> {field}")

    def _realign(self, region: str, seen: Any) -> Draft:
        """Returns the draft, with its payloads moved if other metadata changes the alignment."""
        alignment = alignment_of(self.whole.field("data").node, with_value(self.root, region, seen))
        if alignment == self.alignment:
            return self.draft
        rows, payloads = [], b""
        for row in self.draft.rows(self.table):
            rows.append({**row, "offset": len(payloads)})
            payloads += self.file.tensors[row["name"]].raw
            payloads += bytes(-len(payloads) % alignment)
        return self.draft.replace({self.table: rows}, payloads)

    # Rows

    def new_row(self, table: str) -> dict[str, Any]:
        """Draws a row whose first field, its name or key, is unique."""
        struct = self.draft.row_struct(table)
        row, name = dict(self.draw(values_of(struct.declared, self.root))), struct.fields[0].name
        taken = {row[name] for row in self.draft.rows(table)}
        return {**row, name: next(free for n in range(len(taken) + 1) if (free := f"x{n}") not in taken)}

    def _append(
        self, gap: int = 0, quantized: bool = False, empty: bool = True, padded: bool = True
    ) -> tuple[Draft, int, list[Mapping[str, Any]]]:
        """Returns a draft with a tensor after all others, the number of its row, and all rows."""
        format, alignment = self.file.format, self.alignment
        types = [type_ for type_ in format.types if not (quantized and type_.exact)] or list(format.types)
        shapes = [[0]] if empty else [[1], *([1, type_.least_row] for type_ in types[:1])]
        type_, shape = next((type_, shape) for type_ in types for shape in shapes if type_.refusal(shape) is None)
        end = max((tensor.offset + tensor.nbytes for tensor in self.file.tensors.values()), default=0)
        offset = end + -end % alignment + gap
        payloads = self.draft.payloads[:offset].ljust(offset, b"\0") + bytes(type_.nbytes(shape))
        payloads += bytes(-len(payloads) % alignment) if padded else b""
        row = {**self.new_row(self.table), "dims": list(format.dims_of(shape)), "dtype": type_, "offset": offset}
        at = len(self.draft.rows(self.table))
        draft = self.draft.replace({}, payloads).with_row(self.table, at, row)
        return draft, at, draft.rows(self.table)

    def _rows(self, location: RuleLocation) -> Iterator[Attempt]:
        """Breaks a rule of an existing row, or of an added row with an empty payload."""
        table, field = self.table, "dims" if location.type is not None else location.check.field
        drafts = []
        if (rows := self.draft.rows(table)) and field not in SHARED and not location.struct.field(field).is_count:
            drafts.append((self.draft, self.draw(st.integers(0, len(rows) - 1)), rows))
        drafts += [self._append(gap) for gap in ((1, 2, 3) if field == "offset" else (0,))]
        for draft, at, rows in drafts:
            for row in self._edges_of_row(location, field, rows[at]):
                yield Attempt(draft.with_row(table, at, row), f"{table} -> {at} -> {field}")

    def _edges_of_row(self, location: RuleLocation, field: str, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields a row with edge values of a field."""
        if field == "offset":
            yield dict(row)  # after a gap
        elif location.type is not None or isinstance(location.check, TensorFits):
            type_ = location.type or row["dtype"]
            shapes = [[HUGE] * 3] if location.type is None else _refused_shapes(location.type, location.check)
            yield from ({**row, "dtype": type_, "dims": list(self.file.format.dims_of(shape))} for shape in shapes)
        elif location.struct.field(field).is_count:
            yield from ({**row, field: count} for step in (1, -1) if (count := row["offset"] + step) >= 0)
        else:
            yield from self._patches(location, row)

    # JSON texts

    def json(self) -> tuple[Draft, TextBreaker]:
        """Returns a draft with one more row, and the breaker of its table's text."""
        draft, declared = self._append()[0], unwrap(self.draft.field(self.table).declared)
        return draft, TextBreaker(plain(draft.regions[self.table]), self.draft.row_struct(self.table), declared.fields)

    def with_broken(self, draft: Draft, broken: BrokenText) -> tuple[Draft, str, int | None]:
        """Returns a draft with a broken text, and the path and offset that must be reported."""
        rows = with_text(plain(draft.regions[self.table]), broken.stored)
        texts = (part.name for part in self.whole.fields if isinstance(part.node, JsonTextsNode))
        path = " -> ".join((next(texts) if broken.of_texts else self.table, *broken.path))
        return draft.with_json(self.table, rows), path, None if broken.at is None else rows.start + broken.at

    def _irregular(self, check: JsonRule) -> Iterator[Attempt]:
        draft, breaker = self.json()
        changed, path, offset = self.with_broken(draft, breaker.irregular(check.kind))
        yield Attempt(changed, path, offset)

    def _same_name(self, location: RuleLocation) -> Iterator[Attempt]:
        """Adds a row with the name of the first one."""
        table, draft = location.region or location.check.field, self.draft
        if not draft.rows(table):
            draft = draft.with_row(table, 0, self.new_row(table))
        rows, name = draft.rows(table), draft.row_struct(table).fields[0].name
        yield Attempt(draft.with_row(table, len(rows), rows[0]), f"{table} -> {len(rows)} -> {name}")

    # The whole file

    def _file(self, location: RuleLocation) -> Iterator[Attempt]:
        """Breaks a rule on a whole region."""
        name, node = location.check.field, self.draft.field(location.check.field).node
        if isinstance(node, PaddingNode):
            yield from self._padding(name)
        elif isinstance(node, PayloadsNode):
            paddings = [part.name for part in self.whole.fields if isinstance(part.node, PaddingNode)]
            whole = {} if self.root[self.table] else dict.fromkeys(paddings)  # without rows, padding may lack
            longer = self.draft.replace(whole, self.draft.payloads + b"\1")
            for draft in (longer, self._append(empty=False, padded=False)[0]):
                yield Attempt(draft, name)
        elif isinstance(location.check, Rule) and isinstance(location.check.must, HasKey):
            left = self.draft.regions[name]
            left = left.without(location.check.must.key) if location.check.must.key in left else left
            for draft in (self.draft, self._append(quantized=True, empty=False)[0]):
                yield Attempt(draft.replace({name: left}), name)
        elif name == self.table:
            for empty in (True, False):
                draft, at, _ = self._append(gap=self.alignment, empty=empty)
                yield Attempt(draft, f"{name} -> {at} -> offset")

    def _padding(self, name: str) -> Iterator[Attempt]:
        """Sets a byte of padding, after adding a metadata entry if there is no padding."""
        drafts = [self.draft]
        for region in filter(self.draft.is_metadata, self.draft.regions):
            entry, at = self.new_row(region), len(self.draft.rows(region))
            for size in range(2, 8):
                drafts.append(self.draft.with_row(region, at, {**entry, "key": resize(entry["key"], size)}))
        for draft in drafts:
            if nbytes := len(draft.replace({name: None}).head.regions[name]):
                yield Attempt(draft.replace({name: b"\1" + bytes(nbytes - 1)}), name)
                return


def is_unchanged(file: File, stored: bytes) -> bool:
    """Tells whether `stored` equals the bytes of a file."""
    return stored == bytes(file.source.view(0, file.source.size))


def _expectation(
    location: RuleLocation, path: str, before: list[Finding], after: list[Finding] | None
) -> dict[str, Any] | None:
    """Returns the expected error or findings if the only newly broken rule is that at `path`."""
    check = location.check
    required = [(found.rule, found.path) for found in after or () if REQUIRED in found.sets]
    if after is None:
        return None
    if check.is_required:
        reported = check.id
        if location.type is not None:
            reported = next(rule.id for rule in location.struct.rules if isinstance(rule, TensorFits))
        return {"error": check.error, "reported": reported} if required == [(reported, path)] else None
    for sets in (check.sets, *((name,) for name in check.sets)):
        old, found = ([(rule.rule, rule.path) for rule in of if {*sets} & {*rule.sets}] for of in (before, after))
        if not required and [new for new in found if new not in old] == [(check.id, path)]:
            return {"sets": sets, "findings": ((check.id, path), *(finding for finding in old if finding in found))}
    return None


def can_be_broken(location: RuleLocation) -> bool:
    """Tells whether values that break a rule follow from its predicate, condition or class."""
    check = location.check
    if location.type is not None or not isinstance(check, Rule):
        return True
    field = location.struct.field(check.field)
    if field.is_count:
        return location.of_rows  # elsewhere, the file's size would have to change, too
    is_known = check.broken_by or isinstance(check.must, HasKey) or read(check.condition) is not None
    return bool(is_known or isinstance(field.node, (PaddingNode, PayloadsNode)) or _edges(field.node))


def _required_values(check: Check) -> dict[str, Any]:
    """Returns field values that make a check apply, as far as they are known."""
    if check.example:
        return {"key": check.example}
    equal = equality(check.when) if isinstance(check, Rule) else None
    return dict([equal]) if equal and "." not in equal[0] else {}  # not of another Struct


def typed_fields(struct: StructOf) -> Iterator[tuple[str, str, Any, Node]]:
    """Yields fields with a `SwitchNode`: name, the field that selects, its value, and the node."""
    tables: dict[str, Any] = {field.name: field.node.table for field in struct.fields if isinstance(field.node, CodeNode)}
    for field in struct.fields:
        if isinstance(switch := field.node, SwitchNode):
            values = tables.get(str(switch.on), {case.code: case.code for case in switch.cases})
            yield from ((field.name, str(switch.on), values[case.code], case.node) for case in switch.cases)


def _refused_shapes(type_: TensorType, check: Check) -> Iterator[list[int]]:
    """Yields shapes that break a rule of a type, and no rule before it."""
    least, rules = type_.least_row, struct_of(type_.payload).rules
    for shape in ([], [1], [least + 1], [1, least + 1], [2, least + 1], [0, least], [1, 0]):
        out, columns = matrix(shape)
        context = drawing_context(rules=(), **{"dims": shape, "out": out, "in": columns})
        if all(holds(rule, context) for rule in rules[: rules.index(check)]) and not holds(check, context):
            yield shape


def _edges(node: Node) -> list[Any]:
    """Returns values of a node that rules may forbid."""
    match node:
        case TextNode():
            return ["", " "] if node.is_strict else ["", " ", "\udcff"]
        case ByteOrderNode():
            return list(node.orders)
        case CodeNode(table=table):
            unknown = (table[code] for code in range(256) if table.unknown and not table[code].is_known)
            return [*islice(unknown, 1), *table]
    return []
