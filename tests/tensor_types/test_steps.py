"""Steps of encoders, and sums in C's order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glft_schema.tensor_types.engine import steps
from glft_schema.tensor_types.engine.arithmetic import total


@steps.step
def add(x: torch.Tensor, y: torch.Tensor, *, factor: int) -> tuple[torch.Tensor]:
    return (x + factor * y,)


@steps.row_step
def halve(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x / 2,)


def test_variants_of_a_step() -> None:
    """A kernel takes any number of groups, and nothing else that is different."""
    variant = steps.variant_of(True, (torch.zeros(4, 7), torch.zeros(7), torch.tensor(0.0)), {"factor": 2})
    assert variant == "factor 2, float32[4 n0], float32[n0], float32[]"
    others = [
        ((torch.zeros(4, 9), torch.zeros(9), torch.tensor(0.0)), 2, True),
        ((torch.zeros(4, 9), torch.zeros(9), torch.tensor(0.0)), 3, False),  # another constant
        ((torch.zeros(5, 9), torch.zeros(9), torch.tensor(0.0)), 2, False),  # another fixed dim
        ((torch.zeros(4, 9), torch.zeros(8), torch.tensor(0.0)), 2, False),  # lengths that were equal
        ((torch.zeros(4, 9), torch.zeros(9, dtype=torch.float64), torch.tensor(0.0)), 2, False),
        ((torch.zeros(4, 9), torch.tensor(0.0), torch.tensor(0.0)), 2, False),
    ]
    for tensors, factor, is_equal in others:
        assert (steps.variant_of(True, tensors, {"factor": factor}) == variant) == is_equal
    assert steps.variant_of(False, (torch.zeros(7, 32),), {}) == "float32[n0 32]"


def test_two_steps_of_one_name() -> None:
    """They would use each other's kernels."""
    with pytest.raises(ValueError, match="expected a new name for a step, found halve"):

        @steps.step
        def _halve(x: torch.Tensor) -> tuple[torch.Tensor]:
            return (x / 2,)


def test_calls_are_recorded() -> None:
    with steps.recorded() as calls:
        for groups in (3, 5, 4):
            add(torch.zeros(2, groups), torch.ones(groups), factor=2)
        halve(torch.zeros(3, 32))
    halve(torch.zeros(4, 31))
    assert list(calls) == ["add factor 2, float32[2 n0], float32[n0]", "halve float32[n0 32]"]
    (call, _) = calls.values()
    assert (call.step.name, call.constants, call.tensors[0].shape) == ("add", {"factor": 2}, (2, 5))  # the largest


@pytest.mark.parametrize("shape", [(1, 5), (9, 1), (33, 2), (100, 17), (40, 3, 5), (5, 0)])
@pytest.mark.parametrize("transposed", [False, True])
def test_rows_are_added_in_order(shape: tuple[int, ...], transposed: bool) -> None:
    """Against scalar float32 additions: other orders round differently."""
    made = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = np.zeros(shape[1:], np.float32)
    for row in made:
        expected = expected + row
    rows = torch.from_numpy(made)
    if transposed:
        rows = rows.transpose(0, -1).contiguous().transpose(0, -1)
    assert np.array_equal(total(rows).numpy(), expected)


def test_a_sum_starts_with_zero() -> None:
    found = total(torch.full((3, 4), -0.0))
    assert not found.signbit().any()


def test_a_sum_may_overflow() -> None:
    """Without a warning."""
    assert total(torch.full((3, 4), 3e38)).isinf().all()
