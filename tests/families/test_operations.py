"""Operations on values: inverses of each other, and as transformers rotates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import glft_schema as glft
from glft_schema.families.operations import (
    NegativeExponential,
    PermuteRows,
    PlusOne,
    TensorOperation,
    Transpose,
)
from glft_schema.storage import tensor_bytes
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensors.stored_tensor import Slices, StoredTensor, of_file, of_packed
from glft_schema.weights import payloads

CONFIG = {"heads": 3, "experts": 2}


@pytest.mark.parametrize("type_", ["q4_per_group_64", "q8_per_channel", "q4_k"])
def test_moved_rows_of_quantized_tensors_are_stored(type_: str, tmp_path: Path) -> None:
    """With their bytes, also if the payload has its scales apart."""
    path = tmp_path / ("x.gguf" if type_ == "q4_k" else "x.glft")
    weights = torch.randn(12, 256, generator=torch.Generator().manual_seed(0))
    glft.save_file({"w": weights}, path, schemes={"w": type_}, rules=[])
    source, operation = glft.open(path).tensors["w"], PermuteRows("heads")
    stored = operation.map_to_gguf([of_file(source)], CONFIG, "w")[0]
    assert np.array_equal(stored.values(), operation.to_gguf([source.numpy()], CONFIG)[0])
    glft.save_file({"w": stored}, tmp_path / f"moved{path.suffix}", rules=[])
    moved = glft.open(tmp_path / f"moved{path.suffix}").tensors["w"]
    assert moved.type == source.type
    for name, field in source.fields.items():
        rows = field.reshape(12, -1)
        assert np.array_equal(moved.fields[name].reshape(12, -1), operation.to_gguf([rows], CONFIG)[0])


@pytest.mark.parametrize("operation", [PlusOne(), PermuteRows("heads"), Transpose()])
def test_a_source_without_parts_is_loaded_once(
    operation: TensorOperation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "PART", 64)  # a row at once
    values, loads = torch.randn(12, 64), list[int]()

    def load() -> torch.Tensor:
        loads.append(1)
        return values

    mapped = operation.map_to_gguf([StoredTensor((12, 64), torch.float32, load)], CONFIG, "w")[0]
    glft.save_file({"w": mapped}, tmp_path / "x.gguf", schemes={"w": "bf16"}, rules=[])
    assert len(loads) == 1
    expected = torch.from_numpy(operation.to_gguf([values.numpy()], CONFIG)[0]).bfloat16()
    assert torch.equal(glft.open(tmp_path / "x.gguf").get_tensor("w"), expected)


def test_rows_of_a_stack_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of the payload is a whole expert, which is larger than a piece."""
    monkeypatch.setattr(tensor_bytes, "PIECE", 1000)
    read, payload = list[tuple[int, int]](), torch.randint(0, 256, (3, 8 * 34 * 2), dtype=torch.uint8).numpy()

    def part(index: Slices) -> np.ndarray:
        read.append((index[0].start, index[0].stop))
        return payload[index]

    stack = of_packed("w", (3, 8, 64), GGML_TYPES["Q8_0"], part).file_tensor
    assert stack is not None
    pieces = [bytes(piece) for piece in stack.pieces()]
    assert b"".join(pieces) == payload.tobytes()
    assert len(pieces) == 2
    assert read == [(0, 2), (2, 3)]


@pytest.mark.parametrize("is_short", [False, True])
def test_factors_of_decay_convert_again_to_the_same_bits(is_short: bool) -> None:
    """Logarithms of bfloat16 are found again, and those of float32 if they are at least 1."""
    logarithms = np.random.default_rng(0).uniform(-7, 4, 4096).astype(np.float32)
    if is_short:
        logarithms = (logarithms.view(np.uint32) & 0xFFFF0000).view(np.float32)
    operation = NegativeExponential()
    (factors,) = operation.to_gguf([logarithms], {})
    (again,) = operation.to_hf([factors], {})
    assert np.array_equal(operation.to_gguf([again], {})[0], factors)
    exact = np.abs(logarithms) >= (0 if is_short else 1)
    assert np.array_equal(again[exact], logarithms[exact])
