"""Round trips of random GLFT files and values, with the numbers of the reference reader."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glft_schema import Container
from glft_schema.tensor_types.differences import max_error
from tests.oracles import glft_reference as reference
from tests.oracles.glft_reference import Row
from tests.tools import glft_strategies as strategies
from tests.tools.depth import FULL


def assert_numbers(found: torch.Tensor, row: Row) -> None:
    expected = torch.tensor(reference.numbers(row.dtype, row.dims, row.payload), dtype=torch.float64).reshape(row.dims)
    assert max_error(found, expected) == 0


@pytest.mark.fuzz
@given(strategies.files())
def test_bytes_to_values_to_bytes(made: tuple[bytes, dict[str, str], list[Row]]) -> None:
    stored, entries, rows = made
    file = Container.parse(stored)
    assert list(file.metadata.items()) == list(entries.items())
    assert [(d.name, list(d.dims), d.dtype.code, d.offset) for d in file.descriptors] == [
        (row.name, row.dims, row.dtype, row.offset) for row in rows
    ]
    for row in rows:
        assert file.tensors[row.name].raw == row.payload
        assert_numbers(file.tensors[row.name].dequantize(), row)
    assert Container.build(file) == stored


@pytest.mark.fuzz
@given(strategies.metadata, strategies.rows())
def test_values_to_bytes_to_values(entries: dict[str, str], rows: list[Row]) -> None:
    expected = reference.back_to_back("\n".join(f"{k}={v}" for k, v in entries.items()).encode(), rows)
    payloads = {name: dict(tensor.payload) for name, tensor in Container.parse(expected).tensors.items()}
    table = [{"name": row.name, "dims": row.dims, "dtype": row.dtype} for row in rows]
    assert Container.build({"metadata": entries, "descriptors": table, "data": payloads}) == expected


@pytest.mark.fuzz
@given(strategies.rows().filter(bool), st.data())
def test_slices_are_those_of_the_whole(rows: list[Row], data: st.DataObject) -> None:
    row = rows[0]
    index = data.draw(strategies.indices(row.dims))
    tensor = Container.parse(reference.back_to_back(b"", rows)).tensors[row.name]
    whole, part = tensor.dequantize()[index], tensor[index]
    assert part.shape == whole.shape
    assert max_error(part, whole) == 0


def test_many_tensors() -> None:
    """As in a model with many experts; quadratic time would be noticed."""
    count = 20_000 if FULL else 4_000
    rows = [Row(f"layers.{i}.weight", [1], reference.F16, i.to_bytes(2, "little")) for i in range(count)]
    stored = reference.back_to_back(b"", rows)
    file = Container.parse(stored)
    assert len(file.tensors) == count
    assert file.tensors[f"layers.{count - 1}.weight"].raw == (count - 1).to_bytes(2, "little")
    assert Container.build(file) == stored
