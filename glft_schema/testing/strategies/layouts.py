"""Where payloads lie: one after another as a writer puts them, or in any other way that is legal."""

from __future__ import annotations

from typing import Any

import construct
from hypothesis import reject
from hypothesis import strategies as st

from glft_schema.codec.context import Context
from glft_schema.codec.records import Record
from glft_schema.codec.rules import Check
from glft_schema.tensors.region import TensorData
from glft_schema.testing.strategies.fitting import NOT_YET, evaluated, holds, is_wanted

GAP = 3  # bytes or multiples of the alignment, at most
OPAQUE = 16  # bytes of a payload of unknown type, at most


def place_of(row: Any) -> tuple[Any, ...]:
    """Returns what rows have in common that share a payload."""
    return row.offset, row.dtype, tuple(row.shape)


def size_of(row: Any) -> int:
    """Returns the bytes that a row's payload takes; of an unknown type, those that are set aside for it."""
    return int(row.dtype.nbytes(row.shape)) if row.dtype.is_known else OPAQUE


def moved(row: Record, offset: int) -> Record:
    """Returns a row with its payload elsewhere."""
    return Record({**row, "offset": offset}, dict(row.counts))


def tight(rows: list[Record], alignment: int) -> list[Record]:
    """Returns rows whose payloads follow one another in their order, each at a multiple of the alignment."""
    made, end = [], 0
    for row in rows:
        end += -end % alignment
        made.append(moved(row, end))
        end += size_of(row)
    return made


def laid_out(draw: st.DrawFn, table: construct.Renamed, rows: list[Record], data: TensorData, context: Context) -> list[Record]:
    """Gives the rows of a table their offsets: in other orders, with gaps and shared payloads, where no rule is against it.

    Where the rules are against payloads one after another, too, the example is given up.
    """
    said = evaluated(data.padded_to, context)
    alignment = 1 if said is NOT_YET else int(said)
    if draw(st.booleans()) and rows:
        loose = loosely(draw, rows, draw(st.sampled_from([1, alignment])))
        if keeps(table, loose, context):
            return loose
    made = tight(rows, alignment)
    if not keeps(table, made, context):
        reject()
    return made


def loosely(draw: st.DrawFn, rows: list[Record], step: int) -> list[Record]:
    """Returns rows in any order of offsets, multiples of `step`, with gaps, some as aliases of others."""
    made = dict(enumerate(rows))
    aliases = {i: draw(st.integers(0, i - 1)) for i in range(1, len(rows)) if draw(st.integers(0, 3)) == 3}
    end = 0
    for i in draw(st.permutations(range(len(rows)))):
        if i not in aliases:
            end += step * draw(st.integers(0, GAP))
            end += -end % step
            made[i] = moved(rows[i], end)
            end += size_of(rows[i])
    for i, of in aliases.items():  # in order: what it is an alias of has its place
        made[i] = Record({**made[of], "name": rows[i].name}, dict(made[of].counts))
    return list(made.values())


def keeps(table: construct.Renamed, rows: list[Record], context: Context) -> bool:
    """Tells whether the rules of the rows and those on their table hold."""
    sets, row_struct = context._params._drawing.rules, table.subcon.subcon
    for row in rows:
        at = Context(_=context, _params=context._params, _root=context._root, **row, **row.counts)
        if not all(holds(check, at) for check in row_struct.subcons if isinstance(check, Check) and is_wanted(check, sets)):
            return False
    at = Context({**context, table.name: rows})
    guards = [check for check in context._declared.subcons if isinstance(check, Check) and check.field == table.name]
    return all(holds(check, at) for check in guards if is_wanted(check, sets))
