"""Comparing a file with its source."""

from __future__ import annotations

from pathlib import Path

import torch

from glft_schema import Container, save_file
from glft_schema.checks.compare import compare
from glft_schema.tensor_types.engine.differences import max_error
from glft_schema.weights.stored_tensors import in_memory

INF, NAN = float("inf"), float("nan")


def test_what_is_compared(tmp_path: Path) -> None:
    one, floats, matrix = torch.ones(1), torch.tensor([1.0, NAN, INF]), torch.ones(1, 64)
    state = {"int": one, "q": matrix.clone(), "f": floats, "shape": torch.ones(2), "extra": torch.ones(1)}
    save_file(state, tmp_path / "f", schemes={"q": "q4_per_group_64"})
    matrix[0, 3] = NAN
    source = in_memory({"int": one.long(), "q": matrix, "f": floats, "shape": torch.ones(3), "missing": one})
    with Container.parse_file(tmp_path / "f") as file:
        found = {result.name: (result.error, result.problem) for result in compare(file, source)}
    assert found == {
        "int": (INF, "expected a float dtype, found torch.int64: exclude or convert the tensor"),
        "q": (INF, "NaN and infinities cannot be quantized"),
        "f": (0.0, ""),
        "shape": (INF, "[3] in the source, [2] in the file"),
        "extra": (INF, "not in the source"),
        "missing": (INF, "not in the file"),
    }


def test_max_error() -> None:
    special = torch.tensor([NAN, INF, -INF, 0.0])
    assert max_error(special, special.double()) == 0
    assert max_error(torch.tensor([1.0, NAN]), torch.tensor([1.5, NAN])) == 0.5
    assert max_error(torch.tensor([1.0]), torch.tensor([NAN])) == INF
    assert max_error(torch.tensor([INF]), torch.tensor([-INF])) == INF
    assert max_error(torch.zeros(0), torch.zeros(0)) == 0
