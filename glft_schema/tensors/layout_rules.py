"""Rules on the positions of payloads, stricter than those of `TensorData`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from construct.expr import FuncPath

from glft_schema.codec.context import Context
from glft_schema.codec.expressions import as_expression
from glft_schema.codec.predicates import is_zero
from glft_schema.codec.rules import Check, Predicate
from glft_schema.errors import quote
from glft_schema.tensors.region import TensorMap


class Contiguous(Check):
    """Rule: each payload begins at the padded end of the previous payload in the table."""

    expected = "offsets at the padded end of the previous payload: no gaps, no other order, no sharing"

    def needs(self) -> set[str]:
        return {self.field, "alignment"}

    def check(self, context: Context, path: str) -> None:
        end = 0
        for i, row in enumerate(context[self.field]):
            if row.offset != end:
                self.report(context, f"expected {end}, found {row.offset}", f"{path} -> {self.field} -> {i} -> offset")
            if not row.dtype.is_known:
                return
            end = row.offset + row.dtype.nbytes(row.shape)
            end += -end % context.alignment


class Indexed(Check):
    """Rule: in order of their offsets, the payloads follow one another without gaps."""

    expected = "offsets that follow one another: no hole, no overlap, no sharing"

    def needs(self) -> set[str]:
        return {self.field}

    def check(self, context: Context, path: str) -> None:
        end, rows = 0, context[self.field]
        ends = [row.offset + row.dtype.nbytes(row.shape) for row in rows]
        for i in sorted(range(len(rows)), key=lambda i: (rows[i].offset, ends[i])):
            if rows[i].offset != end:
                self.report(context, f"expected {end}, found {rows[i].offset}", f"{path} -> {self.field} -> {i} -> offset")
            end = ends[i]


def is_padded_to(alignment: Any) -> Predicate:
    """Returns a predicate: the last payload of a region is padded to the alignment."""

    def on(of: Any) -> Callable[[Any], bool]:
        data, step = as_expression(of), as_expression(alignment)
        return lambda at: _is_padded(data(at), step(at))

    return Predicate("the last payload padded to the alignment", on, show=show_gaps)


def _is_padded(data: Any, alignment: int) -> bool:
    places = data.places().values() if isinstance(data, TensorMap) else ()
    end = max((place.offset + place.nbytes for place in places), default=0)
    return not end or end + -end % alignment <= data.size


def _of_file(holds: Callable[[TensorMap], bool]) -> Any:
    """Returns a condition of the region in a file. Payloads to be built meet it."""
    return FuncPath(lambda data: not isinstance(data, TensorMap) or holds(data))


def _has_zero_gaps(data: TensorMap) -> bool:
    return all(is_zero(piece) for gap in data.gaps for piece in data.gap_pieces(gap))


def show_gaps(data: Any) -> str:
    """Returns the size of a region and the offsets of its gaps, for errors."""
    return f"{data.size} bytes with gaps at {quote([gap.offset for gap in data.gaps])}"


zero_gaps = Predicate("zeros between payloads", _of_file(_has_zero_gaps), show=show_gaps)
nothing_after = Predicate(
    "no bytes after the last payload", _of_file(lambda data: not data.trailing), show=lambda data: f"{data.trailing}"
)


def _has_quantized(rows: Any) -> bool:
    return any(not row.dtype.exact for row in rows)


has_quantized = FuncPath(_has_quantized)  # of the rows of a table, in expressions
