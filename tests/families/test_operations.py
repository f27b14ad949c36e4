"""Operations on values: inverses of each other, and as transformers rotates."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import glft_schema as glft
from glft_schema.errors import TensorError
from glft_schema.families.operations import (
    KEEP,
    PackMXFP4,
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
        (SplitAlternately(), 1, (2, 6, 5)),
        (SplitAlternately(), 1, (2, 6)),
        (Transpose(3, SplitAlternately()), 1, (2, 5, 6)),
        (Transpose(3, SplitAlternately()), 1, (2, 6)),
    ],
)
def test_there_and_back(operation: TensorOperation, count: int, dims: tuple[int, ...]) -> None:
    tensors = [np.arange(i, i + math.prod(dims), dtype=np.float32).reshape(dims) for i in range(count)]
    sources = [of_values(tensor) for tensor in tensors]
    results = operation.map_to_gguf(sources, CONFIG, "x")
    loaded = [result.values() for result in results]
    assert [(values.shape, values.dtype) for values in loaded] == [(result.shape, result.dtype) for result in results]
    for result, values in zip(results, loaded, strict=True):
        for row in range(result.shape[0] if result.shape[1:] and result.read else 0):
            whole = [slice(0, size) for size in result.shape[1:]]
            assert np.array_equal(result.part((slice(row, row + 1), *whole)), values[row : row + 1])
    for expected, found in zip(tensors, operation.map_to_hf(results, CONFIG, "x"), strict=True):
        assert np.array_equal(found.values(), expected)


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
    (joined,) = (operation.map_to_gguf if to_gguf else operation.map_to_hf)(
        [of_values(tensor) for tensor in given], CONFIG, "x"
    )
    parts = [
        joined.part((slice(row, row + 1), *(slice(0, size) for size in joined.shape[1:]))) for row in range(joined.shape[0])
    ]
    assert joined.dtype == parts[0].dtype == as_dtype(wider)
    assert np.array_equal(np.concatenate(parts), joined.values())
    back = (operation.map_to_hf if to_gguf else operation.map_to_gguf)([joined], CONFIG, "x")
    assert all(np.array_equal(found.values(), tensor.to(wider).numpy()) for found, tensor in zip(back, given, strict=True))


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


def test_mxfp4_of_hugging_face() -> None:
    """Rows of two blocks, whose weights are those that gguf-py decodes, in order."""
    quants = pytest.importorskip("gguf.quants")
    kind = pytest.importorskip("gguf").GGMLQuantizationType.MXFP4
    codes = torch.arange(2 * 6 * 2 * 16).mul(37).remainder(256).to(torch.uint8).view(2, 6, 2, 16)
    scales = torch.arange(110, 134).to(torch.uint8).view(2, 6, 2)
    pair = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    weights = torch.stack([pair[(codes & 15).long()], pair[(codes >> 4).long()]], -1).flatten(-2)
    weights = (weights * torch.exp2(scales.float() - 127).unsqueeze(-1)).flatten(-2)
    operation, sources = PackMXFP4(SplitAlternately()), [of_values(codes), of_values(scales)]
    results = operation.map_to_gguf(sources, {}, "x")
    for number, result in enumerate(results):
        assert result.packed is not None
        stored = result.packed.packed_rows().reshape(2, 3, -1)
        assert np.array_equal(quants.dequantize(stored, kind), weights[:, number::2])
        assert np.array_equal(result.values(), weights[:, number::2])
        assert np.array_equal(
            result.part((slice(1, 2), slice(2, 3), slice(40, 50))), weights[1:, number + 4 : number + 5, 40:50]
        )
        whole = result.packed.packed_rows()
        assert np.array_equal(result.packed.packed_rows((slice(1, 2), slice(17, 68))), whole[1:2, 17:68])
    for expected, found in zip((codes, scales), operation.map_to_hf(results, {}, "x"), strict=True):
        assert (found.shape, found.dtype) == (expected.shape, np.uint8)
        assert np.array_equal(found.values(), expected)


@pytest.mark.parametrize(
    ("codes", "scales", "found"),
    [
        (torch.ones(2, 4, 1, 8, dtype=torch.uint8), torch.ones(2, 4, 1, dtype=torch.uint8), r"uint8 \[2, 4, 1, 8\] and "),
        (torch.ones(2, 4, 1, 16, dtype=torch.int8), torch.ones(2, 4, 1, dtype=torch.uint8), r"int8 \[2, 4, 1, 16\] and "),
        (torch.ones(2, 4, 1, 16, dtype=torch.uint8), torch.ones(2, 4), r"uint8 \[2, 4, 1, 16\] and float32 \[2, 4\]"),
    ],
)
def test_other_codes(codes: torch.Tensor, scales: torch.Tensor, found: str) -> None:
    expected = rf"expected codes of MXFP4 as uint8 \[..., 16\], and scales \[...\], found {found}"
    with pytest.raises(TensorError, match=expected):
        PackMXFP4().map_to_gguf([of_values(codes), of_values(scales)], {}, "x")


def test_permuted_rows_make_pairs() -> None:
    """Rows i and i + 3 of a head are rotated together: GGUF has them side by side."""
    rows = torch.arange(6)[:, None]
    (permuted,) = PermuteRows("heads").to_gguf([torch.cat([rows, rows + 10, rows + 20])], CONFIG)
    pairs = [0, 3, 1, 4, 2, 5]
    assert permuted.flatten().tolist() == [*pairs, *(10 + row for row in pairs), *(20 + row for row in pairs)]


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
