"""The layout of a file to be written: an offset for each payload, computed before writing."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import construct

from glft_schema.codec.construct_errors import our_errors
from glft_schema.codec.context import LITTLE, ByteOrder, new_context
from glft_schema.codec.rules import rule_sets
from glft_schema.codec.structs import member
from glft_schema.errors import FormatError, OptionError, shown
from glft_schema.formats.format import Format
from glft_schema.limits import current
from glft_schema.storage.tensor_bytes import Sink
from glft_schema.tensors.region import payload_size


class Layout(NamedTuple):
    """The bytes of a file to be written.

    Attributes:
        pieces: (first byte, bytes) of all that belongs to no payload.
        starts: first byte of each payload, by the name of the tensor; without shared ones.
        order: byte order of the payloads.
        nbytes: of the file.
    """

    pieces: tuple[tuple[int, bytes], ...]
    starts: Mapping[str, int]
    order: ByteOrder
    nbytes: int


ABSENT = bytes(1 << 20)  # stands for bytes of payloads


class _Absent:
    """Stands for a payload, and notes its first byte."""

    def __init__(self, payload: Any, stream: Sink, starts: dict[str, int], orders: set[ByteOrder]) -> None:
        self.nbytes = int(payload.nbytes)
        self._name, self._stream, self._starts, self._orders = payload.name, stream, starts, orders

    def pieces(self, order: ByteOrder) -> Iterator[memoryview]:
        self._starts[self._name] = self._stream.tell()
        self._orders.add(order)
        for start in range(0, self.nbytes, len(ABSENT)):
            yield memoryview(ABSENT)[: self.nbytes - start]


class _Pieces:
    """A stream that keeps what is written, except payloads that are not there."""

    def __init__(self) -> None:
        self.found: list[tuple[int, bytearray]] = []
        self._at = self._end = 0  # of what is written, and of what is kept

    def write(self, data: memoryview) -> int:
        if data.obj is not ABSENT:
            if self._end < self._at or not self.found:
                self.found.append((self._at, bytearray()))
            self.found[-1][1].extend(data)
            self._end = self._at + data.nbytes
        self._at += data.nbytes
        return data.nbytes


def laid_out(format: Format, regions: Mapping[str, Any], rules: Any) -> Layout:
    """Returns the layout of a file, without a byte of its payloads.

    Args:
        format: the format of the regions.
        regions: by name, with offsets; see `with_offsets`. Payloads have a `name` and `nbytes`.
        rules: rule sets that the file must satisfy.

    Raises:
        FormatError: if the file cannot be built.
    """
    kept = _Pieces()
    stream, starts, orders = Sink(kept), dict[str, int](), set[ByteOrder]()
    absent = {name: _Absent(payload, stream, starts, orders) for name, payload in regions["data"].items()}
    shared = {payload.name: absent[payload.name] for payload in regions["data"].values()}
    payloads = {name: shared[payload.name] for name, payload in regions["data"].items()}
    context = new_context(False, rules=rule_sets(rules), limits=current())
    with our_errors():
        format.struct._build({**regions, "data": payloads}, stream, context, "(building)")
    return Layout(
        tuple((at, bytes(piece)) for at, piece in kept.found), starts, orders.pop() if orders else LITTLE, stream.tell()
    )


def with_offsets(
    format: Format, regions: Mapping[str, Any], alignment: int = 1, aliases: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Returns `regions` with an offset in each table row, if they lack offsets.

    Args:
        format: the format of the regions.
        regions: by name; regions with a default may be missing.
        alignment: payloads begin at multiples of this and of the format's alignment, in bytes.
        aliases: names of rows -> names of earlier rows whose payload they share.

    Raises:
        FormatError: if a row does not fit the format, or only some rows have an offset.
        OptionError: if the alignment is below 1.
        LimitError: if the alignment exceeds the limit.
    """
    if not isinstance(alignment, int) or alignment < 1:
        raise OptionError(f"expected an alignment of at least 1, found {shown(alignment)}")
    current().check("alignment", alignment, "alignment", " bytes")
    names = format.regions
    if unknown := [region for region in regions if region not in names]:
        raise FormatError(f"expected only the regions {', '.join(names)}, found {shown(unknown[0])}")
    rows = [_checked(row, format, i) for i, row in enumerate(_sequence(regions.get(format.table, []), format.table))]
    with_offset = sum("offset" in row for row in rows)
    if with_offset == len(rows):
        return {"data": {}, **regions, format.table: rows}
    if with_offset:
        problem = f"expected an offset in every row or in none, found one in {with_offset} of {len(rows)} rows"
        raise FormatError(problem, format.table)
    before = {region: value for region, value in regions.items() if region != "data"}
    table = [{**row, "offset": 0} for row in rows]
    start, context = measured(format, {**before, format.table: table})
    alignment = math.lcm(alignment, context.get("alignment", 1))
    sizes = {
        row["name"]: payload_size((regions.get("data") or {}).get(row["name"]), built)
        for row, built in zip(rows, context[format.table], strict=True)
        if row["name"] not in (aliases or {})
    }
    first = start
    while True:
        positions = _positions(sizes, first, alignment)
        table = [{**row, "offset": positions[(aliases or {}).get(row["name"], row["name"])] - start} for row in rows]
        found = {"data": {}, **regions, format.table: table}
        if alignment == 1 or _has_size(member(format.row, "offset")):
            return found
        before_payloads, _ = measured(format, {**before, format.table: table})  # offsets in text change its length
        if before_payloads == start:
            return found
        first = max(first, before_payloads) + (alignment if before_payloads < start else 0)  # not to alternate
        start = before_payloads


def measured(format: Format, regions: Mapping[str, Any]) -> tuple[int, Any]:
    """Returns the bytes of the regions before the payloads, and the context of their build."""
    stream = io.BytesIO()
    with our_errors():
        context = format.head._build(regions, stream, new_context(False), "(building)")
    return stream.tell(), context


def _positions(sizes: Mapping[str, int], end: int, alignment: int) -> dict[str, int]:
    """Returns the position of each payload; the first one is not before `end`."""
    positions = {}
    for name, nbytes in sizes.items():
        positions[name] = -(-end // alignment) * alignment
        end = positions[name] + nbytes
    return positions


def _has_size(field: construct.Construct) -> bool:
    """Returns whether all values of a field take the same number of bytes, whatever the context."""
    try:
        field.sizeof()
    except (construct.SizeofError, LookupError, AttributeError):
        return False
    return True


def _sequence(value: Any, path: str) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise FormatError(f"expected a sequence, found {shown(value)}", path)
    return value


def _checked(row: Any, format: Format, number: int) -> Any:
    """Returns `row` after checking the types that the layout depends on."""
    path = f"{format.table} -> {number}"
    if not isinstance(row, Mapping):
        raise FormatError(f"expected a mapping with the row's fields, found {shown(row)}", path)
    for size in _sequence(row.get("dims", []), f"{path} -> dims"):
        if not isinstance(size, int) or isinstance(size, bool):
            raise FormatError(f"expected integers, found {shown(size)}", f"{path} -> dims")
    return row
