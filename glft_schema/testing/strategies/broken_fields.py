"""Files with one broken field: cut off, of an unknown type, too long, or at a wrong offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import construct
from hypothesis import reject
from hypothesis import strategies as st

import glft_schema.describe.nodes as s
from glft_schema.codec import arrays
from glft_schema.codec.context import BIG, Context, byte_order
from glft_schema.codec.expressions import Reference
from glft_schema.codec.metadata_lines import KeyValueLines
from glft_schema.codec.structs import Forged, unwrapped
from glft_schema.codec.tables import least_size
from glft_schema.codec.typed_values import ARRAY
from glft_schema.describe.schema import rows_of, struct_of
from glft_schema.errors import FormatError, TruncatedError, shown
from glft_schema.files.file import File
from glft_schema.files.parsing import trace_fields
from glft_schema.formats.registry import MAGIC, find_format
from glft_schema.storage.source import BytesSource
from glft_schema.storage.streams import START
from glft_schema.testing.strategies.aspects import (
    ALIGNMENT,
    CONSISTENCY,
    DATA,
    HEADER,
    METADATA,
    TENSOR_INFO,
    aspect_of_region,
    evenly,
)
from glft_schema.testing.strategies.broken_rules import Breaker, typed_fields
from glft_schema.testing.strategies.corruption import Corruption
from glft_schema.testing.strategies.drafts import Draft, forged
from glft_schema.testing.strategies.fitting import value_in

MANY = 1 << 47  # a count that every format claims
Damage = Callable[[File], st.SearchStrategy[Corruption | None]]  # None if the file has no such field


def field_spans(file: File) -> list[tuple[str, int, int]]:
    """Returns path, start and end of each field without parts, also in payloads and of no bytes."""
    spans = (span for span in trace_fields(file) if not span.has_parts and span.path != "data")
    fields = [(span.path, span.start, span.end or span.start) for span in spans]
    seen = set()
    for tensor in file.tensors.values():
        if tensor.identity not in seen and tensor.dtype.is_known:
            seen.add(tensor.identity)
            path, start = f"data -> {shown(tensor.name)}", tensor.position
            parts = tensor.dtype.field_spans(tensor.shape).items()
            fields += [(f"{path} -> {name}", start + at, start + at + size) for name, (at, size) in parts]
    return fields


def truncated(file: File, aspect: str | None = None) -> st.SearchStrategy[Corruption | None]:
    """Cuts a file off within a field, which is of an aspect if one is given."""
    fields = field_spans(file)
    orders = ((start, path, _node_at(file, path)) for path, start, _ in fields)
    detected = {start: path for start, path, node in orders if isinstance(node, s.ByteOrder) and node.number}

    regions = Context({**file.regions, **file.regions.counts})

    def may_lack(path: str) -> bool:
        node = _node_at(file, path)
        return isinstance(node, s.Padding) and node.may_lack is not None and bool(value_in(regions, node.may_lack))

    counts, starts = list(_counts(file)), _starts(file)
    fields = [(path, start, end) for path, start, end in fields if end > start and not may_lack(path)]
    if aspect is not None:
        fields = [field for field in fields if aspect_of_region(file.format, field[0].partition(" -> ")[0]) == aspect]
    if not fields:
        return st.none()

    @st.composite
    def cut(draw: st.DrawFn) -> Corruption:
        path, start, end = fields[draw(st.integers(0, len(fields) - 1))]
        at = draw(st.integers(start, end - 1))
        too_few = (count for first, nbytes, count in counts if first <= at < first + nbytes)
        reported = next(too_few, detected.get(start, path))
        stored = bytes(file.source.view(0, at))
        error: type[FormatError] = TruncatedError
        if find_format(BytesSource(stored)) is not file.format:
            reported, error = MAGIC, FormatError
        return Corruption(stored, f"cut off at byte {at}, in {path}", reported, starts[reported], error=error)

    return cut()


def _starts(file: File) -> dict[str, int]:
    """Returns the first byte of each field, also of those with parts and those in payloads."""
    spans = {path: start for path, start, _ in field_spans(file)}
    return {MAGIC: 0, **spans, **{span.path: span.start for span in trace_fields(file)}}


def _node_at(file: File, path: str) -> s.Node | None:
    """Returns the node of a region or of a field of one; None for fields within these."""
    node: s.Node | None = s.Ref("", file.format.struct)
    for name in path.split(" -> "):
        fields = struct_of(node.declared).fields if isinstance(node, s.Ref) else ()
        node = next((field.node for field in fields if field.name == name), None)
    return node


def _counts(file: File) -> Iterator[tuple[int, int, str]]:
    """Yields the start of each table and array, its least bytes, and the path of its count.

    In file order, outer ones first. The first count whose elements do not fit gets the error.
    """
    for span in sorted(trace_fields(file), key=lambda span: (span.start, -(span.end or 0))):
        value, node = span.value, _node_at(file, span.path)
        if isinstance(value, arrays.StoredNumbers):
            least = value.number.itemsize
        elif isinstance(value, arrays.StoredStrings):
            least = value.length.itemsize
        elif isinstance(node, s.JsonTable):
            yield span.start, (span.end or 0) - span.start, span.path
            continue
        elif node and (rows := rows_of(node)):
            least = least_size(rows.declared)
        elif isinstance(value, list) and span.path.endswith(" -> elements"):
            least = least_size(file.format.metadata.types[ARRAY].field)
        else:
            continue
        count = _count_path(node, span.path) if node else f"{span.path.rpartition(' -> ')[0]} -> n"
        yield span.start, len(value) * least, count


def _count_path(node: s.Node, region: str) -> str:
    """Returns the path of the field that counts the rows or bytes of a region, or the region."""
    count = node.count if isinstance(node, s.List) else None
    return " -> ".join(count.names) if isinstance(count, Reference) else region


def _number(node: s.Node, context: Any) -> s.Number:
    """Returns a number, selected by the context."""
    while isinstance(node, s.Either):
        node = s.choose(node, partial(value_in, context))
    assert isinstance(node, s.Number)
    return node


@st.composite
def too_many(draw: st.DrawFn, file: File) -> Corruption | None:
    """Makes a count in the header greater than what it counts."""
    breaker = Breaker(draw, file)
    draft = breaker.draft
    counters = {name: counter for name in file.format.regions if (counter := draft.counter(name))}
    if not counters:
        return None
    region, counter = draw(st.sampled_from(list(counters.items())))
    outer, field = counter
    counts = (256 ** _number(field.node, breaker.root[outer] if outer else breaker.root).size - 1, MANY)
    drafts = (draft.counted(region, count).stored() for count in counts)
    stored = next(stored for stored in drafts if file.format.claims(stored[:START]))
    sentence = f"the count of {region} claims more than there is"
    path = _count_path(draft.field(region).node, region)
    return Corruption(stored, sentence, path, _starts(file)[path], error=FormatError, within=True)


@st.composite
def in_a_row(draw: st.DrawFn, file: File, aspect: str) -> Corruption | None:
    """Breaks a field of an added row: a text's length, a text, the number of dims, a type."""
    breaker = Breaker(draw, file)
    draft, regions = breaker.draft, [name for name in file.format.regions if aspect_of_region(file.format, name) == aspect]
    nodes = {name: draft.field(name).node for name in regions}
    if (region := next((name for name, node in nodes.items() if isinstance(node, s.List) and rows_of(node)), None)) is None:
        return None
    row, at = breaker.new_row(region), len(draft.rows(region))
    context = breaker.context(draft.row_struct(region), row)
    breaks = [(field.name, *found) for field in draft.row_struct(region).fields for found in _field_breaks(field.node, context)]
    if not breaks:
        reject()
    name, stored, sentence, error = draw(st.sampled_from(breaks))
    field = Forged(construct.GreedyBytes, stored, row[name])
    built = draft.with_row(region, at, {**row, name: field}).stored()
    assert field.start is not None
    if error is TruncatedError and len(built) - field.start >= 1 << 8 * len(stored):
        reject()  # the file has as many bytes as are claimed
    return Corruption(built, sentence, f"{region} -> {at} -> {name}", field.start, error=error)


