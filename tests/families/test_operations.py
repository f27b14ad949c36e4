"""Operations on values: inverses of each other, and as transformers rotates."""

from __future__ import annotations

import pytest
import torch

from glft_schema.families.operations import (
    KEEP,
    Operation,
    PermuteRows,
    PlusOne,
    SplitRows,
    Stack,
    Transpose,
    applied,
    of_values,
)

CONFIG = {"heads": 3, "experts": 2}


@pytest.mark.parametrize(
    ("operation", "count", "dims"),
    [
        (KEEP, 1, (3, 4)),
        (PermuteRows("heads"), 1, (12, 5)),
        (PermuteRows("heads"), 1, (12,)),
        (PlusOne(), 1, (7,)),
        (Transpose(), 1, (3, 4)),
        (Transpose(), 1, (4,)),
        (Stack("experts"), 2, (3, 4)),
        (SplitRows(), 1, (2, 6, 5)),
    ],
)
def test_there_and_back(operation: Operation, count: int, dims: tuple[int, ...]) -> None:
    tensors = [torch.arange(i, i + torch.Size(dims).numel(), dtype=torch.float32).reshape(dims) for i in range(count)]
    sources = [of_values(tensor) for tensor in tensors]
    results = applied(lambda values: operation.to_gguf(values, CONFIG), sources, "x", operation.scope)
    loaded = [result.load() for result in results]
    assert [(tuple(values.shape), values.dtype) for values in loaded] == [(result.shape, result.dtype) for result in results]
    for result, values in zip(results, loaded, strict=True):
        for row in range(result.shape[0] if result.shape[1:] and result.read else 0):
            whole = [slice(0, size) for size in result.shape[1:]]
            assert torch.equal(result.part((slice(row, row + 1), *whole)), values[row : row + 1])
    for expected, found in zip(tensors, operation.to_hf(loaded, CONFIG), strict=True):
        assert torch.equal(found, expected)


def test_permuted_rows_make_pairs() -> None:
    """Rows i and i + 3 of a head are rotated together: GGUF has them side by side."""
    rows = torch.arange(6)[:, None]
    (permuted,) = PermuteRows("heads").to_gguf([torch.cat([rows, rows + 10, rows + 20])], CONFIG)
    pairs = [0, 3, 1, 4, 2, 5]
    assert permuted.flatten().tolist() == [*pairs, *(10 + row for row in pairs), *(20 + row for row in pairs)]
