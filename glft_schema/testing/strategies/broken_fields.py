"""Fields broken one at a time, where no rule has a name: cut off, unknown, claiming too much, or in another one's place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import construct
from construct import this
from hypothesis import reject
from hypothesis import strategies as st

from glft_schema.codec import arrays
from glft_schema.codec import text as codec_text
from glft_schema.codec.expressions import field_path
from glft_schema.codec.metadata import KeyValues
from glft_schema.codec.metadata_lines import KeyValueLines
from glft_schema.codec.numbers import ByteOrderOf, Sizes
from glft_schema.codec.structs import Count, Forged, Padding, Struct, unwrapped
from glft_schema.codec.tables import least_size
from glft_schema.codec.type_codes import TypeCode
from glft_schema.codec.typed_values import ARRAY
from glft_schema.errors import FormatError, TruncatedError, shown
from glft_schema.files.file import File
from glft_schema.files.parsing import trace_fields
from glft_schema.testing.strategies.aspects import ALIGNMENT, CONSISTENCY, DATA, HEADER, METADATA, TENSOR_INFO, aspect_of_region
from glft_schema.testing.strategies.broken_rules import Breaker
from glft_schema.testing.strategies.corruption import Corruption
from glft_schema.testing.strategies.drafts import Draft, row_struct

Damage = Callable[[File], st.SearchStrategy[Corruption | None]]  # None where the file has no place for it
GREATEST = ((1 << 64) - 1, (1 << 32) - 1, (1 << 16) - 1)  # where none of them fits, that of a byte does


def places(file: File) -> list[tuple[str, int, int]]:
    """Returns path, start and end of each field without fields of its own, payloads' among them; those without bytes, too."""
    spans = (span for span in trace_fields(file) if not span.has_parts and span.path != "data")
    found = [(span.path, span.start, span.end or span.start) for span in spans]
    seen = set()
    for tensor in file.tensors.values():
        if tensor.identity not in seen and tensor.dtype.is_known:
            seen.add(tensor.identity)
            fields = tensor.dtype.field_spans(tensor.shape).items()
            path = f"data -> {shown(tensor.name)}"
            found += [(f"{path} -> {name}", tensor.position + at, tensor.position + at + size) for name, (at, size) in fields]
    return found


def truncated(file: File, aspect: str | None = None) -> st.SearchStrategy[Corruption | None]:
    """Cuts a file off inside of a field, which is of an aspect where one is given."""
    fields = places(file)
    ahead = {start: path for path, start, _ in fields if isinstance(_declared(file, path), ByteOrderOf)}

    def may_lack(path: str) -> bool:
        part = _declared(file, path)
        return isinstance(part, Padding) and bool(part.may_lack(file.regions))

    counts = list(_counts(file))
    whole = [(path, start, end) for path, start, end in fields if end > start and not may_lack(path)]
    if aspect is not None:
        whole = [place for place in whole if aspect_of_region(file.format, place[0].partition(" -> ")[0]) == aspect]
    if not whole:
        return st.none()

    @st.composite
    def cut(draw: st.DrawFn) -> Corruption:
        path, start, end = whole[draw(st.integers(0, len(whole) - 1))]
        at = draw(st.integers(start, end - 1))
        too_few = (count for first, nbytes, count in counts if first <= at < first + nbytes)
        where = next(too_few, ahead.get(start, path))
        stored = bytes(file.source.view(0, at))
        return Corruption(stored, f"cut off at byte {at}, in {path}", where, error=TruncatedError)

    return cut()


def _declared(file: File, path: str) -> Any:
    """Returns the construct of a region or of one of its fields; of others None."""
    struct: Any = file.format.struct
    for name in path.split(" -> "):
        struct = (
            next((unwrapped(part) for part in struct.subcons if part.name == name), None)
            if hasattr(struct, "subcons")
            else None
        )
    return struct


def _counts(file: File) -> Iterator[tuple[int, int, str]]:
    """Yields where each table and array begins, the fewest bytes that its count asks for, and the path of the count.

    In file order, outer ones first. The first count whose elements do not fit gets the error.
    """
    for span in sorted(trace_fields(file), key=lambda span: (span.start, -(span.end or 0))):
        value, table = span.value, _declared(file, span.path)
        if isinstance(value, arrays.StoredNumbers):
            least = value.number.itemsize
        elif isinstance(value, arrays.StoredStrings):
            least = value.length.itemsize
        elif (row := row_struct(table)) is not None:
            least = least_size(row)
        elif isinstance(value, list) and span.path.endswith(" -> elements"):
            least = least_size(file.format.metadata.types[ARRAY].field)
        else:
            continue
        count = field_path(this.n, span.path) if table is None else _count_path(table, span.path)
        yield span.start, len(value) * least, count


