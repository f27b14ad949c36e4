"""The layout of a file to be written: an offset for each payload, computed before writing."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import construct

from glft_schema.codec.construct_errors import our_errors
from glft_schema.codec.context import new_context
from glft_schema.codec.structs import member
from glft_schema.errors import FormatError, OptionError, shown
from glft_schema.formats.format import Format
from glft_schema.limits import current
from glft_schema.tensors.region import payload_size


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
