"""The layout of a file to be written: an offset for each payload, computed before writing."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from glft_schema.codec.construct_errors import our_errors
from glft_schema.codec.context import new_context
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
    stream = io.BytesIO()
    with our_errors():
        table = [{**row, "offset": 0} for row in rows]
        context = format.head._build({**before, format.table: table}, stream, new_context(False), "(building)")
    start = end = stream.tell()
    alignment = math.lcm(alignment, context.get("alignment", 1))
    positions: dict[str, int] = {}
    for row, built in zip(rows, context[format.table], strict=True):
        name, shared = row["name"], (aliases or {}).get(row["name"])
        if shared is not None:
            positions[name] = positions[shared]
            continue
        positions[name] = -(-end // alignment) * alignment
        end = positions[name] + payload_size((regions.get("data") or {}).get(name), built)
    return {"data": {}, **regions, format.table: [{**row, "offset": positions[row["name"]] - start} for row in rows]}


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
