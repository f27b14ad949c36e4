"""Files with one broken rule, by another value of a field, row or region."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import construct
from hypothesis import strategies as st

from glft_schema.codec.context import Context, byte_order
from glft_schema.codec.expressions import equality, read
from glft_schema.codec.json_table import JsonRule
from glft_schema.codec.metadata_rules import HasKey
from glft_schema.codec.records import Record
from glft_schema.codec.rules import REQUIRED, Check, Rule
from glft_schema.codec.structs import Forged, unwrapped
from glft_schema.codec.tables import NamesOnce
from glft_schema.codec.typed_values import Array, StoredValue
from glft_schema.describe.nodes import ByteOrder, Code, Field, JsonTexts, Node, Padding, Payloads, StructOf, Switch, Text
from glft_schema.describe.schema import struct_of
from glft_schema.errors import FormatError
from glft_schema.files.container import Container
from glft_schema.files.file import File
from glft_schema.files.parsing import check_rules
from glft_schema.formats.registry import MAGIC
from glft_schema.storage.streams import START
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.engine.chunks import matrix
from glft_schema.tensors.region import TensorFits
from glft_schema.testing.strategies.broken_json import BrokenText, TextBreaker
from glft_schema.testing.strategies.constructs import values_of
from glft_schema.testing.strategies.corruption import Corruption
from glft_schema.testing.strategies.drafts import Draft, forged, plain
from glft_schema.testing.strategies.fitting import EXAMPLES, candidates, derive, holds, resized, value_in
from glft_schema.testing.strategies.json_texts import with_text
from glft_schema.testing.strategies.layouts import size_of
from glft_schema.testing.strategies.lengths import fits
from glft_schema.testing.strategies.rule_locations import RuleLocation
from glft_schema.testing.strategies.structs import drawing_context

SHARED = ("dims", "dtype", "offset")  # fields that are equal in rows that share a payload
HUGE = 1 << 31  # three such dims overflow 64 bits


@dataclass(frozen=True)
class Attempt:
    """A draft that breaks a rule.

    Attributes:
        draft: the file.
        path: the field that must be reported.
        value: the forged value, whose first byte must be reported; None for the first payload.
    """

    draft: Draft
    path: str
    value: Forged | None = None


class Breaker:
    """Breaks rules in one file.

    Args:
        draw: as in a strategy.
        file: a file that every reader accepts.
    """

    def __init__(self, draw: st.DrawFn, file: File) -> None:
        self.draw = draw
        self.file = file
        self.table = file.format.table
        self.whole = struct_of(file.format.struct)
        self.draft = Draft.of(file)
        self.root = self.draft.head()[1]
        params = drawing_context(byte_order=byte_order(self.root))
        self.root.update({"_params": params, "_declared": file.format.struct})

    def broken(self, location: RuleLocation) -> Corruption | None:
        """Returns the file with a rule broken, or None if that is impossible in this file."""
        corruptions = (self._corruption(location, attempt) for attempt in self._attempts(location))
        return next(filter(None, corruptions), None)

    def _attempts(self, location: RuleLocation) -> Iterator[Attempt]:
        if location.type is not None or isinstance(location.check, TensorFits):
            return self._dims(location)
        if isinstance(location.check, NamesOnce):
            return self._same_name(location)
        if isinstance(location.check, JsonRule):
            return self._irregular(location.check)
        if location.of_rows:
            return self._entries(location) if self.draft.is_metadata(location.region) else self._rows(location)
        return self._fields(location) if location.region else self._file(location)

    def _corruption(self, location: RuleLocation, attempt: Attempt) -> Corruption | None:
        """Returns an attempt as a corruption; None if it also breaks other rules of the sets."""
        check = location.check
        try:
            stored = attempt.draft.stored()
        except FormatError:
            return None  # a number out of the field's range, such as a dim of 64 bits in version 1
        if unchanged(self.file, stored):
            return None
        offset = len(stored) - len(attempt.draft.payloads) if attempt.value is None else attempt.value.start
        rule = "its rule" if location.type is None else f"the rule of {location.type}"
        sentence = f"{check.field or 'the file'} breaks {rule}: {check.expected or check.id}"
        corruption = Corruption(stored, sentence, attempt.path, offset, check.id)
        if not check.is_required:
            return self._with_findings(check, corruption)
        fits = next((rule.id for rule in location.struct.rules if isinstance(rule, TensorFits)), None)
        if not self.file.format.claims(stored[:START]):
            return replace(corruption, path=MAGIC, offset=0, error=FormatError)
        reported = fits if location.type is not None else check.id
        return replace(corruption, error=getattr(check, "error", FormatError), reported=reported)

    def _with_findings(self, check: Check, corruption: Corruption) -> Corruption | None:
        """Adds the expected findings of all of the rule's sets, or of one where it is alone."""
        new = (check.id, corruption.path)
        for sets in (check.sets, *((name,) for name in check.sets if name != REQUIRED)):
            before = [(finding.rule, finding.path) for finding in check_rules(self.file, sets)]
            if new in before:
                continue  # the rule is broken there already
            try:
                after = [(finding.rule, finding.path) for finding in check_rules(Container.parse(corruption.stored), sets)]
            except FormatError:
                after = []  # expect the finding anyway, so that the difference is noticed
            if all(finding == new or finding in before for finding in after):
                findings = (new, *(finding for finding in before if finding in after))
                return replace(corruption, sets=sets, findings=findings)
        return None

    # Values of fields

    def context(self, struct: StructOf, row: Mapping[str, Any]) -> Any:
        """Returns the context of a Struct in the file."""
        context = Context({name: plain(value) for name, value in row.items()})
        context.update({"_": self.root, "_params": self.root._params, "_root": self.root, "_declared": struct.declared})
        derive(context, struct.declared)
        return context

    def _patches(
        self, location: RuleLocation, row: Mapping[str, Any], patches: Iterable[dict[str, Any]] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yields the row with other values that break the rule, but no required rule before it."""
        check, struct = location.check, location.struct
        switches = {name for name, *_ in typed_fields(struct)}
        others = [part for part in struct.parts if isinstance(part, Check) and part.is_required and part is not check]
        if check.is_required:
            others = [rule for rule in others if struct.parts.index(rule) < struct.parts.index(check)]
        for patch in self._near(check, struct, row) if patches is None else patches:
            changed = {**row, **patch}
            context = self.context(struct, changed)
            if not all(fits(struct.field(name), changed[name], context) for name in {*patch, *switches}):
                continue
            if all(holds(other, context) for other in others) and not holds(check, context):
                yield {**changed, check.field: forged(struct, check.field, changed[check.field])}

    def _near(self, check: Check, struct: StructOf, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields other values of the guarded field, with other fields that must change with it."""
        field, required = check.field, _required(check)
        context = self.context(struct, {**row, **required})
        values = [*candidates(check, row[field], context), *_edges(struct.field(field).node)]
        values += check.must.broken_by if isinstance(check, Rule) else check.broken_by
        yield from ({**required, field: value} for value in values)
        for name, code, type_, node in typed_fields(struct):
            if field in (name, code):
                examples = [*EXAMPLES, *([Array(type_, ())] if node.level else [])]
                typed = [*values, *examples] if field == name else examples
                yield from ({**required, code: type_, name: value} for value in typed)

    def _fields(self, location: RuleLocation) -> Iterator[Attempt]:
        """Breaks a rule of a region that is one Struct."""
        region, field = location.region, location.check.field
        for row in self._patches(location, dict(self.draft.regions[region])):
            yield Attempt(self.draft.replaced({region: row}), f"{region} -> {field}", row[field])

    # Typed metadata

    def _entries(self, location: RuleLocation) -> Iterator[Attempt]:
        """Breaks a rule of an entry, which is added, or replaces the one with the same key."""
        region, field = location.region, location.check.field
        rows, metadata = self.draft.rows(region), self.draft.regions[region]
        for row in self._patches(location, self.new_row(region)):
            key = plain(row["key"])
            at = next((i for i, other in enumerate(rows) if other["key"] == key), len(rows))
            draft, seen = self.draft, None
            if not location.check.is_required:
                known = {other: metadata.stored(other) for other in metadata}
                seen = metadata.replaced({**known, key: StoredValue(plain(row["type"]), plain(row["value"]))})
                draft = self._realigned(region, seen)
            yield Attempt(draft.with_row(region, at, row, seen), f"{region} -> {at} -> {field}", row[field])

    def _alignment(self, context: Any) -> int:
        data = self.whole.field("data").node
        return int(value_in(context, data.to)) if isinstance(data, Payloads) and data.to else 1

    def _realigned(self, region: str, seen: Any) -> Draft:
        """Returns the draft, with its payloads moved if other metadata changes the alignment."""
        context = Context({**self.root, region: seen})
        derive(context, self.file.format.struct)
        if (alignment := self._alignment(context)) == self._alignment(self.root):
            return self.draft
        rows, payloads = [], b""
        for row in self.draft.rows(self.table):
            rows.append({**row, "offset": len(payloads)})
            payloads += self.file.tensors[row["name"]].raw
            payloads += bytes(-len(payloads) % alignment)
        return self.draft.replaced({self.table: rows}, payloads)

    # Rows

    def new_row(self, table: str) -> dict[str, Any]:
        """Draws a row whose first field, its name or key, is unique."""
        struct = self.draft.row_struct(table)
        row, name = dict(self.draw(values_of(struct.declared, self.root))), struct.fields[0].name
        taken = {row[name] for row in self.draft.rows(table)}
        return {**row, name: next(free for n in range(len(taken) + 1) if (free := f"x{n}") not in taken)}

    def _appended(
        self, gap: int = 0, quantized: bool = False, empty: bool = True, padded: bool = True
    ) -> tuple[Draft, int, list[Mapping[str, Any]]]:
        """Returns a draft with a tensor after all others, the number of its row, and all rows."""
        format, alignment = self.file.format, self._alignment(self.root)
        types = [type_ for type_ in format.types if not (quantized and type_.exact)] or list(format.types)
        shapes = [[0]] if empty else [[1], *([1, type_.least_row] for type_ in types[:1])]
        type_, shape = next((type_, shape) for type_ in types for shape in shapes if type_.refusal(shape) is None)
        end = max((tensor.offset + tensor.nbytes for tensor in self.file.tensors.values()), default=0)
        offset = end + -end % alignment + gap
        payloads = self.draft.payloads[:offset].ljust(offset, b"\0") + bytes(type_.nbytes(shape))
        payloads += bytes(-len(payloads) % alignment) if padded else b""
        row = {**self.new_row(self.table), "dims": list(format.dims_of(shape)), "dtype": type_, "offset": offset}
        at = len(self.draft.rows(self.table))
        draft = self.draft.replaced({}, payloads).with_row(self.table, at, row)
        return draft, at, draft.rows(self.table)

    def _rows(self, location: RuleLocation) -> Iterator[Attempt]:
        """Breaks a rule of an existing row, or of an added row with an empty payload."""
        table, field = self.table, location.check.field
        if location.struct.field(field).is_count:
            yield from self._count(location.struct.field(field))
            return
        drafts = []
        if (rows := self.draft.rows(table)) and field not in SHARED:
            drafts.append((self.draft, self.draw(st.integers(0, len(rows) - 1)), rows))
        appended = (self._appended(gap) for gap in ((1, 2, 3) if field == "offset" else (0,)))
        drafts += [made for made in appended if is_readable(made[0])]
        for draft, at, rows in drafts:
            for row in self._patches(location, rows[at], [{}] if field == "offset" else None):
                shapes = [self.file.format.dims_of(plain(of["dims"])) for of in (rows[at], row)]
                sizes = (size_of(Context(dtype=rows[at]["dtype"], shape=shape)) for shape in shapes)
                if not location.check.is_required and len(set(sizes)) > 1:
                    continue  # the payload has another size
                if field == "name" and plain(row["name"]) in [other["name"] for other in (*rows[:at], *rows[at + 1 :])]:
                    continue  # breaks the rule on unique names
                yield Attempt(draft.with_row(table, at, row), f"{table} -> {at} -> {field}", row[field])

    def _count(self, counter: Field) -> Iterator[Attempt]:
        """Adds a row with a wrong count of its empty payload."""
        draft, at, rows = self._appended()
        for wrong in (rows[at]["offset"] + 1, rows[at]["offset"] - 1):
            number = Forged(unwrapped(counter.declared).subcon, wrong, wrong)
            if wrong >= 0:
                draft = draft.with_row(self.table, at, {**rows[at], counter.name: number})
                yield Attempt(draft, f"{self.table} -> {at} -> {counter.name}", number)

    # JSON texts

    def json(self) -> tuple[Draft, TextBreaker]:
        """Returns a draft with one more row, and the breaker of its table's text."""
        draft, declared = self._appended()[0], unwrapped(self.draft.field(self.table).declared)
        return draft, TextBreaker(plain(draft.regions[self.table]), self.draft.row_struct(self.table), declared.fields)

    def with_broken(self, draft: Draft, broken: BrokenText) -> tuple[Draft, str, int | None]:
        """Returns a draft with a broken text, and the path and offset that must be reported."""
        rows = with_text(plain(draft.regions[self.table]), broken.stored)
        texts = (part.name for part in self.whole.fields if isinstance(part.node, JsonTexts))
        path = " -> ".join((next(texts) if broken.of_texts else self.table, *broken.path))
        return draft.with_json(self.table, rows), path, None if broken.at is None else rows.start + broken.at

    def _irregular(self, check: JsonRule) -> Iterator[Attempt]:
        draft, breaker = self.json()
        for broken in breaker.irregular(check.expected):
            changed, path, offset = self.with_broken(draft, broken)
            yield Attempt(changed, path, Forged(construct.Pass, None, None, offset))

    def _dims(self, location: RuleLocation) -> Iterator[Attempt]:
        """Breaks the rule that a type can hold its dims, or a rule of a type on them."""
        draft, at, rows = self._appended()
        for shape in [[HUGE] * 3] if location.type is None else _refused_shapes(location.type, location.check):
            dims = forged(location.struct, "dims", list(self.file.format.dims_of(shape)))
            row = {**rows[at], "dims": dims, "dtype": location.type or rows[at]["dtype"]}
            yield Attempt(draft.with_row(self.table, at, row), f"{self.table} -> {at} -> dims", dims)

    def _same_name(self, location: RuleLocation) -> Iterator[Attempt]:
        """Adds a row with the name of the first one."""
        table, draft = location.region or location.check.field, self.draft
        if not draft.rows(table):
            draft = draft.with_row(table, 0, self.new_row(table))
        rows, struct = draft.rows(table), draft.row_struct(table)
        name = forged(struct, struct.fields[0].name, rows[0][struct.fields[0].name])
        path = f"{table} -> {len(rows)} -> {struct.fields[0].name}"
        yield Attempt(draft.with_row(table, len(rows), {**rows[0], struct.fields[0].name: name}), path, name)

    # The whole file

    def _file(self, location: RuleLocation) -> Iterator[Attempt]:
        """Breaks a rule on a whole region."""
        name, node = location.check.field, self.draft.field(location.check.field).node
        if isinstance(node, Padding):
            yield from self._padding(name)
        elif isinstance(node, Payloads):
            yield from self._payloads(location)
        elif isinstance(location.check, Rule) and isinstance(location.check.must, HasKey):
            yield from self._without(location.check, location.check.must.key)
        elif name == self.table:
            for empty in (True, False):
                draft, at, rows = self._appended(gap=self._alignment(self.root), empty=empty)
                if all(row["dtype"].is_known for row in rows):  # the sizes of others are unknown
                    offset = forged(self.draft.row_struct(name), "offset", rows[at]["offset"])
                    draft = draft.with_row(name, at, {**rows[at], "offset": offset})
                    yield Attempt(draft, f"{name} -> {at} -> offset", offset)

    def _without(self, check: Check, key: str) -> Iterator[Attempt]:
        """Removes a required entry."""
        name = check.field
        metadata = self.draft.regions[name]
        left = metadata.without(key) if key in metadata else metadata
        for draft in (self.draft, self._appended(quantized=True, empty=False)[0]):
            rows = [Record(dict(row)) for row in draft.rows(self.table)]
            if not holds(check, Context({**self.root, name: left, self.table: rows})):
                value = forged(self.whole, name, left)
                yield Attempt(draft.replaced({name: value}), name, value)

    def _padding(self, name: str) -> Iterator[Attempt]:
        """Sets a byte of padding, if necessary after entries that make room for some."""
        drafts = [self.draft]
        for region in filter(self.draft.is_metadata, self.draft.regions):
            entry, at = self.new_row(region), len(self.draft.rows(region))
            for size in range(2, 8):
                drafts.append(self.draft.with_row(region, at, {**entry, "key": resized(entry["key"], size)}))
        for draft in drafts:
            if nbytes := len(draft.replaced({name: None}).head()[1][name]):
                value = forged(self.whole, name, b"\1" + bytes(nbytes - 1))
                yield Attempt(draft.replaced({name: value}), name, value)
                return

    def _payloads(self, location: RuleLocation) -> Iterator[Attempt]:
        """Adds a nonzero byte after the last payload, or removes the padding there."""
        for draft in (self.draft.replaced({}, self.draft.payloads + b"\1"), self._appended(empty=False, padded=False)[0]):
            if is_readable(draft):
                regions = Container.parse(draft.stored()).regions
                if not holds(location.check, Context({**regions, **regions.counts, "_params": self.root._params})):
                    yield Attempt(draft, location.check.field)


def unchanged(file: File, stored: bytes) -> bool:
    """Tells whether these are the bytes of a file."""
    return len(stored) == file.source.size and stored == bytes(file.source.view(0, file.source.size))


def is_readable(draft: Draft) -> bool:
    """Tells whether a draft is read. Payloads of unknown type may overlap if bytes are added."""
    if not all(row["dtype"].is_known for row in draft.rows(draft.format.table)):
        try:
            Container.parse(draft.stored())
        except FormatError:
            return False
    return True


def can_be_broken(location: RuleLocation) -> bool:
    """Tells whether values that break a rule follow from its predicate, condition or class."""
    check = location.check
    if location.type is not None or not isinstance(check, Rule):
        return True
    field = location.struct.field(check.field)
    if field.is_count:
        return location.of_rows  # of others, the size of the file would have to follow
    node = field.node
    is_known = bool(check.must.broken_by) or isinstance(check.must, HasKey) or read(check.condition) is not None
    return is_known or isinstance(node, (Padding, Payloads)) or bool(_edges(node))


def _required(check: Check) -> dict[str, Any]:
    """Returns values of fields with which a check applies, as far as they are known."""
    if check.example:
        return {"key": check.example}
    equal = equality(check.when) if isinstance(check, Rule) else None
    return dict([equal]) if equal and "." not in equal[0] else {}  # not of another Struct


def typed_fields(struct: StructOf) -> Iterator[tuple[str, str, Any, Node]]:
    """Yields fields with a `Switch`: name, the field that selects, its value, and the node."""
    tables: dict[str, Any] = {field.name: field.node.table for field in struct.fields if isinstance(field.node, Code)}
    for field in struct.fields:
        if isinstance(switch := field.node, Switch):
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
        case Text():
            return ["", " "] if node.is_strict else ["", " ", "\udcff"]
        case ByteOrder():
            return list(node.orders)
        case Code(table=table):
            unknown = (table[code] for code in range(256) if table.unknown and not table[code].is_known)
            return [*islice(unknown, 1), *table]
    return []
