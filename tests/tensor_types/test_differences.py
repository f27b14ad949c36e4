"""Error measures, compared with numpy and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from glft_schema.tensor_types import chunks
from glft_schema.tensor_types.differences import NumberErrors, errors_of, max_error

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("numbers", "reference", "expected"),
    [
        ([NAN, INF, -INF, 0.0], [NAN, INF, -INF, 0.0], 0),
        ([1.0, NAN], [1.5, NAN], 0.5),
        ([1.0], [NAN], INF),
        ([INF], [-INF], INF),
        ([], [], 0),
    ],
)
def test_max_error(numbers: list[float], reference: list[float], expected: float) -> None:
    assert max_error(torch.tensor(numbers), torch.tensor(reference, dtype=torch.float64)) == expected


@pytest.mark.parametrize("chunk", [chunks.CHUNK, 20, 1])
def test_measures_by_numpy(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", chunk)
    random = np.random.default_rng(1)
    reference = random.normal(size=(3, 5, 7)).astype(np.float32)
    numbers = (reference + 0.1 * random.normal(size=reference.shape)).astype(np.float16)
    numbers[1, 4] = -3 * reference[1, 4]
    one, other = numbers.astype(np.float64), reference.astype(np.float64)
    power, noise = (other**2).mean(), ((one - other) ** 2).mean()
    rows = np.linalg.norm(one - other, axis=-1) / np.linalg.norm(other, axis=-1)
    expected = {
        "rmse": np.sqrt(noise),
        "relative": np.sqrt(noise / power),
        "snr": 10 * np.log10(power / noise),
        "cosine": np.vdot(one, other) / np.linalg.norm(one) / np.linalg.norm(other),
        "largest": np.abs(one - other).max(),
        "worst_row_error": rows.max(),
    }
    errors = errors_of(torch.from_numpy(numbers), torch.from_numpy(reference))
    assert {name: getattr(errors, name) for name in expected} == pytest.approx(expected)
    assert (errors.count, errors.unlike, errors.is_none, errors.worst_row) == (105, 0, False, (1, 4))


def test_numbers_that_are_not_finite() -> None:
    reference = torch.tensor([[NAN, INF, -INF, 1.0], [NAN, INF, 2.0, 2.0]])
    same = errors_of(reference, reference)
    assert (same.is_none, same.unlike, same.snr, same.cosine, same.worst_row) == (True, 0, INF, 1.0, None)
    found = errors_of(torch.tensor([[NAN, INF, -INF, 4.0], [0.0, -INF, NAN, 2.0]]), reference)
    assert (found.unlike, found.squares, found.largest, found.reference_squares) == (3, 9.0, 3.0, 5.0)
    assert (found.rmse, found.worst_row, found.worst_row_error) == (math.sqrt(9 / 5), (0,), 3.0)


def test_zeros_and_empty_tensors() -> None:
    none = errors_of(torch.zeros(0, 4), torch.zeros(0, 4))
    assert (none.count, none.rmse, none.relative, none.snr, none.is_none) == (0, 0.0, 0.0, INF, True)
    assert math.isnan(none.cosine)
    lost = errors_of(torch.tensor([[0.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 2))
    assert (lost.relative, lost.snr, lost.worst_row, lost.worst_row_error) == (INF, -INF, (1,), INF)
    single = errors_of(torch.tensor(3), torch.tensor(2))
    assert (single.largest, single.worst_row, single.worst_row_error) == (1.0, (), 0.5)


def test_sums_of_several_tensors() -> None:
    one, other = torch.randn(2, 8, 3), torch.randn(2, 8, 3)
    total = NumberErrors()
    for part in range(2):
        total.include(errors_of(one[part], other[part]))
    whole = errors_of(one, other)
    names = ("count", "rmse", "snr", "cosine", "largest")
    assert [getattr(total, name) for name in names] == pytest.approx([getattr(whole, name) for name in names])
