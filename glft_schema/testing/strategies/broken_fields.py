"""Files with one broken field: cut off, of an unknown type, too long, or at a wrong offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import construct
from hypothesis import reject
from hypothesis import strategies as st

import glft_schema.describe.nodes as s
import glft_schema.testing.strategies.aspects as a
from glft_schema.codec import arrays
from glft_schema.codec.context import BIG, Context, byte_order
from glft_schema.codec.expressions import Reference
from glft_schema.codec.metadata_lines import KeyValueLines
from glft_schema.codec.structs import Forged
from glft_schema.codec.tables import least_size
from glft_schema.codec.trace import FieldSpan
from glft_schema.codec.typed_values import ARRAY
from glft_schema.describe.schema import rows_of, struct_of
from glft_schema.errors import FormatError, TruncatedError, quote
from glft_schema.files.file import File
from glft_schema.files.parsing import trace_fields
from glft_schema.formats.registry import MAGIC, find_format
from glft_schema.storage.source import BytesSource
from glft_schema.storage.streams import START
from glft_schema.testing.strategies.broken_rules import Breaker, typed_fields
from glft_schema.testing.strategies.corruption import Corruption
from glft_schema.testing.strategies.drafts import Draft

MANY = 1 << 47  # a huge count with which every format still recognizes its files
Damage = Callable[[File], st.SearchStrategy[Corruption | None]]  # None if the file has no such field


def spans_of(file: File) -> list[FieldSpan]:
    """Returns the span of each field, parts before the whole, also in payloads of known types."""
    spans, seen = trace_fields(file), set()
    for tensor in file.tensors.values():
        if tensor.identity not in seen and tensor.type.is_known:
            seen.add(tensor.identity)
            for name, (at, nbytes) in tensor.type.field_spans(tensor.shape).items():
                start = tensor.position + at
                spans.append(FieldSpan(f"data -> {quote(tensor.name)} -> {name}", start, start + nbytes))
    return spans


def truncated(file: File, aspect: str | None = None) -> st.SearchStrategy[Corruption | None]:
    """Cuts a file off within a field: one of `aspect`, if given."""
    spans, regions = spans_of(file), Context({**file.regions, **file.regions.counts})
    starts = {MAGIC: 0} | {span.path: span.start for span in spans}
    leaves = [(span.path, span.start, span.end or span.start) for span in spans if not span.has_parts and span.path != "data"]
    orders = ((start, path, _node_at(file, path)) for path, start, _ in leaves)
    detected = {start: path for start, path, node in orders if isinstance(node, s.ByteOrderNode) and node.number}

    def may_lack(path: str) -> bool:
        node = _node_at(file, path)
        return isinstance(node, s.PaddingNode) and node.may_lack is not None and bool(node.may_lack(regions))

    counts = list(_counts(file, spans))
    fields = [(path, start, end) for path, start, end in leaves if end > start and not may_lack(path)]
    if aspect is not None:
        fields = [field for field in fields if a.aspect_of_region(file.format, field[0].partition(" -> ")[0]) == aspect]
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


def _node_at(file: File, path: str) -> s.Node | None:
    """Returns the node of a region or of a field in it; None for more deeply nested fields."""
    node: s.Node | None = s.RefNode("", file.format.struct)
    for name in path.split(" -> "):
        fields = struct_of(node.declared).fields if isinstance(node, s.RefNode) else ()
        node = next((field.node for field in fields if field.name == name), None)
    return node


def _counts(file: File, spans: Sequence[FieldSpan]) -> Iterator[tuple[int, int, str]]:
    """Yields the start, the minimum size and the path of the count of each table and array.

    In file order, outer ones first. The first count whose elements do not fit gets the error.
    """
    for span in sorted(spans, key=lambda span: (span.start, -(span.end or 0))):
        value, node = span.value, _node_at(file, span.path)
        if isinstance(value, arrays.StoredArray):
            least = value.number.itemsize
        elif isinstance(node, s.JsonTableNode):
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
    count = node.count if isinstance(node, s.ListNode) else None
    return " -> ".join(count.names) if isinstance(count, Reference) else region


def _number(node: s.Node | None, context: Any) -> s.NumberNode:
    """Returns a number, selected by the context."""
    while isinstance(node, s.EitherNode):
        node = s.choose(node, context)
    assert isinstance(node, s.NumberNode)
    return node


@st.composite
def too_many(draw: st.DrawFn, file: File) -> Corruption | None:
    """Makes a count in the header greater than the number of its elements."""
    breaker = Breaker(draw, file)
    draft = breaker.draft
    counted = [name for name in file.format.regions if draft.counter(name)]
    if not counted:
        return None
    region = draw(st.sampled_from(counted))
    *outer, _ = names = draft.counter(region)
    number = _number(_node_at(file, " -> ".join(names)), breaker.root[outer[0]] if outer else breaker.root)
    counts = (256**number.size - 1, MANY)
    drafts = (draft.with_count(region, count) for count in counts)
    draft = next(draft for draft in drafts if file.format.claims(draft.build()[:START]))
    sentence = f"the count of {region} claims more than there is"
    path = _count_path(draft.field(region).node, region)
    return Corruption(draft.build(), sentence, path, draft.start(path), error=FormatError, within=True)


@st.composite
def in_a_row(draw: st.DrawFn, file: File, aspect: str) -> Corruption | None:
    """Breaks a field of an added row: a text's length, a text, the number of dims, a type."""
    breaker = Breaker(draw, file)
    draft, regions = breaker.draft, [name for name in file.format.regions if a.aspect_of_region(file.format, name) == aspect]
    nodes = {name: draft.field(name).node for name in regions}
    if (region := next((name for name, node in nodes.items() if isinstance(node, s.ListNode) and rows_of(node)), None)) is None:
        return None
    row, at = breaker.new_row(region), len(draft.rows(region))
    context = breaker.context(draft.row_struct(region), row)
    breaks = [(field.name, *found) for field in draft.row_struct(region).fields for found in _field_breaks(field.node, context)]
    if not breaks:
        reject()
    name, stored, sentence, error = draw(st.sampled_from(breaks))
    path = f"{region} -> {at} -> {name}"
    draft = draft.with_row(region, at, {**row, name: Forged(construct.GreedyBytes, stored, row[name])})
    built, start = draft.build(), draft.start(path)
    if error is TruncatedError and len(built) - start >= 1 << 8 * len(stored):
        reject()  # the file has as many bytes as are claimed
    return Corruption(built, sentence, path, start, error=error)


