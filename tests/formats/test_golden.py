"""The golden GLFT files parse into the values in their comments and build back byte for byte."""

import math

import pytest
import torch

from glft_schema import Container, File
from tests.golden import golden

FOUR_TYPES = golden("four_types")


@pytest.fixture
def four_types() -> File:
    return Container.parse(FOUR_TYPES)


def test_header_and_metadata(four_types: File) -> None:
    assert dict(four_types.header) == {"magic": 0x474C4654, "version": 1}
    assert (four_types.header.n_tensors, four_types.header.metadata_len) == (4, 22)
    assert four_types.metadata == {"arch": "toy", "note": "a=b üß"}
    assert not four_types.metadata.trailing_newline


def test_descriptors(four_types: File) -> None:
    rows = [(row.name, list(row.dims), row.dtype.name, row.offset) for row in four_types.descriptors]
    assert rows == [
        ("a", [], "F32", 0),
        ("b", [3], "F16", 4),
        ("fc1", [2, 3], "Q8_per_channel", 10),
        ("fc2", [1, 64], "Q4_per_group_64", 20),
    ]


def test_payloads(four_types: File) -> None:
    tensors = four_types.tensors
    assert tensors["fc1"].payload.scales.tolist() == [0.5, -2.0]
    assert tensors["fc1"].payload.codes.tolist() == [[1, -1, -128], [127, 0, 2]]
    assert tensors["fc2"].payload.scales.tolist() == [[0.25]]
    assert tensors["fc2"].payload.nibbles.tolist()[0][:3] == [0x10, 0x32, 0x54]


def test_numbers(four_types: File) -> None:
    tensors = four_types.tensors
    assert tensors["a"].dequantize().item() == -1.5
    one, tiny, nan = tensors["b"].dequantize().tolist()
    assert (one, tiny, math.isnan(nan)) == (1.0, 2.0**-24, True)
    assert tensors["fc1"].dequantize().tolist() == [[0.5, -0.5, -64.0], [-254.0, 0.0, -4.0]]
    first = [0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1]
    assert tensors["fc2"].dequantize().tolist() == [[code / 4 for code in [*first, *[0] * 46, -1, 0]]]


def test_loose_layout() -> None:
    file = Container.parse(golden("loose_layout"))
    assert file.metadata == {"k": "v"}
    assert file.metadata.trailing_newline
    assert {name: tensor.dequantize().tolist() for name, tensor in file.tensors.items()} == {"x": [1], "y": [1, 2], "z": [1]}
    assert [tuple(gap) for gap in file.tensors.gaps] == [(0, 2), (6, 1), (11, 2)]
    assert file.tensors.trailing == 2


@pytest.mark.parametrize("name", ["four_types", "loose_layout"])
def test_parsed_file_builds_back(name: str) -> None:
    assert Container.build(Container.parse(golden(name))) == golden(name)


def test_values_build_the_golden_file() -> None:
    """The writer computes the offsets."""
    nibbles = torch.zeros(1, 32, dtype=torch.uint8)
    nibbles[0, :8] = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE])
    nibbles[0, 31] = 0x0F
    codes = torch.tensor([[1, -1, -128], [127, 0, 2]], dtype=torch.int8)
    built = Container.build(
        {
            "metadata": {"arch": "toy", "note": "a=b üß"},
            "descriptors": [
                {"name": "a", "dims": [], "dtype": "F32"},
                {"name": "b", "dims": [3], "dtype": 1},
                {"name": "fc1", "dims": [2, 3], "dtype": "q8_per_channel"},
                {"name": "fc2", "dims": [1, 64], "dtype": "Q4_per_group_64"},
            ],
            "data": {
                "a": {"weights": torch.tensor(-1.5)},
                "b": bytes.fromhex("003C 0100 007E"),
                "fc1": {"scales": torch.tensor([0.5, -2.0], dtype=torch.float16), "codes": codes},
                "fc2": {"scales": torch.tensor([[0.25]], dtype=torch.float16), "nibbles": nibbles},
            },
        }
    )
    assert built == FOUR_TYPES