def _field_breaks(node: s.Node, context: Any) -> Iterator[tuple[bytes, str, type[FormatError]]]:
    """Yields broken bytes of a field, the sentence and the error."""
    match node:
        case s.Text():
            length = _number(node.length, context)
            yield b"\xff" * length.size, "a text claims more bytes than there are", TruncatedError
            if node.is_strict:
                order = byte_order(context) if length.order == "file" else length.order
                one = (1).to_bytes(length.size, "big" if order == BIG else "little")
                yield one + b"\xff", f"a text is not {node.encoding.upper()}", FormatError
        case s.Counted():
            yield b"\xff" * _number(node.count, context).size, "there are too many sizes", FormatError
        case s.Code() if node.table.unknown is None:
            yield b"\xff" * _number(node.number, context).size, "a type is not known", FormatError


@st.composite
def long_array(draw: st.DrawFn, file: File) -> Corruption | None:
    """Makes the length of an array in the metadata greater than the number of its elements."""
    breaker = Breaker(draw, file)
    for region in filter(breaker.draft.is_metadata, file.format.regions):
        for _, _, type_, node in typed_fields(breaker.draft.row_struct(region)):
            if isinstance(node, s.Ref) and any(field.is_count for field in struct_of(node.declared).fields):
                return _long_array(breaker, region, type_, struct_of(node.declared))
    return None