def _field_breaks(node: s.Node, context: Any) -> Iterator[tuple[bytes, str, type[FormatError]]]:
    """Yields broken bytes of a field, a sentence about them, and the expected error."""
    match node:
        case s.TextNode():
            length = _number(node.length, context)
            yield b"\xff" * length.size, "a text claims more bytes than there are", TruncatedError
            if node.is_strict:
                order = byte_order(context) if length.order == "file" else length.order
                one = (1).to_bytes(length.size, "big" if order == BIG else "little")
                yield one + b"\xff", f"a text is not {node.encoding.upper()}", FormatError
        case s.CountedNode():
            yield b"\xff" * _number(node.count, context).size, "there are too many sizes", FormatError
        case s.CodeNode() if node.table.unknown is None:
            yield b"\xff" * _number(node.number, context).size, "a type is not known", FormatError


@st.composite
def long_array(draw: st.DrawFn, file: File) -> Corruption | None:
    """Makes the length of an array in the metadata greater than the number of its elements."""
    breaker = Breaker(draw, file)
    for region in filter(breaker.draft.is_metadata, file.format.regions):
        for _, _, type_, node in typed_fields(breaker.draft.row_struct(region)):
            if isinstance(node, s.RefNode) and any(field.is_count for field in struct_of(node.declared).fields):
                return _long_array(breaker, region, type_, struct_of(node.declared))
    return None


