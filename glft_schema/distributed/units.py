"""A file as units of work: spans of bytes, each written by one rank.

Units depend on the file alone, so that a run with another number of ranks can reuse the units that
an earlier run has finished. They meet at multiples of `PAGE`, because clients of a network file
system lose bytes if two of them write to the same page. A row of weights across a boundary is
encoded on both sides.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

PAGE = 1 << 20  # bytes
MOST_UNITS = 8192


class CostedSpan(NamedTuple):
    """A span of a file.

    Attributes:
        start: first byte.
        nbytes: its size.
        cost: nanoseconds to write it, about.
    """

    start: int
    nbytes: int
    cost: float


class Unit(NamedTuple):
    """A span of a file that one rank writes.

    Attributes:
        start, stop: the first byte, and the byte after the last.
        cost: nanoseconds to write it, about.
    """

    start: int
    stop: int
    cost: float


def units_of(parts: Sequence[CostedSpan], nbytes: int) -> list[Unit]:
    """Returns the units of a file, of about equal costs: at most `MOST_UNITS`, of at least a page.

    Args:
        parts: spans with costs, in order, without overlap.
        nbytes: of the file.
    """
    costs = Costs(parts)
    of_each = costs.total / MOST_UNITS
    cuts, at, number = [0], 0, 1
    while at < nbytes:
        while number < MOST_UNITS and costs.until(at) >= number * of_each:
            number += 1
        wanted = costs.position(number * of_each) if number < MOST_UNITS else nbytes
        at = min(max(-(-wanted // PAGE) * PAGE, at + PAGE), nbytes)
        cuts.append(at)
    return [Unit(start, stop, costs.until(stop) - costs.until(start)) for start, stop in pairwise(cuts)]


def shares(units: Sequence[Unit], ranks: int) -> list[list[Unit]]:
    """Returns each rank's units: consecutive ones, with about equal total costs."""
    ends = list(accumulate(unit.cost for unit in units))
    total = ends[-1] if ends else 0.0
    dealt: list[list[Unit]] = [[] for _ in range(ranks)]
    for number, (unit, end) in enumerate(zip(units, ends, strict=True)):
        middle = (end - unit.cost / 2) / total if total else number / len(units)
        dealt[min(int(middle * ranks), ranks - 1)].append(unit)
    return dealt


def runs(units: Iterable[Unit]) -> Iterator[list[Unit]]:
    """Yields runs of units without a gap between them."""
    run: list[Unit] = []
    for unit in units:
        if run and run[-1].stop != unit.start:
            yield run
            run = []
        run.append(unit)
    if run:
        yield run


class Costs:
    """The cost of the bytes of a file up to a position. Inside a part it grows evenly.

    Args:
        parts: as for `units_of`.
    """

    def __init__(self, parts: Sequence[CostedSpan]) -> None:
        self._parts = [part for part in parts if part.nbytes]
        self._starts = [part.start for part in self._parts]
        self._before = [0.0, *accumulate(part.cost for part in self._parts)]
        self.total = self._before[-1]

    def until(self, position: int) -> float:
        """Returns the cost of the bytes before a position."""
        at = bisect_right(self._starts, position) - 1
        if at < 0:
            return 0.0
        part = self._parts[at]
        return self._before[at] + part.cost * min(position - part.start, part.nbytes) / part.nbytes

    def position(self, cost: float) -> int:
        """Returns the approximate position at which the bytes before it have this cost."""
        at = min(bisect_right(self._before, cost), len(self._parts)) - 1
        if at < 0:
            return 0
        part = self._parts[at]
        share = (cost - self._before[at]) / part.cost if part.cost else 1.0
        return part.start + int(min(share, 1.0) * part.nbytes)
