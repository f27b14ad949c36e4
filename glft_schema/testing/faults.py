"""Files with one fault: a value or bytes that break a rule, or that a construct refuses.

The faults follow from the declaration: the conditions and predicates of its rules, and `refuses` of
its constructs. Which rules a value breaks is decided by building, see `Draft.broken_rules`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import construct
from hypothesis import reject
from hypothesis import strategies as st

import glft_schema.describe.nodes as s
import glft_schema.testing.damage as d
from glft_schema.codec import json_table as j
from glft_schema.codec.context import BIG, LITTLE, Context, byte_order
from glft_schema.codec.expressions import equality, read
from glft_schema.codec.json_text import to_json
from glft_schema.codec.metadata_lines import KeyValueLines
from glft_schema.codec.metadata_rules import HasKey
from glft_schema.codec.rules import ALL_BITS, REQUIRED, Check, Fault, Rule
from glft_schema.codec.structs import Raw
from glft_schema.codec.tables import NamesOnce
from glft_schema.codec.typed_values import array_of, with_type
from glft_schema.describe.schema import rows_of, struct_of
from glft_schema.errors import Finding, FormatError, TruncatedError, quote
from glft_schema.files.file import File
from glft_schema.formats.format import Format
from glft_schema.formats.registry import MAGIC
from glft_schema.storage.streams import START
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.payload_layout import matrix
from glft_schema.tensors.region import TensorFits
from glft_schema.testing.containers import Draft
from glft_schema.testing.damage import Corruption
from glft_schema.testing.fitting import EXAMPLES, candidates, derive, fits, holds, inner_context, with_value
from glft_schema.testing.structs import alignment_of, drawing_context
from glft_schema.testing.values import values_of

SHARED = ("dims", "dtype", "offset")  # fields that are equal in rows that share a payload
HUGE = 1 << 31  # three such dims overflow 64 bits
COUNTS = ((1 << 64) - 1, 1 << 47, (1 << 32) - 1, (1 << 16) - 1, (1 << 8) - 1)  # every format recognizes its files with 1 << 47
LINE_END = b"\n"


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
    struct: s.StructOf
    region: str = ""
    of_rows: bool = False
    type: TensorType | None = None

    @property
    def can_be_broken(self) -> bool:
        """Whether values that break the rule follow from its predicate, condition or class."""
        check = self.check
        if self.type is not None or not isinstance(check, Rule):
            return True
        field = self.struct.field(check.field)
        if field.is_count:
            return self.of_rows  # elsewhere, the file's size would have to change, too
        is_known = check.broken_by or isinstance(check.must, HasKey) or read(check.condition) is not None
        return bool(is_known or isinstance(field.node, (s.PaddingNode, s.PayloadsNode)) or _edges(field.node))


def rule_locations(format: Format) -> Iterator[RuleLocation]:
    """Yields the rules of a format, in order, and then those of its tensor types."""
    whole = struct_of(format.struct)
    for part in whole.parts:
        if isinstance(part, Check):
            yield RuleLocation(part, whole)
            continue
        node = part.node
        if isinstance(node, s.RefNode):
            struct = struct_of(node.declared)
            yield from (RuleLocation(check, struct, part.name) for check in struct.rules)
        if row := rows_of(node):
            yield from (RuleLocation(check, row, part.name, True) for check in row.rules)
            if isinstance(node, s.ListNode) and node.once:
                yield RuleLocation(node.once, row, part.name)
    rows = rows_of(whole.field(format.table).node)
    assert rows
    for type_ in format.types:
        rules = struct_of(type_.payload).rules
        yield from (RuleLocation(check, rows, format.table, True, type_) for check in rules)


class Breaker:
    """Breaks one rule or one field of a file.

    Args:
        draw: the draw function of a composite strategy.
        file: a file that every reader accepts.
    """

    def __init__(self, draw: st.DrawFn, file: File) -> None:
        self.draw = draw
        self.file = file
        self.format = file.format
        self.table = file.format.table
        self.whole = struct_of(file.format.struct)
        self.draft = Draft.of(file)
        regions = self.draft.head.regions
        params = drawing_context(byte_order=byte_order(regions), forging=True)
        self.root = Context({**regions, "_params": params, "_declared": file.format.struct})
        self.alignment = alignment_of(self.whole.field("data").node, self.root)

    def is_unchanged(self, stored: bytes) -> bool:
        """Tells whether `stored` equals the bytes of the file."""
        return stored == bytes(self.file.source.view(0, self.file.source.size))

    def regions(self, kind: type[Any]) -> list[str]:
        """Returns the regions with a kind of node."""
        return [part.name for part in self.whole.fields if isinstance(part.node, kind)]

    # Rules

    def break_rule(self, location: RuleLocation) -> Corruption | None:
        """Returns the file with a rule broken, or None if that is impossible in this file."""
        check, before = location.check, self.draft.broken_rules() or []
        rule = "its rule" if location.type is None else f"the rule of {location.type}"
        sentence = f"{check.field or 'the file'} breaks {rule}: {check.expected or check.id}"
        for draft in self._drafts(location):
            expected = _expectation(location, before, draft.broken_rules())
            if expected is None or self.is_unchanged(stored := draft.build()):
                continue
            if not self.format.claims(stored[:START]):
                return Corruption(stored, sentence, MAGIC, 0, check.id, FormatError)
            offset = draft.start(expected["path"]) if draft.fault is None else draft.fault
            return Corruption(stored, sentence, offset=offset, rule=check.id, **expected)
        return None

    def _drafts(self, location: RuleLocation) -> Iterator[Draft]:
        """Yields files that may break the rule."""
        check, region = location.check, location.region
        if isinstance(check, j.JsonRule):
            row = LastRow(self)
            return (row.draft_of(template % row.parts) for template in check.broken_by)
        if isinstance(check, NamesOnce):
            return self._same_name(region or check.field)
        if location.of_rows:
            return self._entries(location) if self.draft.is_metadata(region) else self._rows(location)
        if region:
            return (self.draft.replace({region: row}) for row in self._patches(location, dict(self.draft.regions[region])))
        return self._file(check)

    def context(self, struct: s.StructOf, row: Mapping[str, Any]) -> Any:
        """Returns the context of a Struct in the file."""
        context = inner_context(self.root, struct.declared, row)
        derive(context, struct.declared)
        return context

    def _patches(self, location: RuleLocation, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the row with edge values for which the rule's predicate does not hold."""
        check, struct = location.check, location.struct
        switches = {name for name, *_ in _typed_fields(struct)}
        others = [rule for rule in struct.rules if rule.is_required and not check.is_required]
        for patch in self._near(check, struct, row):
            changed = {**row, **patch}
            context = self.context(struct, changed)
            can_be_built = all(fits(struct.field(name), changed[name], context) for name in {*patch, *switches})
            if can_be_built and not holds(check, context) and all(holds(other, context) for other in others):
                yield changed

    def _near(self, check: Check, struct: s.StructOf, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields other values of the guarded field, with other fields that must change with it."""
        field, required = check.field, _required_values(check)
        context = self.context(struct, {**row, **required})
        values = [*candidates(check, row[field], context), *_edges(struct.field(field).node), *check.broken_by]
        yield from ({**required, field: value} for value in values)
        for name, code, type_, node in _typed_fields(struct):
            if field in (name, code):
                examples = [*EXAMPLES, *([array_of(type_, ())] if node.level else [])]
                typed = [*values, *examples] if field == name else examples
                yield from ({**required, code: type_, name: value} for value in typed)

    def _entries(self, location: RuleLocation) -> Iterator[Draft]:
        """Breaks a rule of an entry, which is added, or replaces the one with the same key."""
        region, metadata = location.region, self.draft.regions[location.region]
        for row in self._patches(location, self.new_row(region)):
            key, keys, draft, seen = row["key"], list(metadata), self.draft, metadata
            if not location.check.is_required:
                known = {other: metadata.stored_value(other) for other in metadata}
                seen = metadata.replace({**known, key: with_type(row["type"], row["value"])})
                draft = self._realign(region, seen)
            yield draft.with_row(region, keys.index(key) if key in keys else len(keys), row, seen)

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

    def new_row(self, table: str) -> dict[str, Any]:
        """Draws a row whose first field, its name or key, is unique."""
        struct = self.draft.row_struct(table)
        row, name = dict(self.draw(values_of(struct.declared, self.root))), struct.fields[0].name
        taken = {row[name] for row in self.draft.rows(table)}
        return {**row, name: next(free for n in range(len(taken) + 1) if (free := f"x{n}") not in taken)}

    def append(self, gap: int = 0, quantized: bool = False, empty: bool = True, padded: bool = True) -> Draft:
        """Returns a draft with a tensor after all others."""
        types = [type_ for type_ in self.format.types if not (quantized and type_.exact)] or list(self.format.types)
        shapes = [[0]] if empty else [[1], *([1, type_.least_row] for type_ in types[:1])]
        type_, shape = next((type_, shape) for type_ in types for shape in shapes if type_.refusal(shape) is None)
        end = max((tensor.offset + tensor.nbytes for tensor in self.file.tensors.values()), default=0)
        offset = end + -end % self.alignment + gap
        payloads = self.draft.payloads[:offset].ljust(offset, b"\0") + bytes(type_.nbytes(shape))
        payloads += bytes(-len(payloads) % self.alignment) if padded else b""
        row = {**self.new_row(self.table), "dims": list(self.format.dims_of(shape)), "dtype": type_, "offset": offset}
        return self.draft.replace({}, payloads).with_row(self.table, len(self.draft.rows(self.table)), row)

    def _rows(self, location: RuleLocation) -> Iterator[Draft]:
        """Breaks a rule of an existing row, or of an added row with an empty payload."""
        check, field = location.check, location.check.field
        is_shape = location.type is not None or isinstance(check, TensorFits)
        is_count = not is_shape and location.struct.field(field).is_count
        drafts = [self.append(gap) for gap in ((1, 2, 3) if field == "offset" else (0,))]
        at = [-1] * len(drafts)
        if (count := len(self.draft.rows(self.table))) and not (is_shape or is_count or field in SHARED):
            drafts.insert(0, self.draft)
            at.insert(0, self.draw(st.integers(0, count - 1)))
        for draft, number in zip(drafts, at, strict=True):
            rows = draft.rows(self.table)
            number, row = number % len(rows), dict(rows[number])
            changed: Iterable[dict[str, Any]] = [row]  # after a gap
            if is_shape:
                changed = self._refused_dims(location, row)
            elif is_count:
                changed = ({**row, field: count} for step in (1, -1) if (count := row["offset"] + step) >= 0)
            elif field != "offset":
                changed = self._patches(location, row)
            yield from (draft.with_row(self.table, number, row) for row in changed)

    def _refused_dims(self, location: RuleLocation, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the row with a type and dims that break its rule, and no rule before it."""
        type_, shapes = location.type or row["dtype"], [[HUGE] * 3]
        if location.type:
            least, rules = type_.least_row, struct_of(type_.payload).rules
            before = rules[: rules.index(location.check)]
            shapes = []
            for shape in ([], [1], [least + 1], [1, least + 1], [2, least + 1], [0, least], [1, 0]):
                out, columns = matrix(shape)
                context = drawing_context(rules=(), **{"dims": shape, "out": out, "in": columns})
                if all(holds(rule, context) for rule in before) and not holds(location.check, context):
                    shapes.append(shape)
        counts = {part.name: 0 for part in location.struct.fields if part.is_count and part.is_json}  # cannot be computed
        return ({**row, **counts, "dtype": type_, "dims": self.format.dims_of(shape)} for shape in shapes)

    def _same_name(self, table: str) -> Iterator[Draft]:
        """Adds a row with the name of the first one."""
        draft = self.draft if self.draft.rows(table) else self.draft.with_row(table, 0, self.new_row(table))
        rows = draft.rows(table)
        yield draft.with_row(table, len(rows), rows[0])

    def _file(self, check: Check) -> Iterator[Draft]:
        """Breaks a rule on a whole region."""
        name, node = check.field, self.draft.field(check.field).node
        if isinstance(node, s.PaddingNode):
            drafts = [self.draft]
            for region in filter(self.draft.is_metadata, self.draft.regions):  # another entry may cause padding
                entry, at = self.new_row(region), len(self.draft.rows(region))
                drafts += [
                    self.draft.with_row(region, at, {**entry, "key": entry["key"].ljust(size, "a")}) for size in range(2, 8)
                ]
            for draft in drafts:
                if nbytes := len(draft.replace({name: None}).head.regions[name]):
                    yield draft.replace({name: b"\1" + bytes(nbytes - 1)})
        elif isinstance(node, s.PayloadsNode):
            whole = {} if self.root[self.table] else dict.fromkeys(self.regions(s.PaddingNode))  # which may lack without rows
            yield self.draft.replace(whole, self.draft.payloads + b"\1")
            yield self.append(empty=False, padded=False)
        elif isinstance(check, Rule) and isinstance(check.must, HasKey):
            left = self.draft.regions[name]
            left = left.without(check.must.key) if check.must.key in left else left
            yield self.draft.replace({name: left})
            yield self.append(quantized=True, empty=False).replace({name: left})
        elif name == self.table:
            yield from (self.append(gap=self.alignment, empty=empty) for empty in (True, False))

    # Fields

    def too_many(self) -> Corruption | None:
        """Makes a count in the header greater than the number of its elements."""
        counted = [name for name in self.format.regions if self.draft.counter(name)]
        if not counted:
            return None
        region = self.draw(st.sampled_from(counted))
        path = d.count_path(self.draft.field(region).node, region)
        for draft in (self.draft.with_count(region, count) for count in COUNTS):
            with suppress(FormatError, construct.ConstructError):  # out of the count's range
                if self.format.claims((stored := draft.build())[:START]):
                    sentence = f"the count of {region} claims more than there is"
                    return Corruption(stored, sentence, path, draft.start(path), error=FormatError, within=True)
        return None

    def misplaced(self) -> Corruption | None:
        """Moves the start of a payload past the end of the file, or into another payload."""
        tensors = list(self.file.tensors.values())
        if not tensors:
            return None
        known = [i for i, tensor in enumerate(tensors) if tensor.type.is_known and tensor.nbytes]
        pairs = [(i, k) for i in known for k in known if i != k and tensors[i].nbytes > 1]
        if self.draw(st.booleans()) and pairs:
            i, at = self.draw(st.sampled_from(pairs))
            to, sentence = tensors[i].offset + 1, "a payload begins inside of another one"
        else:
            at = self.draw(st.integers(0, len(tensors) - 1))
            to, sentence = len(self.draft.payloads) + self.draw(st.integers(1, 1 << 30)), "a payload begins outside of the file"
        draft = self.draft.with_row(self.table, at, {**self.draft.rows(self.table)[at], "offset": to})
        path = f"{self.table} -> {at} -> offset"
        return Corruption(draft.build(), sentence, path, draft.start(path), error=FormatError)

    def in_a_row(self, aspect: str) -> Corruption | None:
        """Breaks a field of an added row: a length or count, a text, a type."""
        regions = [name for name in self.regions(s.ListNode) if d.aspect_of_region(self.format, name) == aspect]
        for region in regions:
            struct, row, at = self.draft.row_struct(region), self.new_row(region), len(self.draft.rows(region))
            context = self.context(struct, row)
            broken: list[Any] = [
                (field.name, {}, *found) for field in struct.fields for found in _refused_bytes(field, context)
            ]
            for name, code, type_, node in _typed_fields(struct):
                broken += [(name, {code: type_}, *found) for found in _long_array(node, context)]
            if not broken:
                reject()
            name, typed, stored, part, start, sentence, error = self.draw(st.sampled_from(broken))
            path = f"{region} -> {at} -> {name}"
            draft = self.draft.with_row(region, at, {**row, **typed, name: Raw(stored, row[name])})
            built, start = draft.build(), start + draft.start(path)
            if error is TruncatedError and len(built) - start >= 1 << 8 * len(stored):
                reject()  # the file has as many bytes as are claimed
            return Corruption(built, f"{name}: {sentence}", path + part, start, error=error)
        return None

    def bad_line(self) -> Corruption | None:
        """Adds a broken line to line-based metadata."""
        for region in self.regions(s.LinesNode):
            metadata = self.file.regions[region]
            before = KeyValueLines.encode(metadata).removesuffix(LINE_END)
            before += LINE_END if before else b""
            faults = [(fault, line) for fault in self.draft.field(region).refuses for line in fault.stored]
            fault, line = self.draw(st.sampled_from(faults))
            draft = self.draft.with_count(region, len(before + line)).replace({region: Raw(before + line, metadata)})
            path = f"{region} -> line {len(metadata) + 1 + line.count(LINE_END)}"
            start = draft.start(region) + len(before) + max(line.find(b"\xff"), line.rfind(LINE_END) + 1)
            return Corruption(draft.build(), f"{region}: {fault.sentence}", path, start, error=FormatError)
        return None

    def bad_json(self, aspect: str) -> Corruption | None:
        """Breaks the text of a JSON table, its last row, or its reserved entry."""
        if self.table not in self.regions(s.JsonTableNode):
            return None
        row = LastRow(self)
        path, fault, stored = d.evenly(self.draw, list(row.refused_texts() if aspect == d.METADATA else row.refused_rows()))
        draft = row.draft_of(stored)
        return Corruption(draft.build(), f"{path}: {fault.sentence}", path, draft.fault, error=fault.error)


class LastRow:
    """The text of a JSON table with one more row, in whose place faults are written.

    The templates of the codec are filled in; see `json_table.IRREGULAR`.
    """

    def __init__(self, breaker: Breaker) -> None:
        draft = breaker.append()
        self.declared = draft.declared(breaker.table)
        self.draft = draft.replace({self.declared.metadata: {}})
        self.table = draft.field(breaker.table)
        rows = self.draft.head.regions[breaker.table]
        name = to_json(rows[-1].name).encode()
        before, row = rows.stored.rstrip()[:-1].rsplit(name + b":", 1)
        self.values = {key: to_json(value).encode() for key, value in json.loads(row).items()}
        reserved, values = to_json(self.declared.reserved).encode(), b",".join(self.values.values())
        self.parts = {
            b"rows": before,
            b"name": name,
            b"row": row,
            b"pairs": row[1:-1],
            b"reserved": reserved,
            b"values": values,
        }
        self.parts[b"first"] = self.object(*islice(self.values.items(), 1))[1:-1]
        self.path = f"{breaker.table} -> {len(rows) - 1}"

    def draft_of(self, text: bytes) -> Draft:
        """Returns the draft with a text, and the offset of its fault, which a NUL marks."""
        draft = self.draft.with_text(text.replace(b"\0", b"", 1))
        return replace(draft, fault=draft.start(self.table.name) + at if (at := text.find(b"\0")) >= 0 else None)

    def ending(self, *members: bytes) -> bytes:
        """Returns the text with other members in place of the last row."""
        return b"%s%s}" % (self.parts[b"rows"], b",".join(members))

    def object(self, *pairs: tuple[str, bytes]) -> bytes:
        """Returns the JSON of an object."""
        return b"{%s}" % b",".join(b"%s:%s" % (to_json(key).encode(), value) for key, value in pairs)

    def refused_rows(self) -> Iterator[tuple[str, Fault, bytes]]:
        """Yields the reported field, the fault, and the text, for the table and the last row."""
        name, row, lacks = self.parts[b"name"] + b":", self.parts[b"row"], Fault("an entry lacks a key")
        for fault in self.table.refuses:
            path = self.path if fault is self.table.refuses[-1] else self.table.name
            yield from ((path, fault, stored % self.parts) for stored in fault.stored)
        keys = set[str]()
        for field in struct_of(self.declared.row).fields:
            key = getattr(self.declared.fields.get(field.name), "key", None)
            if key is None or key in keys:
                continue
            if not keys:  # an entry that a later one replaces
                path = f"{self.table.name} -> {quote(json.loads(self.parts[b'name']))} -> {field.name}"
                yield path, lacks, self.ending(name + b"\0{}", name + row)
            keys.add(key)
            others = [(other, value) for other, value in self.values.items() if other != key]
            path = f"{self.path} -> {field.name}"
            yield path, lacks, self.ending(name + b"\0" + self.object(*others))
            for fault in field.refuses:
                for stored in (b'\0"?"',) if fault.stored is ALL_BITS else fault.stored:
                    yield path, fault, self.ending(name + self.object(*others, (key, stored)))

    def refused_texts(self) -> Iterator[tuple[str, Fault, bytes]]:
        """Yields the same for the reserved entry."""
        texts, row = self.draft.field(self.declared.metadata), self.parts[b"name"] + b":" + self.parts[b"row"]
        for fault in texts.refuses:
            path = f"{texts.name} -> 1 -> value" if fault is texts.refuses[0] else texts.name
            yield from ((path, fault, self.ending(row, self.parts[b"reserved"] + b":" + stored)) for stored in fault.stored)


# The faults of fields, by aspect. A fault that is listed twice is drawn twice as often.
FieldFault = Callable[[Breaker], Corruption | None]  # None if the file has no such field


def cut(breaker: Breaker, aspect: str) -> Corruption | None:
    """Cuts the file off, see `damage.truncated`."""
    return breaker.draw(d.truncated(breaker.file, aspect))


# fmt: off
FIELD_FAULTS: dict[str, tuple[FieldFault, ...]] = {
    d.METADATA:    (partial(cut, aspect=d.METADATA), partial(Breaker.in_a_row, aspect=d.METADATA), Breaker.bad_line,
                    Breaker.bad_line, partial(Breaker.bad_json, aspect=d.METADATA)),
    d.TENSOR_INFO: (partial(cut, aspect=d.TENSOR_INFO), partial(Breaker.in_a_row, aspect=d.TENSOR_INFO),
                    partial(Breaker.bad_json, aspect=d.TENSOR_INFO)),
    d.HEADER:      (partial(cut, aspect=d.HEADER),),
    d.CONSISTENCY: (Breaker.too_many, Breaker.misplaced),
    d.ALIGNMENT:   (partial(cut, aspect=d.ALIGNMENT),),
    d.DATA:        (partial(cut, aspect=d.DATA),),
}
# fmt: on


def _expectation(location: RuleLocation, before: list[Finding], after: list[Finding] | None) -> dict[str, Any] | None:
    """Returns the expected error or findings if only this rule is newly broken."""
    check = location.check
    required = [found for found in after or () if REQUIRED in found.sets]
    if after is None or bool(required) != check.is_required:
        return None
    if required:
        is_of_type = location.type is not None
        reported = next(rule.id for rule in location.struct.rules if isinstance(rule, TensorFits)) if is_of_type else check.id
        is_it = [found.rule for found in required] == [reported]
        return {"path": required[0].path, "error": check.error, "reported": reported} if is_it else None
    for sets in (check.sets, *((name,) for name in check.sets)):
        old, found = ([(rule.rule, rule.path) for rule in of if {*sets} & {*rule.sets}] for of in (before, after))
        new = [finding for finding in found if finding not in old]
        if [rule for rule, _ in new] == [check.id]:
            return {"path": new[0][1], "sets": sets, "findings": (*new, *(finding for finding in old if finding in found))}
    return None


def _required_values(check: Check) -> dict[str, Any]:
    """Returns field values that make a check apply, as far as they are known."""
    if check.example:
        return {"key": check.example}
    equal = equality(check.when) if isinstance(check, Rule) else None
    return dict([equal]) if equal and "." not in equal[0] else {}  # not of another Struct


def _typed_fields(struct: s.StructOf) -> Iterator[tuple[str, str, Any, s.Node]]:
    """Yields fields with a `SwitchNode`: name, the field that selects, its value, and the node."""
    tables: dict[str, Any] = {field.name: field.node.table for field in struct.fields if isinstance(field.node, s.CodeNode)}
    for field in struct.fields:
        if isinstance(switch := field.node, s.SwitchNode):
            values = tables.get(str(switch.on), {case.code: case.code for case in switch.cases})
            yield from ((field.name, str(switch.on), values[case.code], case.node) for case in switch.cases)


def _edges(node: s.Node) -> list[Any]:
    """Returns values of a node that rules may forbid."""
    match node:
        case s.TextNode():
            return ["", " "] if node.is_strict else ["", " ", "\udcff"]
        case s.ByteOrderNode():
            return list(node.orders)
        case s.CodeNode(table=table):
            unknown = (table[code] for code in range(256) if table.unknown and not table[code].is_known)
            return [*islice(unknown, 1), *table]
    return []


Refused = tuple[bytes, str, int, str, type[FormatError]]  # bytes of a field, the reported part, its offset, sentence, error


def _first_number(node: s.Node, context: Any) -> s.NumberNode | None:
    """Returns the number with which a field begins."""
    match node:
        case s.EitherNode():
            return _first_number(s.choose(node, context), context)
        case s.TextNode():
            return _first_number(node.length, context)
        case s.CountedNode():
            return _first_number(node.count, context)
        case s.CodeNode():
            return _first_number(node.number, context)
    return node if isinstance(node, s.NumberNode) else None


def _refused_bytes(field: s.Field, context: Any) -> Iterator[Refused]:
    """Yields bytes that a field refuses."""
    if (number := _first_number(field.node, context)) is None:
        return
    all_bits, order = b"\xff" * number.size, byte_order(context)
    if number.order != "file":
        order = BIG if number.order == BIG else LITTLE
    if isinstance(field.node, s.TextNode):
        yield all_bits, "", 0, "a length beyond the file", TruncatedError
    for fault in field.refuses:
        for stored in fault.stored:
            if fault.stored is ALL_BITS:
                stored = all_bits
            elif isinstance(field.node, s.TextNode):
                stored = number.of.encode(len(stored), order) + stored
            yield stored, "", 0, fault.sentence, FormatError


def _long_array(node: s.Node, context: Any) -> Iterator[Refused]:
    """Yields an array whose count is greater than the number of its elements."""
    if not isinstance(node, s.RefNode):
        return
    struct = struct_of(node.declared)
    for count in struct.fields:
        if count.is_count and (number := _first_number(count.node, context)):
            tables = {part.name: part.node.table for part in struct.fields if isinstance(part.node, s.CodeNode)}
            parts = {part.name: next(iter(tables.get(part.name, [[]]))) for part in struct.fields}
            stream = io.BytesIO()
            struct.declared._build({**parts, count.name: 256**number.size - 1}, stream, context, "(building)")
            start = len(stream.getvalue()) - number.size
            yield stream.getvalue(), f" -> {count.name}", start, "a count beyond the file", TruncatedError