def _count_path(table: Any, path: str) -> str:
    """Returns the path of the field that says how many rows or bytes the field at `path` has."""
    table = table.subcon if isinstance(table, KeyValues) else table
    return field_path(table.count, path) if hasattr(table, "count") else path


@st.composite
def too_many(draw: st.DrawFn, file: File) -> Corruption:
    """Lets a count in the header claim more than there is."""
    draft = Draft.of(file)
    counted = [name for name in file.format.regions if hasattr(table := draft.table(name), "size") or row_struct(table)]
    region = draw(st.sampled_from(counted))
    table = draft.table(region)
    table = table.subcon if isinstance(table, KeyValues) else table
    stored = _greatest(lambda number: draft.counted(table, number)).stored()
    sentence = f"the count of {region} claims more than there is"
    return Corruption(stored, sentence, _count_path(table, region), error=FormatError, within=True)


def _greatest(made: Callable[[int], Draft]) -> Draft:
    """Returns the draft with the greatest number that fits its field."""
    for number in GREATEST:
        try:
            (draft := made(number)).head()
        except (construct.ConstructError, FormatError):
            continue
        return draft
    return made((1 << 8) - 1)


@st.composite
def in_a_row(draw: st.DrawFn, file: File, aspect: str) -> Corruption | None:
    """Breaks a field of one more row: a text's length, a text, the number of dims, a type."""
    breaker = Breaker(draw, file)
    draft, regions = breaker.draft, [name for name in file.format.regions if aspect_of_region(file.format, name) == aspect]
    if (region := next((name for name in regions if row_struct(draft.table(name))), None)) is None:
        return None
    struct = row_struct(draft.table(region))
    assert struct is not None
    broken = [(part.name, *breaks) for part in struct.subcons if part.name for breaks in field_breaks(unwrapped(part))]
    if not broken:
        reject()
    name, made, sentence, error, exact = draw(st.sampled_from(broken))
    label = next(part.name for part in struct.subcons if part.name)
    rows, row = draft.rows(region), breaker._new_row(region, label)
    path = f"{region} -> {len(rows)} -> {name}"
    forged: list[Forged] = []

    def with_number(number: int) -> Draft:
        forged[:] = [made(number, row[name])]
        return draft.with_rows(region, [*rows, {**row, name: forged[0]}])

    stored = _greatest(with_number).stored()
    start = forged[0].start
    assert start is not None
    if error is TruncatedError and len(stored) - start > forged[0].value:
        reject()  # the file has as many bytes as are claimed
    return Corruption(stored, sentence, path, start if exact else None, error=error)


Made = Callable[[int, Any], Forged]


def field_breaks(field: Any) -> Iterator[tuple[Made, str, type[FormatError], bool]]:
    """Yields what can be wrong with a field: how it is forged, in words, the error, and whether that names the first byte."""
    too_long = "a text claims more bytes than there are"
    if isinstance(field, codec_text.Text):
        yield lambda number, value: Forged(field.length, number, value), too_long, TruncatedError, not field.strict
        if field.strict:
            any_bytes = codec_text.Text(field.length)
            yield lambda number, value: Forged(any_bytes, "\udcff", value), "a text is not UTF-8", FormatError, True
    elif isinstance(field, construct.StringEncoded) and isinstance(field.subcon, construct.Prefixed):
        length = field.subcon.lengthfield
        yield lambda number, value: Forged(length, number, value), too_long, TruncatedError, False
        yield lambda number, value: Forged(field.subcon, b"\xff", value), f"a text is not {field.encoding}", FormatError, True
    elif isinstance(field, Sizes):
        yield lambda number, value: Forged(field.count, number, value), "there are too many sizes", FormatError, False
    elif isinstance(field, TypeCode) and field.table.unknown is None:
        yield lambda number, value: Forged(field.subcon, number, value), "a type is not known", FormatError, True


@st.composite
def long_array(draw: st.DrawFn, file: File) -> Corruption | None:
    """Lets an array in the metadata claim more elements than there are."""
    breaker = Breaker(draw, file)
    draft = breaker.draft
    for region in file.format.regions:
        struct = row_struct(draft.table(region))
        for coded in (unwrapped(part) for part in struct.subcons if part.name) if struct else ():
            for type_ in coded.table if isinstance(coded, TypeCode) else ():
                if (inner := _counted_struct(getattr(type_, "field", None))) is not None:
                    return _long_array(breaker, region, type_, inner)
    return None


