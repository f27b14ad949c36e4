"""Round trips of random GLFT files and values, with the numbers of the reference reader."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from glft_schema import Container, fake_quantize, load_file, save_file
from glft_schema.tensor_types.engine.differences import max_error
from tests.oracles import glft_reference as reference
from tests.oracles.glft_reference import Row
from tests.tools import glft_strategies as strategies
from tests.tools.in_memory import IN_MEMORY


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


finite = st.floats(-1e4, 1e4, width=32)
shapes = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4) | st.tuples(st.integers(1, 3), st.sampled_from([64, 128]))
float_tensors = shapes.flatmap(lambda shape: arrays("float32", shape, elements=finite))


@pytest.mark.filterwarnings("ignore::glft_schema.QuantizationWarning")
@settings(max_examples=400)  # each encodes and decodes several tensors
@given(
    st.dictionaries(strategies.names.filter(lambda name: name != "*"), float_tensors, max_size=3),
    st.sampled_from([1, 2, 64]),
)
def test_tensors_to_file_to_tensors(made: dict[str, object], alignment: int) -> None:
    tensors = {name: torch.tensor(array) for name, array in made.items()}
    for scheme in ("f32", "q8_per_channel", "q4_per_group_64"):
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            path = Path(folder, "file.gguf-lite")
            written = save_file(tensors, path, schemes={"*": scheme} if tensors else {}, alignment=alignment)
            loaded = load_file(path)
            with Container.parse_file(path) as file:
                assert all(tensor.position % alignment == 0 for tensor in file.tensors.values())
        assert list(loaded) == list(tensors)
        for tensor in written:
            expected = fake_quantize(tensors[tensor.name], tensor.type.scheme)
            assert torch.equal(loaded[tensor.name], expected)


@pytest.mark.slow
def test_many_tensors() -> None:
    """As in a model with many experts; quadratic time would be noticed."""
    rows = [Row(f"layers.{i}.weight", [1], reference.F16, i.to_bytes(2, "little")) for i in range(20_000)]
    stored = reference.back_to_back(b"", rows)
    file = Container.parse(stored)
    assert len(file.tensors) == 20_000
    assert file.tensors["layers.19999.weight"].raw == (19_999).to_bytes(2, "little")
    assert Container.build(file) == stored
