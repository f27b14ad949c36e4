"""Rules broken one at a time: which other value of a field, row or region does it, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import construct
from construct.core import evaluate
from hypothesis import strategies as st

from glft_schema.codec import numbers, type_codes
from glft_schema.codec import text as codec_text
from glft_schema.codec.context import BIG, LITTLE, Context
from glft_schema.codec.expressions import equality, read
from glft_schema.codec.metadata import KeyValues
from glft_schema.codec.metadata_rules import HasKey, KeyType
from glft_schema.codec.records import Record
from glft_schema.codec.rules import REQUIRED, Check, Rule
from glft_schema.codec.structs import Forged, Padding, member, unwrapped
from glft_schema.codec.tables import NamesOnce, Nested
from glft_schema.codec.typed_values import Array, StoredValue
from glft_schema.describe.schema import struct_of
from glft_schema.errors import FormatError
from glft_schema.files.container import Container
from glft_schema.files.file import File
from glft_schema.files.parsing import check_rules
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.engine.chunks import matrix
from glft_schema.tensors.region import TensorData, TensorFits
from glft_schema.testing.strategies.constructs import values_of
from glft_schema.testing.strategies.corruption import Corruption
from glft_schema.testing.strategies.drafts import Draft, row_struct
from glft_schema.testing.strategies.fitting import EXAMPLES, candidates, derive, holds, resized
from glft_schema.testing.strategies.layouts import size_of
from glft_schema.testing.strategies.lengths import fits
from glft_schema.testing.strategies.rule_sites import Site
from glft_schema.testing.strategies.structs import drawing_context

PLACE = ("dims", "dtype", "offset")  # of a row: two rows that share a payload agree in them
HUGE = 1 << 31  # of two such dims the product cannot be counted


@dataclass(frozen=True)
class Attempt:
    """A draft that breaks a rule at `path`.

    Attributes:
        draft: the file.
        path: the field that has to be named.
        where: what marks its first byte: the forged value, or None for the first payload's.
    """

    draft: Draft
    path: str
    where: Forged | None = None


class Breaker:
    """Breaks rules in one file.

    Args:
        draw: as in a strategy.
        file: a file that keeps to what no reader can do without.
    """

    def __init__(self, draw: st.DrawFn, file: File) -> None:
        self.draw = draw
        self.file = file
        self.draft = Draft.of(file)
        self.root = self.draft.head()[1]
        self.root.update({"_params": drawing_context(rules=()), "_declared": file.format.struct})

    def broken(self, site: Site) -> Corruption | None:
        """Returns the file with a rule broken, or None where it has no place for that."""
        for attempt in self.attempts(site):
            if corruption := self.finished(site, attempt):
                return corruption
        return None

    def attempts(self, site: Site) -> Iterator[Attempt]:
        """Yields drafts in which the rule is broken."""
        if site.type is not None or isinstance(site.check, TensorFits):
            yield from self._dims(site)
        elif isinstance(site.check, NamesOnce):
            yield from self._same_name(site)
        elif site.region and site.of_rows:
            yield from self._entries(site) if self._is_metadata(site.region) else self._rows(site)
        elif site.region:
            yield from self._fields(site)
        else:
            yield from self._file(site)

    def finished(self, site: Site, attempt: Attempt) -> Corruption | None:
        """Returns the corruption that an attempt is; None where other rules of the same sets are broken by it, too."""
        check = site.check
        try:
            stored = attempt.draft.stored()
        except FormatError:
            return None  # a number that its field cannot hold, such as a dim of 64 bits in version 1
        if unchanged(self.file, stored):
            return None
        offset = len(stored) - len(attempt.draft.payloads) if attempt.where is None else attempt.where.start
        sentence = (
            f"{check.field} is not {_sentence(check)}" if site.type is None else f"of {site.type}: not {_sentence(check)}"
        )
        made = Corruption(stored, sentence, attempt.path, offset, check.id)
        if not check.is_required:
            return self._found_by(check, made)
        fits = next((part.id for part in site.struct.subcons if isinstance(part, TensorFits)), None)
        known = stored[:4] in self.file.format.magics  # otherwise no format is asked
        reported = fits if site.type is not None else check.id if known else None
        return replace(made, error=getattr(check, "error", FormatError), reported=reported)

    def _found_by(self, check: Check, made: Corruption) -> Corruption | None:
        """Adds the findings that have to be reported: of all sets that have the rule, or else of one in which it is alone."""
        claim = (check.id, made.path)
        for sets in (check.sets, *((name,) for name in check.sets if name != REQUIRED)):
            before = [(finding.rule, finding.path) for finding in check_rules(self.file, sets)]
            if claim in before:
                continue  # the rule is broken there already
            try:
                after = [(finding.rule, finding.path) for finding in check_rules(Container.parse(made.stored), sets)]
            except FormatError:
                after = []  # it is said all the same what has to be reported: whoever looks will see the difference
            if all(found == claim or found in before for found in after):
                kept = [found for found in before if found in after]
                return replace(made, sets=sets, findings=(claim, *kept))
        return None

    # Values of fields

    def _context(self, struct: construct.Struct, row: Mapping[str, Any]) -> Any:
        at = Context({name: value.seen if isinstance(value, Forged) else value for name, value in row.items()})
        at.update({"_": self.root, "_params": self.root._params, "_root": self.root, "_declared": struct})
        derive(at, struct)
        return at

    def _patches(self, site: Site, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields fields of a row with other values, so that the rule is broken and no rule before it that always holds."""
        check, struct = site.check, site.struct
        for patch in self._near(check, struct, row):
            changed = {**row, **patch}
            at = self._context(struct, changed)
            if not all(fits(struct_of(struct).field(name), changed[name], at) for name in {*patch, *dict(switches(struct))}):
                continue
            others = [part for part in struct.subcons if isinstance(part, Check) and part.is_required and part is not check]
            if check.is_required:
                others = [part for part in others if struct.subcons.index(part) < struct.subcons.index(check)]
            if not holds(check, at) and all(holds(other, at) for other in others):
                field = member(struct, check.field)
                yield {**changed, check.field: Forged(field, changed[check.field], changed[check.field])}

    def _near(self, check: Check, struct: construct.Struct, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields other values of the guarded field, with those of other fields that they go with."""
        field, given = check.field, applies(check)
        at = self._context(struct, {**row, **given})
        values = [*candidates(check, row[field], at), *edges(member(struct, field))]
        values += check.must.broken_by if isinstance(check, Rule) else ()
        yield from ({**given, field: value} for value in values)
        for name, switch in switches(struct):
            code, cases = read(switch.keyfunc), switch.cases.items()
            if str(code) == field:
                for type_, case in cases:
                    yield from ({**given, field: type_, name: value} for value in examples(type_, case))
            elif name == field:
                for type_, case in cases:
                    yield from ({**given, str(code): type_, name: value} for value in (*values, *examples(type_, case)))

    def _fields(self, site: Site) -> Iterator[Attempt]:
        """Breaks a rule of a region that is one Struct."""
        region = self.draft.regions[site.region]
        for patched in self._patches(site, dict(region)):
            path = f"{site.region} -> {site.check.field}"
            yield Attempt(self.draft.having({site.region: patched}), path, patched[site.check.field])

    # Metadata with types

    def _is_metadata(self, region: str) -> bool:
        return isinstance(self.draft.table(region), KeyValues)

    def _entries(self, site: Site) -> Iterator[Attempt]:
        """Breaks a rule of an entry: of one more, or of the one with the same key."""
        rows = self.draft.rows(site.region)
        entry = self._new_row(site.region, "key")
        for patched in self._patches(site, entry):
            key = patched["key"].seen if isinstance(patched["key"], Forged) else patched["key"]
            at = next((i for i, row in enumerate(rows) if row["key"] == key), len(rows))
            path, draft = f"{site.region} -> {at} -> {site.check.field}", self.draft
            changed = [*rows[:at], patched, *rows[at + 1 :]]
            seen = None
            if not site.check.is_required:
                known = {row["key"]: StoredValue(row["type"], row["value"]) for row in rows}
                old = self.draft.regions[site.region]
                seen = old.replaced({**known, key: StoredValue(*(_seen(patched[name]) for name in ("type", "value")))})
                draft = self._relaid(site.region, seen)
            yield Attempt(draft.with_rows(site.region, changed, seen), path, patched[site.check.field])

    def _relaid(self, region: str, seen: Any) -> Draft:
        """Returns the draft with its payloads where another alignment asks for them, if there is another one."""
        context = Context({**self.root, region: seen})
        derive(context, self.file.format.struct)
        step = self.draft.data.padded_to
        if (alignment := evaluate(step, context)) == evaluate(step, self.root):
            return self.draft
        rows, payloads = [], b""
        for row in self.draft.rows(self.file.format.table):
            payloads += bytes(-len(payloads) % alignment)
            rows.append({**row, "offset": len(payloads)})
            payloads += self.file.tensors[row["name"]].raw
        payloads += bytes(-len(payloads) % alignment)
        return self.draft.having({self.file.format.table: rows}, payloads)

    # Rows

    def _new_row(self, region: str, name: str) -> dict[str, Any]:
        """Draws a row with a name that no other one has."""
        struct = row_struct(self.draft.table(region))
        assert struct is not None
        row = dict(self.draw(values_of(struct, self.root)))
        taken = {row[name] for row in self.draft.rows(region)}
        return {**row, name: next(free for n in range(len(taken) + 1) if (free := f"x{n}") not in taken)}

    def _appended(self, gap: int = 0, quantized: bool = False, empty: bool = True, padded: bool = True) -> tuple[Draft, int]:
        """Returns a draft with a tensor after all others, and the number of its row."""
        format, alignment = self.file.format, evaluate(self.draft.data.padded_to, self.root)
        rows = self.draft.rows(format.table)
        types = [type_ for type_ in format.types if not (quantized and type_.exact)]
        shapes = [[0]] if empty else [[1], *([1, type_.least_row] for type_ in types[:1])]
        type_, shape = next((type_, shape) for type_ in types for shape in shapes if type_.refusal(shape) is None)
        payloads = self.draft.payloads
        last = max((row.offset + self.file.tensors[row.name].nbytes for row in self.file.regions[format.table]), default=0)
        offset = max(last + -last % alignment, 0) + gap
        payloads = payloads + bytes(max(offset - len(payloads), 0))
        payloads = payloads[:offset] + bytes(type_.nbytes(shape))
        payloads += bytes(-len(payloads) % evaluate(self.draft.data.padded_to, self.root)) if padded else b""
        row = {**self._new_row(format.table, "name"), "dims": list(format.dims_of(shape)), "dtype": type_, "offset": offset}
        return self.draft.having({}, payloads).with_rows(format.table, [*rows, row]), len(rows)

    def _rows(self, site: Site) -> Iterator[Attempt]:
        """Breaks a rule of a row: of one that is there, or of one more without a payload."""
        table, field = self.file.format.table, site.check.field
        drafts = []
        if (rows := self.draft.rows(table)) and field not in PLACE:
            drafts.append((self.draft, self.draw(st.integers(0, len(rows) - 1))))
        appended = (self._appended(gap) for gap in ((1, 2, 3) if field == "offset" else (0,)))
        drafts += [made for made in appended if is_read(made[0])]
        for draft, at in drafts:
            rows = _rows_of(draft, table)
            found = self._patches(site, rows[at]) if field != "offset" else self._as_it_is(site, rows[at])
            for patched in found:
                if not site.check.is_required and not self._same_size(rows[at], patched):
                    continue
                others = [row[field] for row in (*rows[:at], *rows[at + 1 :])] if field == "name" else []
                if patched[field].seen in others:  # which another rule is against
                    continue
                changed = draft.with_rows(table, [*rows[:at], patched, *rows[at + 1 :]])
                yield Attempt(changed, f"{table} -> {at} -> {field}", patched[field])

    def _same_size(self, row: Mapping[str, Any], patched: Mapping[str, Any]) -> bool:
        """Tells whether a row's payload takes as many bytes with other dims."""
        shapes = [self.file.format.dims_of(_seen(some["dims"])) for some in (row, patched)]
        return len({size_of(Context(dtype=row["dtype"], shape=shape)) for shape in shapes}) == 1

    def _as_it_is(self, site: Site, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if not holds(site.check, self._context(site.struct, row)):
            name = site.check.field
            yield {**row, name: Forged(member(site.struct, name), row[name], row[name])}

    def _dims(self, site: Site) -> Iterator[Attempt]:
        """Breaks the rule that a type can hold its dims, or the one of a type that says which these are."""
        format = self.file.format
        draft, at = self._appended()
        rows = _rows_of(draft, format.table)
        shapes = [[HUGE, HUGE]] if site.type is None else refused(site.type, site.check)
        for shape in shapes:
            dims = list(format.dims_of(shape))
            forged = Forged(member(site.struct, site.check.field), dims, dims)
            patched = {**rows[at], "dims": forged, "dtype": site.type or rows[at]["dtype"]}
            yield Attempt(draft.with_rows(format.table, [*rows[:at], patched]), f"{format.table} -> {at} -> dims", forged)

    def _same_name(self, site: Site) -> Iterator[Attempt]:
        """Gives one more row the name of the first one."""
        table = site.region or site.check.field
        name = site.check.field if site.region else "name"
        rows = self.draft.rows(table) or [self._new_row(table, name)]
        struct = row_struct(self.draft.table(table))
        assert struct is not None
        forged = Forged(member(struct, name), rows[0][name], rows[0][name])
        draft = self.draft.with_rows(table, [*rows, {**rows[0], name: forged}])
        yield Attempt(draft, f"{table} -> {len(rows)} -> {name}", forged)

    # The whole file

    def _file(self, site: Site) -> Iterator[Attempt]:
        """Breaks a rule on a region as a whole."""
        name = site.check.field
        field = self.draft.table(name)
        if isinstance(field, Padding):
            yield from self._padding(site)
        elif isinstance(field, TensorData):
            yield from self._payloads(site)
        elif isinstance(getattr(site.check, "must", None), HasKey):
            yield from self._without(site)
        elif name == self.file.format.table:
            draft, at = self._appended(gap=evaluate(self.draft.data.padded_to, self.root))
            rows = _rows_of(draft, name)
            struct = row_struct(field)
            assert struct is not None
            forged = Forged(member(struct, "offset"), rows[at]["offset"], rows[at]["offset"])
            if all(row["dtype"].is_known for row in rows):  # whose end nobody knows
                draft = draft.with_rows(name, [*rows[:at], {**rows[at], "offset": forged}])
                yield Attempt(draft, f"{name} -> {at} -> offset", forged)

    def _without(self, site: Site) -> Iterator[Attempt]:
        """Takes away the entry that a rule asks for."""
        name, key = site.check.field, site.check.must.key
        metadata = self.draft.regions[name]
        left = metadata.without(key) if key in metadata else metadata
        for draft in (self.draft, self._appended(quantized=True, empty=False)[0]):
            table = self.file.format.table
            rows = [Record(dict(row)) for row in _rows_of(draft, table)]
            if not holds(site.check, Context({**self.root, name: left, table: rows})):
                forged = Forged(self.draft.table(name), left, left)
                yield Attempt(draft.having({name: forged}), name, forged)

    def _padding(self, site: Site) -> Iterator[Attempt]:
        """Puts a byte that is not zero into padding; makes room for it by longer keys where there is none."""
        name = site.check.field
        drafts = [self.draft]
        for region in self.draft.regions:
            if self._is_metadata(region):
                entry, rows = self._new_row(region, "key"), self.draft.rows(region)
                for size in range(2, 8):
                    drafts.append(self.draft.with_rows(region, [*rows, {**entry, "key": resized(entry["key"], size)}]))
        for draft in drafts:
            nbytes = len(draft.having({name: None}).head()[1][name])
            if nbytes:
                stored = b"\1" + bytes(nbytes - 1)
                forged = Forged(self.draft.table(name), stored, stored)
                yield Attempt(draft.having({name: forged}), name, forged)
                return

    def _payloads(self, site: Site) -> Iterator[Attempt]:
        """Changes what stands behind the last payload: bytes that are not zero, or none where there should be some."""
        for draft in (self.draft.having({}, self.draft.payloads + b"\1"), self._appended(empty=False, padded=False)[0]):
            if not is_read(draft):
                continue
            record = Container.parse(draft.stored()).regions
            context = Context({**record, **record.counts})
            context.update({"_params": self.root._params})
            if not holds(site.check, context):
                yield Attempt(draft, site.check.field)


def unchanged(file: File, stored: bytes) -> bool:
    """Tells whether these are the bytes of a file."""
    return len(stored) == file.source.size and stored == bytes(file.source.view(0, file.source.size))


def is_read(draft: Draft) -> bool:
    """Tells whether a draft can be read. With more bytes, a payload of unknown type may reach into another one."""
    if not all(row["dtype"].is_known for row in _rows_of(draft, draft.format.table)):
        try:
            Container.parse(draft.stored())
        except FormatError:
            return False
    return True


def can_be_broken(site: Site) -> bool:
    """Tells whether values that break a rule are known: they follow from its predicate, its condition or its class."""
    check = site.check
    if site.type is not None or not isinstance(check, Rule):
        return True
    field = member(site.struct, check.field)
    known = bool(check.must.broken_by) or isinstance(check.must, HasKey) or read(check.condition) is not None
    return known or isinstance(field, (Padding, TensorData)) or bool(edges(field))


def applies(check: Check) -> dict[str, Any]:
    """Returns fields with which a check applies, as far as it says so."""
    if isinstance(check, KeyType):
        return {"key": check.keys.example}
    equal = equality(check.when) if isinstance(check, Rule) else None
    return {equal[0]: equal[1]} if equal else {}


def switches(struct: construct.Struct) -> Iterator[tuple[str, construct.Switch]]:
    """Yields the fields of a Struct that are stored as another field's type says."""
    for part in struct.subcons:
        if isinstance(switch := unwrapped(part), construct.Switch):
            yield part.name, switch


def examples(type_: Any, case: Any) -> Iterator[Any]:
    """Yields values of a type."""
    yield from EXAMPLES
    if isinstance(case, Nested):
        yield Array(type_, ())


def _seen(value: Any) -> Any:
    return value.seen if isinstance(value, Forged) else value


def _sentence(check: Check) -> str:
    return check.expected or "as its rule says"


def _rows_of(draft: Draft, table: str) -> list[Mapping[str, Any]]:
    """Returns the rows of a table, forged or not."""
    value = draft.regions.get(table)
    return list(value.value) if isinstance(value, Forged) else draft.rows(table)


def refused(type_: TensorType, check: Check) -> Iterator[list[int]]:
    """Yields shapes that a type does not hold because of one rule, and of none before it."""
    least = type_.least_row
    checks = [part for part in type_.payload.subcons if isinstance(part, Check)]
    before = checks[: checks.index(check)]
    for shape in ([], [1], [least + 1], [1, least + 1], [2, least + 1], [0, least], [1, 0]):
        out, columns = matrix(shape)
        at = drawing_context(rules=(), **{"dims": shape, "out": out, "in": columns})
        if not holds(check, at) and all(holds(other, at) for other in before):
            yield shape


@singledispatch
def edges(declared: Any) -> list[Any]:
    """Returns values of a construct that some rule may not allow."""
    return []


@edges.register
def _(declared: codec_text.Text) -> list[Any]:
    return ["", " "] if declared.strict else ["", " ", "\udcff"]


@edges.register
def _(declared: construct.StringEncoded) -> list[Any]:
    return ["", " "]


@edges.register
def _(declared: numbers.ByteOrderOf) -> list[Any]:
    return [LITTLE, BIG]


@edges.register
def _(declared: type_codes.TypeCode) -> list[Any]:
    """The types of the table, and one that it lets through although it does not know it."""
    table = declared.table
    others = [table[code] for code in range(256) if table.unknown and not table[code].is_known][:1] if table.unknown else []
    return [*others, *table]
