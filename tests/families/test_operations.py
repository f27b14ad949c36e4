"""Operations on values: inverses of each other, and as transformers rotates."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import glft_schema as glft
from glft_schema.errors import TensorError
from glft_schema.families.operations import (
    PermuteRows,
    PlusOne,
    SplitAlternately,
    SplitRows,
    Stack,
    TensorOperation,
    Transpose,
)
from glft_schema.storage import tensor_bytes
from glft_schema.storage.dtypes import as_dtype
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensors.stored_tensor import Slices, StoredTensor, of_file, of_packed, of_values
from glft_schema.weights import payloads

CONFIG = {"heads": 3, "experts": 2}


@pytest.mark.parametrize(
    "dtypes", [("float16", "float32"), ("float32", "bfloat16"), ("bfloat16", "float16"), ("float16", "float64")]
)
@pytest.mark.parametrize(
    ("operation", "to_gguf"), [(Stack("experts"), True), (SplitRows(), False), (SplitAlternately(), False)]
)
def test_tensors_of_other_dtypes_get_one_that_holds_both(
    operation: TensorOperation, to_gguf: bool, dtypes: tuple[str, str]
) -> None:
    given = [torch.randn(3, 4, 8).to(getattr(torch, dtype)) for dtype in dtypes]
    wider = torch.promote_types(given[0].dtype, given[1].dtype)
    there, back = (operation.map_to_gguf, operation.map_to_hf)[:: 1 if to_gguf else -1]
    (joined,) = there([of_values(tensor) for tensor in given], CONFIG, "x")
    whole = tuple(slice(0, size) for size in joined.shape)
    assert joined.dtype == joined.part(whole).dtype == as_dtype(wider)
    assert np.array_equal(joined.part(whole), joined.values())
    for found, tensor in zip(back([joined], CONFIG, "x"), given, strict=True):
        assert np.array_equal(found.values(), tensor.to(wider).numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_tensor_without_dims(dtype: torch.dtype) -> None:
    (more,) = PlusOne().map_to_gguf([of_values(torch.tensor(0.5, dtype=dtype))], {}, "x")
    assert (more.shape, more.values().shape, float(more.values())) == ((), (), 1.5)


@pytest.mark.parametrize(
    ("operation", "to_gguf", "shapes"),
    [
        (Stack("experts"), True, ((3, 4), (3, 5))),
        (Stack("experts"), True, ((3, 4), (4, 3))),
        (Stack("experts"), False, ((3, 4, 5),)),
        (SplitRows(), True, ((5, 4),)),
        (SplitRows(), True, ((6,),)),
        (SplitRows(), False, ((3, 4), (3, 5))),
        (SplitAlternately(), True, ((6,),)),
        (PermuteRows("heads"), True, ((8, 4),)),
        (PermuteRows("heads"), True, ((12, 0),)),
    ],
)
def test_shapes_that_do_not_fit(operation: TensorOperation, to_gguf: bool, shapes: tuple[tuple[int, ...], ...]) -> None:
    sources = [of_values(np.zeros(shape, np.float32)) for shape in shapes]
    found = ", ".join(str(list(shape)) for shape in shapes)
    with pytest.raises(TensorError, match=re.escape(f"tensor 'x': expected a shape that fits the config, found {found}")):
        (operation.map_to_gguf if to_gguf else operation.map_to_hf)(sources, CONFIG, "x")


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
