"""Error measures, compared with numpy and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from glft_schema.tensor_types import chunks
from glft_schema.tensor_types.differences import NumberErrors, errors_of, max_error

INF, NAN = math.inf, math.nan


def test_max_error() -> None:
    special = torch.tensor([NAN, INF, -INF, 0.0])
    assert max_error(special, special.double()) == 0
    assert max_error(torch.tensor([1.0, NAN]), torch.tensor([1.5, NAN])) == 0.5
    assert max_error(torch.tensor([1.0]), torch.tensor([NAN])) == INF
    assert max_error(torch.tensor([INF]), torch.tensor([-INF])) == INF
    assert max_error(torch.zeros(0), torch.zeros(0)) == 0


@pytest.mark.parametrize("chunk", [chunks.CHUNK, 20, 1])
def test_measures_by_numpy(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", chunk)
    random = np.random.default_rng(1)
    reference = random.normal(size=(3, 5, 7)).astype(np.float32)
    numbers = (reference + 0.1 * random.normal(size=reference.shape)).astype(np.float16)
    numbers[1, 4] = -3 * reference[1, 4]
    errors = errors_of(torch.from_numpy(numbers), torch.from_numpy(reference))
    one, other = numbers.astype(np.float64), reference.astype(np.float64)
    power, noise = (other**2).mean(), ((one - other) ** 2).mean()
    assert errors.rmse == pytest.approx(np.sqrt(noise))
    assert errors.relative == pytest.approx(np.sqrt(noise / power))
    assert errors.snr == pytest.approx(10 * np.log10(power / noise))
    assert errors.cosine == pytest.approx(np.vdot(one, other) / np.linalg.norm(one) / np.linalg.norm(other))
    assert errors.largest == pytest.approx(np.abs(one - other).max())
    rows = np.linalg.norm(one - other, axis=-1) / np.linalg.norm(other, axis=-1)
    assert errors.worst_row == np.unravel_index(rows.argmax(), rows.shape) == (1, 4)
    assert errors.worst_row_error == pytest.approx(rows.max())
    assert (errors.count, errors.unlike, errors.is_none) == (105, 0, False)


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
    for measure in ("count", "rmse", "snr", "cosine", "largest"):
        assert getattr(total, measure) == pytest.approx(getattr(whole, measure))