def _counted_struct(field: Any) -> Struct | None:
    """Returns the Struct behind a type's field that counts its elements."""
    while not isinstance(field, Struct):
        field = field.subconfunc() if isinstance(field, construct.LazyBound) else getattr(field, "subcon", None)
        if field is None:
            return None
    return field if any(isinstance(unwrapped(part), Count) for part in field.subcons) else None


def _long_array(breaker: Breaker, region: str, type_: Any, inner: Struct) -> Corruption:
    rows = breaker.draft.rows(region)
    counts = {part.name: unwrapped(part).subcon for part in inner.subcons if isinstance(unwrapped(part), Count)}
    codes = {part.name: next(iter(unwrapped(part).table)) for part in inner.subcons if isinstance(unwrapped(part), TypeCode)}
    others = [part.name for part in inner.subcons if part.name not in {**counts, **codes}]
    row = breaker._new_row(region, "key")

    def with_number(number: int) -> Draft:
        array = {
            **codes,
            **{name: Forged(count, number, number) for name, count in counts.items()},
            **{name: [] for name in others},
        }
        return breaker.draft.with_rows(region, [*rows, {**row, "type": type_, "value": Forged(inner, array, None)}])

    stored = _greatest(with_number).stored()
    path = f"{region} -> {len(rows)} -> value -> {next(iter(counts))}"
    return Corruption(stored, "an array claims more elements than there are", path, error=TruncatedError)


@st.composite
def bad_line(draw: st.DrawFn, file: File) -> Corruption | None:
    """Breaks one more line of metadata in lines."""
    draft = Draft.of(file)
    region = next((name for name in file.format.regions if isinstance(draft.table(name), KeyValueLines)), None)
    if region is None:
        return None
    metadata, lines = file.regions[region], draft.table(region)
    before = lines.encode(metadata).removesuffix(b"\n")
    choices = [(b"x", "has no '='", 0), (b"=x", "has no key", 0), (b"=", "has no key", 0), (b"x=\xff", "is not UTF-8", 2)]
    choices += [(f"{key}=".encode(), "has the key of another one", 0) for key in list(metadata)[:1]]
    line, problem, at = draw(st.sampled_from(choices))
    stored = before + (b"\n" if before else b"") + line
    forged = Forged(construct.GreedyBytes, stored, metadata)
    broken = draft.counted(lines, len(stored)).having({region: forged}).stored()
    assert forged.start is not None
    path = f"{region} -> line {len(metadata) + 1}"
    return Corruption(broken, f"a line {problem}", path, forged.start + len(stored) - len(line) + at, error=FormatError)


@st.composite
def misplaced(draw: st.DrawFn, file: File) -> Corruption | None:
    """Lets a payload begin outside of the file, or inside of another one."""
    draft, table = Draft.of(file), file.format.table
    rows = draft.rows(table)
    if not rows:
        return None
    struct = row_struct(draft.table(table))
    assert struct is not None
    offset = next(unwrapped(part) for part in struct.subcons if part.name == "offset")
    known = [i for i, row in enumerate(rows) if row["dtype"].is_known]
    sizes = {i: row.dtype.nbytes(row.shape) for i, row in enumerate(file.regions[table]) if i in known}
    pairs = [(i, j) for i in known for j in known if i != j and sizes[i] > 1 and sizes[j]]
    if draw(st.booleans()) and pairs:
        i, at = draw(st.sampled_from(pairs))
        to, sentence = rows[i]["offset"] + 1, "a payload begins inside of another one"
    else:
        at = draw(st.integers(0, len(rows) - 1))
        to, sentence = len(draft.payloads) + draw(st.integers(1, 1 << 32)), "a payload begins outside of the file"
    forged = Forged(offset, to, to)
    stored = draft.with_rows(table, [*rows[:at], {**rows[at], "offset": forged}, *rows[at + 1 :]]).stored()
    return Corruption(stored, sentence, f"{table} -> {at} -> offset", forged.start, error=FormatError)


def _in(aspect: str) -> tuple[Damage, Damage]:
    """Returns the damages that every aspect with rows has."""
    return partial(truncated, aspect=aspect), partial(in_a_row, aspect=aspect)


# fmt: off
DAMAGES: dict[str, tuple[Damage, ...]] = {  # each as often as it stands there
    METADATA:    (*_in(METADATA), long_array, bad_line, bad_line),
    TENSOR_INFO: _in(TENSOR_INFO),
    HEADER:      (partial(truncated, aspect=HEADER),),
    CONSISTENCY: (too_many, misplaced),
    ALIGNMENT:   (partial(truncated, aspect=ALIGNMENT),),
    DATA:        (partial(truncated, aspect=DATA),),
}
# fmt: on