def _long_array(breaker: Breaker, region: str, type_: Any, struct: s.StructOf) -> Corruption:
    row, at = breaker.new_row(region), len(breaker.draft.rows(region))
    array, count = dict[str, Any](), next(field for field in struct.fields if field.is_count)
    for field in struct.fields:
        array[field.name] = next(iter(field.node.table)) if isinstance(field.node, s.Code) else []
    greatest = 256 ** _number(count.node, breaker.context(breaker.draft.row_struct(region), row)).size - 1
    array[count.name] = number = Forged(unwrapped(count.declared).subcon, greatest, greatest)
    value = Forged(struct.declared, array, None)
    stored = breaker.draft.with_row(region, at, {**row, "type": type_, "value": value}).stored()
    path = f"{region} -> {at} -> value -> {count.name}"
    return Corruption(stored, "an array claims more elements than there are", path, number.start, error=TruncatedError)


@st.composite
def bad_line(draw: st.DrawFn, file: File) -> Corruption | None:
    """Adds a broken line to metadata in lines."""
    draft = Draft.of(file)
    region = next((name for name in file.format.regions if isinstance(draft.field(name).node, s.Lines)), None)
    if region is None:
        return None
    metadata = file.regions[region]
    before = KeyValueLines.encode(metadata).removesuffix(b"\n")
    choices = [(b"x", "has no '='", 0), (b"=x", "has no key", 0), (b"=", "has no key", 0), (b"x=\xff", "is not UTF-8", 2)]
    choices += [(f"{key}=".encode(), "has the key of another one", 0) for key in list(metadata)[:1]]
    line, problem, at = draw(st.sampled_from(choices))
    stored = before + (b"\n" if before else b"") + line
    field = Forged(construct.GreedyBytes, stored, metadata)
    built = draft.counted(region, len(stored)).replaced({region: field}).stored()
    assert field.start is not None
    path = f"{region} -> line {len(metadata) + 1}"
    return Corruption(built, f"a line {problem}", path, field.start + len(stored) - len(line) + at, error=FormatError)


@st.composite
def bad_json(draw: st.DrawFn, file: File, aspect: str) -> Corruption | None:
    """Breaks the text of a JSON table, its rows, or its reserved entry."""
    breaker = Breaker(draw, file)
    if not isinstance(breaker.draft.field(file.format.table).node, s.JsonTable):
        return None
    draft, texts = breaker.json()
    broken = evenly(draw, list(texts.wrong_texts() if aspect == METADATA else texts.wrong_rows()))
    changed, path, offset = breaker.with_broken(draft, broken)
    return Corruption(changed.stored(), broken.sentence, path, offset, error=broken.error, within=broken.within)


@st.composite
def misplaced(draw: st.DrawFn, file: File) -> Corruption | None:
    """Moves the start of a payload past the end of the file, or into another payload."""
    draft, table = Draft.of(file), file.format.table
    rows = draft.rows(table)
    if not rows:
        return None
    sizes = {i: row.dtype.nbytes(row.shape) for i, row in enumerate(file.regions[table]) if row.dtype.is_known}
    pairs = [(i, j) for i in sizes for j in sizes if i != j and sizes[i] > 1 and sizes[j]]
    if draw(st.booleans()) and pairs:
        i, at = draw(st.sampled_from(pairs))
        to, sentence = rows[i]["offset"] + 1, "a payload begins inside of another one"
    else:
        at = draw(st.integers(0, len(rows) - 1))
        to, sentence = len(draft.payloads) + draw(st.integers(1, 1 << 32)), "a payload begins outside of the file"
    offset = forged(draft.row_struct(table), "offset", to)
    stored = draft.with_row(table, at, {**rows[at], "offset": offset}).stored()
    return Corruption(stored, sentence, f"{table} -> {at} -> offset", offset.start, error=FormatError)


# fmt: off
DAMAGES: dict[str, tuple[Damage, ...]] = {  # by aspect; damage that is listed twice is drawn twice as often
    METADATA:    (partial(truncated, aspect=METADATA), partial(in_a_row, aspect=METADATA), long_array, bad_line, bad_line,
                  partial(bad_json, aspect=METADATA)),
    TENSOR_INFO: (partial(truncated, aspect=TENSOR_INFO), partial(in_a_row, aspect=TENSOR_INFO),
                  partial(bad_json, aspect=TENSOR_INFO)),
    HEADER:      (partial(truncated, aspect=HEADER),),
    CONSISTENCY: (too_many, misplaced),
    ALIGNMENT:   (partial(truncated, aspect=ALIGNMENT),),
    DATA:        (partial(truncated, aspect=DATA),),
}
# fmt: on
