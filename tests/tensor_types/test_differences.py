"""Error measures, compared with numpy and by hand."""

from __future__ import annotations

import math
from typing import Any

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


EMPTY, LOST = torch.zeros(0, 4), torch.tensor([[0.0, 0.0], [0.0, 2.0]])
ODD = torch.tensor([[NAN, INF, -INF, 1.0], [NAN, INF, 2.0, 2.0]])
WRONG = torch.tensor([[NAN, INF, -INF, 4.0], [0.0, -INF, NAN, 2.0]])


@pytest.mark.parametrize(
    ("numbers", "reference", "expected"),
    [
        (ODD, ODD, {"is_none": True, "unlike": 0, "snr": INF, "cosine": 1.0, "worst_row": None}),
        (
            WRONG,
            ODD,
            {
                "unlike": 3,
                "squares": 9.0,
                "largest": 3.0,
                "reference_squares": 5.0,
                "rmse": math.sqrt(9 / 5),
                "worst_row": (0,),
                "worst_row_error": 3.0,
            },
        ),
        (EMPTY, EMPTY, {"count": 0, "rmse": 0.0, "relative": 0.0, "snr": INF, "is_none": True}),
        (LOST, torch.zeros(2, 2), {"relative": INF, "snr": -INF, "worst_row": (1,), "worst_row_error": INF}),
        (torch.tensor(3), torch.tensor(2), {"largest": 1.0, "worst_row": (), "worst_row_error": 0.5}),
    ],
)
def test_numbers_that_are_not_finite_zero_or_none(numbers: torch.Tensor, reference: torch.Tensor, expected: Any) -> None:
    errors = errors_of(numbers, reference)
    assert {name: getattr(errors, name) for name in expected} == expected
    assert numbers.numel() or math.isnan(errors.cosine)


def test_sums_of_several_tensors() -> None:
    one, other = torch.randn(2, 8, 3), torch.randn(2, 8, 3)
    total = NumberErrors()
    for part in range(2):
        total.include(errors_of(one[part], other[part]))
    whole = errors_of(one, other)
    names = ("count", "rmse", "snr", "cosine", "largest")
    assert [getattr(total, name) for name in names] == pytest.approx([getattr(whole, name) for name in names])
