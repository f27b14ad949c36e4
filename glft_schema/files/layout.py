"""The layout of a file to be written: its head as bytes, and a span for each payload."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from glft_schema.codec.context import ByteOrder, Context, byte_order
from glft_schema.codec.rules import rule_sets
from glft_schema.codec.structs import Padding, unwrap
from glft_schema.errors import FormatError, OptionError, quote
from glft_schema.formats.format import Format
from glft_schema.limits import Limits, current
from glft_schema.storage.tensor_bytes import write_all
from glft_schema.tensors.region import Filling, Payload, fits, payload_size


class Span(NamedTuple):
    """Consecutive bytes of a file.

    Attributes:
        start: first byte.
        nbytes: its size.
        content: the bytes, or an object that writes them.
    """

    start: int
    nbytes: int
    content: bytes | Payload | Filling


class Layout(NamedTuple):
    """The planned layout of a file, computed before any payload is read.

    Attributes:
        head: the bytes before the region of payloads.
        spans: all of its bytes, in order.
        order: byte order of the payloads.
        nbytes: size of the file.
    """

    head: bytes
    spans: tuple[Span, ...]
    order: ByteOrder
    nbytes: int

    def write(self, stream: Any) -> None:
        """Writes the file to a stream, one payload at a time. Raises as `TensorData` builds."""
        for span in self.spans:
            write_all(stream, span.content) if isinstance(span.content, bytes) else span.content.write(stream)


def lay_out(
    format: Format,
    regions: Mapping[str, Any],
    alignment: int = 1,
    aliases: Mapping[str, str] | None = None,
    rules: Any = (),
    limits: Limits | None = None,
) -> tuple[Layout, Context]:
    """Returns the layout of a file, and its built regions, without reading its payloads.

    Args:
        format: the format of the regions.
        regions: by name; regions with a default may be missing. Rows of the table keep their
            offsets, or get them if none has one.
        alignment: new offsets are multiples of this and of the format's alignment, counted from
            the start of the file.
        aliases: names of rows -> names of earlier rows whose payload they share.
        rules: rule sets that the file must satisfy.
        limits: by default the caller's.

    Raises:
        FormatError: if the file cannot be built, or only some rows have an offset.
        OptionError: if the alignment is below 1.
        LimitError: if the alignment exceeds the limit.
    """
    if not isinstance(alignment, int) or alignment < 1:
        raise OptionError(f"expected an alignment of at least 1, found {quote(alignment)}")
    current().check("alignment", alignment, "alignment", " bytes")
    format.struct.check_names(regions, f"{format.name} regions")
    rows = [_check_row(row, format, i) for i, row in enumerate(_sequence(regions.get(format.table, []), format.table))]
    if format.has_tensors:
        regions = {"data": {}, format.table: rows, **regions}  # the table as it is: parsed rows know their text
    with_offset = sum("offset" in row for row in rows)
    if with_offset < len(rows):
        if with_offset:
            problem = f"expected an offset in every row or in none, found one in {with_offset} of {len(rows)} rows"
            raise FormatError(problem, format.table)
        regions = _with_offsets(format, {**regions, format.table: rows}, alignment, aliases or {})
    contents: list[Payload | Filling] = []
    head, built = format.build(regions, rules=rule_sets(rules), limits=limits, spans=contents, alignment=alignment)
    end, spans = len(head), [Span(0, len(head), head)]
    for content in contents:
        spans.append(Span(end, content.nbytes, content))
        end += content.nbytes
    return Layout(head, tuple(spans), byte_order(built), end), built


def _with_offsets(format: Format, regions: Mapping[str, Any], alignment: int, aliases: Mapping[str, str]) -> dict[str, Any]:
    """Returns `regions` with an offset in each row: the padded end of the payload before it."""
    if format.has_typed_metadata:
        regions = {**regions, "metadata": format.metadata.metadata(regions.get("metadata") or {})}
    first, step = _first_offset(format, regions, alignment)
    rows, starts, end = [], dict[str, int](), 0
    for row in regions[format.table]:
        name = str(row.get("name"))
        if name in aliases:
            starts[name] = starts[aliases[name]]
        else:
            starts[name] = end + -end % step
            end = starts[name] + _nbytes(format, row, regions["data"])
        rows.append({**row, "offset": first + starts[name]})
    return {**regions, format.table: rows}


def _first_offset(format: Format, regions: Mapping[str, Any], alignment: int) -> tuple[int, int]:
    """Returns the offset of the first payload, and the alignment of all.

    The offset is 0 if the last region before the payloads is padding. Otherwise the size of the
    head decides. No offset changes it: numbers have one size, and a text is padded.
    """
    declared, padding = format.field("alignment"), unwrap([part for part in format.head.subcons if part.name][-1])
    if declared is None and alignment == 1:
        return 0, 1
    if declared is not None and isinstance(padding, Padding):
        with suppress(LookupError, AttributeError, TypeError, ZeroDivisionError):  # building computes or refuses it
            own = declared.value(Context(regions))
            step = math.lcm(alignment, own)
            if padding.to(Context(alignment=own)) % step == 0:
                return 0, step
    table = [{**row, "offset": 0} for row in regions[format.table]]
    before = {name: value for name, value in regions.items() if name != "data"}
    head, built = format.build({**before, format.table: table}, alignment=alignment)
    step = math.lcm(alignment, built.get("alignment", 1))
    return -len(head) % step, step


def _nbytes(format: Format, row: Mapping[str, Any], payloads: Any) -> int:
    """Returns the bytes of a row's payload, or 0 if building refuses the row."""
    if row.get("dtype") not in format.types:
        return 0
    type_, shape = format.types[row["dtype"]], tuple(format.dims_of(row.get("dims", [])))
    if type_.is_known:
        return type_.nbytes(shape) if fits(type_, shape) else 0
    payload = payloads.get(row.get("name")) if isinstance(payloads, Mapping) else None
    return payload_size(payload, str(row.get("name")))


def _sequence(value: Any, path: str) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise FormatError(f"expected a sequence, found {quote(value)}", path)
    return value


def _check_row(row: Any, format: Format, number: int) -> Any:
    """Returns `row` after checking the types that the layout depends on."""
    path = f"{format.table} -> {number}"
    if not isinstance(row, Mapping):
        raise FormatError(f"expected a mapping with the row's fields, found {quote(row)}", path)
    for size in _sequence(row.get("dims", []), f"{path} -> dims"):
        if not isinstance(size, int) or isinstance(size, bool):
            raise FormatError(f"expected integers, found {quote(size)}", f"{path} -> dims")
    return row