def _long_array(breaker: Breaker, region: str, type_: Any, struct: s.StructOf) -> Corruption:
    row, at = breaker.new_row(region), len(breaker.draft.rows(region))
    array, count = dict[str, Any](), next(field for field in struct.fields if field.is_count)
    for field in struct.fields:
        array[field.name] = next(iter(field.node.table)) if isinstance(field.node, s.CodeNode) else []
    greatest = 256 ** _number(count.node, breaker.context(breaker.draft.row_struct(region), row)).size - 1
    value = Forged(struct.declared, {**array, count.name: greatest}, None)
    draft = breaker.draft.with_row(region, at, {**row, "type": type_, "value": value})
    path = f"{region} -> {at} -> value -> {count.name}"
    sentence = "an array claims more elements than there are"
    return Corruption(draft.build(), sentence, path, draft.start(path), error=TruncatedError)


@st.composite
def bad_line(draw: st.DrawFn, file: File) -> Corruption | None:
    """Adds a broken line to line-based metadata."""
    draft = Draft.of(file)
    region = next((name for name in file.format.regions if isinstance(draft.field(name).node, s.LinesNode)), None)
    if region is None:
        return None
    metadata = file.regions[region]
    before = KeyValueLines.encode(metadata).removesuffix(b"\n")
    choices = [(b"x", "has no '='", 0), (b"=x", "has no key", 0), (b"=", "has no key", 0), (b"x=\xff", "is not UTF-8", 2)]
    choices += [(f"{key}=".encode(), "has the key of another one", 0) for key in list(metadata)[:1]]
    line, problem, at = draw(st.sampled_from(choices))
    stored = before + (b"\n" if before else b"") + line
    draft = draft.with_count(region, len(stored)).replace({region: Forged(construct.GreedyBytes, stored, metadata)})
    path, start = f"{region} -> line {len(metadata) + 1}", draft.start(region) + len(stored) - len(line) + at
    return Corruption(draft.build(), f"a line {problem}", path, start, error=FormatError)


@st.composite
def bad_json(draw: st.DrawFn, file: File, aspect: str) -> Corruption | None:
    """Breaks the text of a JSON table, its rows, or its reserved entry."""
    breaker = Breaker(draw, file)
    if not isinstance(breaker.draft.field(file.format.table).node, s.JsonTableNode):
        return None
    draft, texts = breaker.json()
    broken = a.evenly(draw, list(texts.wrong_texts() if aspect == a.METADATA else texts.wrong_rows()))
    changed, path, offset = breaker.with_broken(draft, broken)
    return Corruption(changed.build(), broken.sentence, path, offset, error=broken.error, within=broken.within)


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
    draft, path = draft.with_row(table, at, {**rows[at], "offset": to}), f"{table} -> {at} -> offset"
    return Corruption(draft.build(), sentence, path, draft.start(path), error=FormatError)


# fmt: off
DAMAGES: dict[str, tuple[Damage, ...]] = {  # by aspect; damage that is listed twice is drawn twice as often
    a.METADATA:    (partial(truncated, aspect=a.METADATA), partial(in_a_row, aspect=a.METADATA), long_array, bad_line, bad_line,
                    partial(bad_json, aspect=a.METADATA)),
    a.TENSOR_INFO: (partial(truncated, aspect=a.TENSOR_INFO), partial(in_a_row, aspect=a.TENSOR_INFO),
                    partial(bad_json, aspect=a.TENSOR_INFO)),
    a.HEADER:      (partial(truncated, aspect=a.HEADER),),
    a.CONSISTENCY: (too_many, misplaced),
    a.ALIGNMENT:   (partial(truncated, aspect=a.ALIGNMENT),),
    a.DATA:        (partial(truncated, aspect=a.DATA),),
}
# fmt: on
