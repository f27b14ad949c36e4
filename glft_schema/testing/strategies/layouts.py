"""Offsets of payloads, one after another or in any other legal layout."""

from __future__ import annotations

from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from glft_schema.codec.context import Context
from glft_schema.codec.records import Record
from glft_schema.describe.nodes import Field, Node, PayloadsNode
from glft_schema.describe.schema import rows_of
from glft_schema.testing.strategies.fitting import holds, inner_context, is_wanted, value_so_far
from glft_schema.testing.strategies.lengths import guards

GAP = 3  # bytes or multiples of the alignment, at most
OPAQUE = 16  # bytes of a payload of unknown type, at most


def payload_key(row: Any) -> tuple[Any, ...]:
    """Returns offset, type and shape, which are equal in rows that share a payload."""
    return row.offset, row.dtype, tuple(row.shape)


def size_of(row: Any) -> int:
    """Returns the size of a row's payload in bytes; for an unknown type, the largest size."""
    return int(row.dtype.nbytes(row.shape)) if row.dtype.is_known else OPAQUE


def alignment_of(data: Node, context: Context) -> int:
    """Returns the alignment of the payloads of a region."""
    return int((isinstance(data, PayloadsNode) and data.to and value_so_far(context, data.to)) or 1)


def move(row: Record, offset: int) -> Record:
    """Returns a row with another offset."""
    return Record({**row, "offset": offset}, dict(row.counts))


def tight(rows: list[Record], alignment: int) -> list[Record]:
    """Returns rows whose payloads follow one another, each at a multiple of the alignment."""
    placed, end = [], 0
    for row in rows:
        end += -end % alignment
        placed.append(move(row, end))
        end += size_of(row)
    return placed


def place_payloads(draw: st.DrawFn, table: Field, rows: list[Record], data: PayloadsNode, context: Context) -> list[Record]:
    """Sets the offsets of rows, in any order, with gaps and shared payloads, if rules allow these.

    Rejects the example if the rules do not allow payloads one after another either.
    """
    alignment = alignment_of(data, context)
    if draw(st.booleans()) and rows:
        loose = loosely(draw, rows, draw(st.sampled_from([1, alignment])))
        if keeps(table, loose, context):
            return loose
    if not keeps(table, rows := tight(rows, alignment), context):
        reject()
    return rows


def loosely(draw: st.DrawFn, rows: list[Record], step: int) -> list[Record]:
    """Returns rows in any order of offsets, multiples of `step`, with gaps and aliases."""
    placed = dict(enumerate(rows))
    aliases = {i: draw(st.integers(0, i - 1)) for i in range(1, len(rows)) if draw(st.integers(0, 3)) == 3}
    end = 0
    for i in draw(st.permutations(range(len(rows)))):
        if i not in aliases:
            end += step * draw(st.integers(0, GAP))
            end += -end % step
            placed[i] = move(rows[i], end)
            end += size_of(rows[i])
    for i, of in aliases.items():  # in order, so that row `of` has its offset
        placed[i] = Record({**placed[of], "name": rows[i].name}, dict(placed[of].counts))
    return list(placed.values())


def keeps(table: Field, rows: list[Record], context: Context) -> bool:
    """Tells whether the rules of the rows and the rules on their table hold."""
    struct = rows_of(table.node)
    assert struct
    checks = [check for check in struct.rules if is_wanted(check, context._params._drawing.rules)]
    for row in rows:
        at = inner_context(context, row=row)
        if not all(holds(check, at) for check in checks):
            return False
    at = Context({**context, table.name: rows})
    return all(holds(check, at) for check in guards(table, context))
