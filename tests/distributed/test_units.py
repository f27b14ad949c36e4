"""Files as units of work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glft_schema.distributed.units import MOST_UNITS, PAGE, CostedSpan, Unit, runs, shares, units_of

SIZES = st.lists(st.tuples(st.integers(0, 5 * PAGE), st.integers(0, 200 * PAGE), st.floats(0, 1e12)), max_size=12)


@given(SIZES, st.integers(1, 9))
def test_units_cover_the_file_and_meet_at_pages(sizes: list[tuple[int, int, float]], ranks: int) -> None:
    parts, end = [], 0
    for gap, nbytes, cost in sizes:
        parts.append(CostedSpan(end + gap, nbytes, cost))
        end += gap + nbytes
    units = units_of(parts, end)
    assert [unit.start for unit in units] == [0, *(unit.stop for unit in units)][: len(units)]
    assert (units[-1].stop if units else 0) == end
    assert all(unit.start % PAGE == 0 and unit.start < unit.stop for unit in units)
    assert len(units) <= MOST_UNITS + len(parts) + 1
    total = sum(part.cost for part in parts if part.nbytes)
    assert sum(unit.cost for unit in units) == pytest.approx(total, rel=1e-6, abs=1e-3)
    dealt = shares(units, ranks)
    assert [unit for own in dealt for unit in own] == units
    dearest = max((unit.cost for unit in units), default=0)
    assert all(sum(unit.cost for unit in own) <= total / ranks + dearest * 1.01 + 1e-3 for own in dealt)
    assert all(len([*runs(own)]) <= 1 for own in dealt)


def test_units_of_a_large_file_have_equal_costs() -> None:
    parts = [CostedSpan(i << 30, 1 << 30, 1e9 if i % 2 else 5e9) for i in range(300)]
    units = units_of(parts, 300 << 30)
    assert 8000 < len(units) <= MOST_UNITS
    costs = [unit.cost for unit in units]
    assert max(costs) < 1.2 * sum(costs) / len(costs)


def test_what_is_left_is_dealt_again() -> None:
    units = [Unit(i, i + 1, 1.0) for i in (0, 1, 2, 5, 6, 9)]
    assert [[unit.start for unit in own] for own in shares(units, 3)] == [[0, 1], [2, 5], [6, 9]]
    assert [[unit.start for unit in run] for run in runs(units)] == [[0, 1, 2], [5, 6], [9]]
    assert shares([], 2) == [[], []]
    assert shares([Unit(0, 1, 0.0)], 2) == [[Unit(0, 1, 0.0)], []]
