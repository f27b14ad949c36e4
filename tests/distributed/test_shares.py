"""A file divided among ranks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from glft_schema.distributed.shares import PAGE, spans_of, tasks_of
from glft_schema.files.layout import Layout
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.storage.dtypes import FLOAT32
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.save import Writing, plan_file

SHAPES = st.lists(st.sampled_from([(64,), (0, 32), (300, 4096), (2, 500, 2048), (7000, 1024)]), max_size=6)


def layout_of(shapes: list[tuple[int, ...]], type_: str = "q4_k") -> Layout:
    """Returns the layout of a planned file, whose values are never read."""
    tensors = {
        f"w{i}": StoredTensor(shape, FLOAT32, lambda: np.empty(0), read=lambda index: np.empty(0))
        for i, shape in enumerate(shapes)
    }
    return plan_file(tensors, WITH_TYPES, None, Writing({"*": type_} if shapes else ())).layout


@given(SHAPES, st.integers(1, 9))
def test_shares_cover_the_file_and_meet_at_pages(shapes: list[tuple[int, ...]], ranks: int) -> None:
    layout = layout_of(shapes)
    shares = [[*tasks] for tasks in tasks_of(layout, ranks)]
    assert len(shares) == ranks
    parts = dict.fromkeys((task.first, task.last) for tasks in shares for task in tasks)  # rows of a part are several tasks
    starts = {tasks[0].first for tasks in shares[1:] if tasks}
    assert all(start % PAGE == 0 or any(span.start == start for span in layout.spans) for start in starts)
    assert all(one[1] <= other[0] for one, other in pairwise(parts))
    assert sum(last - first for first, last in parts) == sum(span.nbytes for span in spans_of(layout))


def test_shares_of_a_large_file_have_equal_costs() -> None:
    layout = layout_of([(4096, 4096)] * 20)
    costs = [sum(rows.stop - rows.start for *_, rows in tasks if rows) for tasks in tasks_of(layout, 7)]
    assert max(costs) < 1.1 * sum(costs) / len(costs)
