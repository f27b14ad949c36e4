"""The golden GLFT files parse into the values in their comments and build back byte for byte."""

import math

import torch

from glft_schema import Container
from tests.golden import golden

FOUR_TYPES = golden("four_types")


def test_four_types() -> None:
    file = Container.parse(FOUR_TYPES)
    assert Container.build(file) == FOUR_TYPES
    assert dict(file.header) == {"magic": 0x474C4654, "version": 1}
    assert (file.header.n_tensors, file.header.metadata_len) == (4, 22)
    assert (file.metadata, file.metadata.trailing_newline) == ({"arch": "toy", "note": "a=b üß"}, False)
    assert [f"{row.name}: {row.dtype.name} {list(row.dims)} at {row.offset}" for row in file.descriptors] == [
        "a: F32 [] at 0",
        "b: F16 [3] at 4",
        "fc1: Q8_per_channel [2, 3] at 10",
        "fc2: Q4_per_group_64 [1, 64] at 20",
    ]
    first = [0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1]
    expected = {
        "a": torch.tensor(-1.5),
        "b": torch.tensor([1.0, 2.0**-24, math.nan]),
        "fc1": torch.tensor([[0.5, -0.5, -64.0], [-254.0, 0.0, -4.0]]),
        "fc2": torch.tensor([[code / 4 for code in [*first, *[0] * 46, -1, 0]]]),
    }
    assert file.tensors.keys() == expected.keys()
    for name, numbers in expected.items():
        torch.testing.assert_close(file.get_tensor(name), numbers, rtol=0, atol=0, equal_nan=True, check_dtype=False)


def test_loose_layout() -> None:
    file = Container.parse(golden("loose_layout"))
    assert (file.metadata, file.metadata.trailing_newline) == ({"k": "v"}, True)
    assert {name: tensor.dequantize().tolist() for name, tensor in file.tensors.items()} == {"x": [1], "y": [1, 2], "z": [1]}
    assert ([tuple(gap) for gap in file.tensors.gaps], file.tensors.trailing) == ([(0, 2), (6, 1), (11, 2)], 2)
    assert Container.build(file) == golden("loose_layout")


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
