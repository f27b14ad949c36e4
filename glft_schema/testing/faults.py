"""Files with one fault: a value or bytes that break a rule, or that a construct refuses.

The faults follow from the declaration: the conditions and predicates of its rules, and `refuses` of
its constructs. Which rules a value breaks is decided by building, see `Draft.broken_rules`.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

import glft_schema.describe.nodes as s
import glft_schema.testing.damage as d
from glft_schema.codec import json_table as j
from glft_schema.codec.context import Context, byte_order
from glft_schema.codec.expressions import equality, fields_in, read
from glft_schema.codec.json_text import to_json
from glft_schema.codec.metadata_lines import KeyValueLines
from glft_schema.codec.metadata_rules import HasKey
from glft_schema.codec.rules import ALL_BITS, REQUIRED, Check, Fault, Rule
from glft_schema.codec.structs import Raw
from glft_schema.codec.tables import NamesOnce, least_size
from glft_schema.codec.trace import STEP
from glft_schema.codec.typed_values import ARRAY, Typed, with_type
from glft_schema.describe.schema import refused_values, rows_of, struct_of
from glft_schema.errors import Finding, FormatError, TruncatedError, quote
from glft_schema.files.file import File
from glft_schema.formats.format import Format
from glft_schema.formats.registry import MAGIC
from glft_schema.storage.streams import START
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.region import TensorFits
from glft_schema.testing.containers import Draft
from glft_schema.testing.damage import Corruption
from glft_schema.testing.fitting import (
    LONG,
    candidates,
    derive,
    fits,
    holds,
    inner_context,
    length_of,
    value_so_far,
    with_value,
)
from glft_schema.testing.structs import alignment_of, drawing_context
from glft_schema.testing.values import values_of, wrapped_values

SHARED = ("dims", "dtype", "offset")  # fields that are equal in rows that share a payload
HUGE = 1 << 31  # three such dims overflow 64 bits
COUNTS = ((1 << 64) - 1, 1 << 47, (1 << 32) - 1, (1 << 16) - 1, (1 << 8) - 1)  # every format recognizes its files with 1 << 47
LINE_END = b"\n"
ARRAYS = Typed((Typed((), "array[array]"),), "array[array[array]]")
EXAMPLES = (32, 1, "a", ARRAYS)  # values of many types; 32 satisfies every rule on alignments


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
        if not (self.region or self.of_rows):
            return True
        field = self.struct.field(check.field)
        if field.is_count:
            return self.of_rows  # elsewhere, the file's size would have to change, too
        return bool(check.broken_by or read(check.condition) or isinstance(field.node, s.CodeNode))


def rule_locations(format: Format) -> Iterator[RuleLocation]:
    """Yields the rules of a format, in order, and then those of its tensor types."""
    whole = struct_of(format.struct)
    for part in whole.parts:
        if isinstance(part, Check):
            yield RuleLocation(part, whole)
            continue
        for node in s.alternatives(part.node):
            if isinstance(node, s.RefNode):
                struct = struct_of(node.declared)
                yield from (RuleLocation(check, struct, part.name) for check in struct.rules)
            if row := rows_of(node):
                yield from (RuleLocation(check, row, part.name, True) for check in row.rules)
                if isinstance(node, s.ListNode) and node.once:
                    yield RuleLocation(node.once, row, part.name)
    if not format.has_tensors:
        return
    rows = rows_of(whole.field(format.table).node)
    assert rows
    for type_ in format.types:
        yield from (RuleLocation(check, rows, format.table, True, type_) for check in struct_of(type_.payload).rules)


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
        self.draft = Draft.of(file)
        regions = self.draft.built
        params = drawing_context(byte_order=byte_order(regions), forging=True)
        self.root = Context({**regions, "_params": params, "_declared": file.format.struct})
        self.alignment = self.alignment_in(self.root)

    def is_unchanged(self, stored: bytes) -> bool:
        """Tells whether `stored` equals the bytes of the file."""
        return stored == bytes(self.file.source.view(0, self.file.source.size))

    def alignment_in(self, regions: Any) -> int:
        """Returns the alignment of the payloads after these regions."""
        return alignment_of(self.draft.field("data").node, regions) if self.format.has_tensors else 1

    def regions(self, kind: type[Any]) -> list[str]:
        """Returns the regions with a kind of node."""
        return [part.name for part in struct_of(self.format.struct).fields if isinstance(part.node, kind)]

    # Rules

    def break_rule(self, location: RuleLocation) -> Corruption | None:
        """Returns the file with a rule broken, or None if that is impossible in this file."""
        check, before = location.check, self.draft.broken_rules() or []
        rule = "its rule" if location.type is None else f"the rule of {location.type}"
        sentence = f"{check.field or 'the file'} breaks {rule}: {check.expected or check.id}"
        for draft in self._drafts(location):
            expected = _expectation(location, before, draft.broken_rules())
            if expected is None or self.is_unchanged(stored := draft.build()) or not draft.counts_fit:
                continue
            if not self.format.claims(stored[:START]):
                return Corruption(stored, sentence, MAGIC, 0, check.id, FormatError)
            offset = draft.start(expected["path"]) if draft.fault is None else draft.fault
            return Corruption(stored, sentence, offset=offset, rule=check.id, **expected)
        return None

    def _drafts(self, location: RuleLocation) -> Iterator[Draft]:
        """Yields files that may break the rule; none if the file lacks its Struct."""
        check, region = location.check, location.region
        if region and self.draft.struct_in(region) is not location.struct:
            return iter(())
        if isinstance(check, j.JsonRule):
            last = LastRow(self)
            return (last.draft_of(template % last.parts) for template in check.broken_by)
        if isinstance(check, NamesOnce):
            return self._same_name(region or check.field)
        if location.of_rows:
            return self._entries(location) if self.draft.is_metadata(region) else self._rows(location)
        if region:
            return (self.draft.replace({region: row}) for row in self._patches(location, dict(self.draft.regions[region])))
        return self._file(location)

    def _patches(self, location: RuleLocation, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the row with values near the bounds of the rule, for which its predicate does not
        hold, and with other fields that must change with them."""
        check, struct = location.check, location.struct
        required = [other for other in struct.rules if other.is_required]
        required = required[: required.index(check)] if check in required else required
        row = {**row, **_required_values(check)}
        value, node, context = row[check.field], struct.field(check.field).node, self.context(struct, row)
        if isinstance(node, s.ListNode) and node.key is None:
            value = [*value] or [self.draw(wrapped_values(node.item, context))]  # an element to repeat
        values = [*candidates(check, value, context), *check.broken_by]
        if isinstance(value, list):
            values.append(self.draw(wrapped_values(node, context)))
        patches = [{check.field: value} for value in values]
        for type_ in getattr(self.draft.declared(location.region), "types", ()) if location.region else ():  # of entries
            typed = [*values, *EXAMPLES] if check.field == "value" else EXAMPLES
            patches += [{"type": type_, "value": value} for value in typed if check.field in ("type", "value")]
        compared = row.keys() & (check.needs() or ())
        patches += [dict.fromkeys(compared, value) for value in values if len(compared) > 1 and isinstance(value, int)]
        for patch in patches:
            changed = self._resized(struct, row, patch)
            context = self.context(struct, changed)
            if (
                all(fits(part, changed[part.name], context) for part in struct.fields if part.name in changed)
                and all(holds(other, context) for other in required)
                and not holds(check, context)
            ):
                yield changed

    def _resized(self, struct: s.StructOf, row: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the row with other values, and new lists and bytes if their lengths depend on
        these."""
        changed = {**row, **patch}
        for part in struct.fields:
            length = length_of(part.node)
            if part.name in row.keys() - patch.keys() and length and patch.keys() & (fields_in(length) or ()):
                context = self.context(struct, changed)
                if len(changed[part.name]) != (size := value_so_far(context, length)) and size in range(LONG):
                    changed[part.name] = self.draw(values_of(part.node, context))
        return changed

    def context(self, struct: s.StructOf, row: Mapping[str, Any]) -> Any:
        """Returns the context of a Struct in the file."""
        context = inner_context(self.root, struct.declared, row)
        derive(context, struct.declared)
        return context

    def _entries(self, location: RuleLocation) -> Iterator[Draft]:
        """Breaks a rule of an entry, which is added, or replaces the one with the same key."""
        region, metadata = location.region, self.draft.regions[location.region]
        for row in self._patches(location, self.new_row(region)):
            key, keys, draft, seen = row["key"], list(metadata), self.draft, metadata
            if not location.check.is_required:
                known = {other: metadata.stored_value(other) for other in metadata}
                seen = metadata.replace({**known, key: with_type(row["type"], row["value"])})
                if self.alignment_in(with_value(self.root, region, seen)) != self.alignment:
                    draft = self.draft.replace({self.table: []}, b"")  # no payload is misplaced
            yield draft.with_row(region, keys.index(key) if key in keys else len(keys), row, seen)

    def new_row(self, table: str) -> dict[str, Any]:
        """Draws a row, whose first field is unique if it is a name or key."""
        struct = self.draft.struct_in(table)
        assert struct
        row, name = dict(self.draw(values_of(struct.declared, self.root))), struct.fields[0].name
        if not isinstance(row.get(name), str):
            return row
        taken = {row[name] for row in self.draft.rows(table)}
        return {**row, name: next(free for n in range(len(taken) + 1) if (free := f"x{n}") not in taken)}

    def append(self, gap: int = 0, quantized: bool = False, empty: bool = True, padded: bool = True) -> Draft:
        """Returns a draft with a tensor after all others."""
        types = [type_ for type_ in self.format.types if not (quantized and type_.exact)] or list(self.format.types)
        shapes = ([0] if empty else [1, type_.least_row] for type_ in types)
        type_, shape = next((type_, shape) for type_, shape in zip(types, shapes, strict=True) if type_.refusal(shape) is None)
        end = max((tensor.offset + tensor.nbytes for tensor in self.file.tensors.values()), default=0)
        offset = end + -end % self.alignment + gap
        payloads = self.draft.payloads[:offset].ljust(offset, b"\0") + bytes(type_.nbytes(shape))
        payloads += bytes(-len(payloads) % self.alignment) if padded else b""
        row = {**self.new_row(self.table), "dims": list(self.format.dims_of(shape)), "dtype": type_, "offset": offset}
        return self.draft.replace({}, payloads).with_row(self.table, len(self.draft.rows(self.table)), row)

    def _rows(self, location: RuleLocation) -> Iterator[Draft]:
        """Breaks a rule of an existing row, or of an added row with an empty payload."""
        field, table = location.struct.field(location.check.field), location.region
        rows = self.draft.rows(table)
        if rows and not (field.is_count or field.name in SHARED):
            number = self.draw(st.integers(0, len(rows) - 1))
            yield from (self.draft.with_row(table, number, row) for row in self._patches(location, rows[number]))
        if table != self.table:
            yield from (self.draft.with_row(table, len(rows), row) for row in self._patches(location, self.new_row(table)))
            return
        for gap in range(4 if field.name == "offset" else 1):
            draft = self.append(gap)
            row = draft.rows(self.table)[-1]
            changed: Iterable[Mapping[str, Any]]
            if location.type or isinstance(location.check, TensorFits):
                changed = self._refused_dims(location, row)
            elif field.is_count:
                changed = [{**row, field.name: row["offset"] + 1}]
            else:
                changed = [row] if field.name == "offset" else self._patches(location, row)
            yield from (draft.with_row(self.table, len(rows), row) for row in changed)

    def _refused_dims(self, location: RuleLocation, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the row with a type and dims that break its rule, and no rule before it."""
        type_, shapes = location.type or row["dtype"], [[HUGE] * 3]
        if location.type:
            least, refused = type_.least_row, f"expected {location.check.expected}"
            shapes = [[], [1], [least + 1], [1, least + 1], [2, least + 1], [0, least], [1, 0]]
            shapes = [shape for shape in shapes if (type_.refusal(shape) or "").startswith(refused)]
        counts = {part.name: 0 for part in location.struct.fields if part.is_count}  # cannot be computed
        return ({**row, **counts, "dtype": type_, "dims": self.format.dims_of(shape)} for shape in shapes)

    def _same_name(self, table: str) -> Iterator[Draft]:
        """Adds a row with the name of the first one."""
        draft = self.draft if self.draft.rows(table) else self.draft.with_row(table, 0, self.new_row(table))
        rows = draft.rows(table)
        yield draft.with_row(table, len(rows), rows[0])

    def _file(self, location: RuleLocation) -> Iterator[Draft]:
        """Breaks a rule on a whole region."""
        check = location.check
        name, node = check.field, self.draft.field(check.field).node
        if isinstance(node, s.PaddingNode):
            drafts = [self.draft]
            for region in filter(self.draft.is_metadata, self.draft.regions):  # another entry may cause padding
                entry, at = self.new_row(region), len(self.draft.rows(region))
                longer = ({**entry, "key": entry["key"].ljust(size, "a")} for size in range(2, 8))
                drafts += [self.draft.with_row(region, at, row) for row in longer]
            for draft in drafts:
                if nbytes := len(draft.replace({name: None}).built[name]):
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
        elif not isinstance(node, s.DerivedNode):
            row = {**self.draft.regions, name: self.root[name]}  # which may be a count
            yield from (self.draft.replace(changed) for changed in self._patches(location, row))

    # Fields

    def too_many(self) -> Corruption | None:
        """Makes a count in the header greater than the number of its elements."""
        counted = [name for name in self.format.regions if self.draft.counter(name)]
        if not counted:
            return None
        region = self.draw(st.sampled_from(counted))
        path = d.count_path(self.draft.field(region).node, region)
        for draft in (self.draft.with_count(region, count) for count in COUNTS):
            with suppress(FormatError):  # out of the count's range
                if draft.counter(region) and self.format.claims((stored := draft.build())[:START]):
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
        """Writes bytes that its construct refuses into a field of an added row."""
        for region in self.regions(s.ListNode):
            if d.aspect_of_region(self.format, region) != aspect or not rows_of(self.draft.field(region).node):
                continue
            row, at = self.new_row(region), len(self.draft.rows(region))
            if ARRAY in getattr(self.draft.declared(region), "types", ()) and self.draw(st.integers(0, 2)):
                row |= {"type": ARRAY, "value": ARRAYS}
            draft = self.draft.with_row(region, at, row)
            if not draft.counts_fit:
                continue
            positions = draft.built._params.positions
            starts = sorted({start for start, _ in positions.values()} | {len(draft.head[0])})
            faults = [
                (path, start, least_size(field), fault, stored)
                for path, (start, field) in positions.items()
                if path.startswith(f"{region}{STEP}{at}{STEP}")
                for fault in refused_values(field)
                for stored in fault.stored
                if fault.stored is ALL_BITS or start + least_size(field) + len(stored) <= starts[bisect(starts, start)]
            ]
            if not faults:
                continue
            path, start, nbytes, fault, stored = self.draw(st.sampled_from(faults))
            first, stored = (start, b"\xff" * nbytes) if fault.stored is ALL_BITS else (start + nbytes, stored)
            built = draft.build()
            if fault.error is TruncatedError and len(built) - first >= 1 << 8 * nbytes:
                reject()  # the file has as many bytes as are claimed
            built = built[:first] + stored + built[first + len(stored) :]
            return Corruption(built, f"{path.split(STEP)[2]}: {fault.sentence}", path, start, error=fault.error)
        return None

    def bad_line(self) -> Corruption | None:
        """Adds a broken line to line-based metadata."""
        for region in self.regions(s.LinesNode):
            metadata = self.file.regions[region]
            before = KeyValueLines.encode(metadata).removesuffix(LINE_END)
            before += LINE_END if before else b""
            fault, line = self.draw(
                st.sampled_from([(fault, line) for fault in self.draft.field(region).refuses for line in fault.stored])
            )
            at, stored = len(before) + line.index(b"\0"), before + line.replace(b"\0", b"")
            draft = self.draft.with_count(region, len(stored)).replace({region: Raw(stored, metadata)})
            path = f"{region} -> line {stored.count(LINE_END, 0, at) + 1}"
            return Corruption(draft.build(), f"{region}: {fault.sentence}", path, draft.start(region) + at, error=FormatError)
        return None

    def bad_json(self, aspect: str) -> Corruption | None:
        """Breaks the text of a JSON table, its last row, or its reserved entry."""
        if self.table not in self.regions(s.JsonTableNode):
            return None
        last = LastRow(self)
        path, fault, stored = d.evenly(self.draw, list(last.refused_texts() if aspect == d.METADATA else last.refused_rows()))
        draft = last.draft_of(stored)
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
        rows = self.draft.built[breaker.table]
        self.number, entry, stored = len(rows) - 1, rows.members[rows.entry(-1)], rows.stored
        values = rows.fields_of(entry)
        self.pairs = {part.name: stored[part.key : part.end] for part in values}
        self.parts = {
            b"rows": stored[: entry.key],
            b"name": stored[entry.key : entry.key_end],
            b"row": stored[entry.start : entry.end],
            b"pairs": b",".join(self.pairs.values()),
            b"first": next(iter(self.pairs.values())),
            b"values": b",".join(stored[part.start : part.end] for part in values),
            b"reserved": to_json(self.declared.reserved).encode(),
        }

    def draft_of(self, text: bytes) -> Draft:
        """Returns the draft with a text, and the offset of its fault, which a NUL marks."""
        draft = self.draft.with_text(text.replace(b"\0", b"", 1))
        return replace(draft, fault=draft.start(self.table.name) + at if (at := text.find(b"\0")) >= 0 else None)

    def refused_rows(self) -> Iterator[tuple[str, Fault, bytes]]:
        """Yields the reported field, the fault, and the text, for the table and the last row."""
        yield from ((path, fault, stored % self.parts) for path, fault, stored in self.refused(self.table))
        lacks, before = self.table.refuses[-1], b"%(rows)b%(name)b:" % self.parts
        keys = dict[str, s.Field]()
        for field in struct_of(self.declared.row).fields:
            if key := getattr(self.declared.fields.get(field.name), "key", None):
                keys.setdefault(key, field)
        replaced = quote(json.loads(self.parts[b"name"]))  # by a later entry of this name
        path = f"{self.table.name} -> {replaced} -> {next(iter(keys.values())).name}"
        yield path, lacks, b"%(rows)b%(name)b:\0{},%(name)b:%(row)b}" % self.parts
        for key, field in keys.items():
            others = [pair for name, pair in self.pairs.items() if name != key]
            path = f"{self.table.name} -> {self.number} -> {field.name}"
            yield path, lacks, b"%b\0{%b}}" % (before, b",".join(others))
            for fault in field.refuses:
                for stored in (b'\0"?"',) if fault.stored is ALL_BITS else fault.stored:
                    yield path, fault, b"%b{%b}}" % (before, b",".join([*others, b"%b:%b" % (to_json(key).encode(), stored)]))

    def refused_texts(self) -> Iterator[tuple[str, Fault, bytes]]:
        """Yields the same for the reserved entry."""
        for path, fault, stored in self.refused(self.draft.field(self.declared.metadata)):
            yield path, fault, b"%(rows)b%(name)b:%(row)b,%(reserved)b:" % self.parts + stored + b"}"

    def refused(self, field: s.Field) -> Iterator[tuple[str, Fault, bytes]]:
        """Yields the reported part, the fault and the bytes, for each fault of a field."""
        for fault in field.refuses:
            path = f"{field.name} -> {fault.part.replace('#', str(self.number))}" if fault.part else field.name
            yield from ((path, fault, stored) for stored in fault.stored)


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
