"""How formulas are compiled for a GPU: tested on a CPU as far as possible, the rest on a GPU."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import glft_schema
from glft_schema import save_file
from glft_schema.formats.glft import GLFT
from glft_schema.storage.torch_tensors import PINNED, to_device
from glft_schema.tensor_types import TensorType, on_torch
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.library.loading import MODE
from glft_schema.tensor_types.symmetric import Q4_PER_GROUP_64, Q8_PER_CHANNEL

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@given(rows=st.integers(1, 200), columns=st.integers(1, 40), sizes=st.sampled_from([(64, 16), (1000, 10), (1 << 30, 1 << 29)]))
def test_chunks_of_fixed_sizes_cover_all_rows(rows: int, columns: int, sizes: tuple[int, int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_torch, "SIZES", sizes)
        parts = list(on_torch.fixed_chunks(rows, columns))
    assert parts[0][0].start == 0
    assert parts[-1][0].stop == rows
    assert all(one.stop >= two.start > one.start and two.stop > one.stop for (one, _), (two, _) in pairwise(parts))
    allowed = {rows - rows % 16 if rows > 16 else rows for rows in (size // columns for size in sizes)} - {0}
    if fixed := [part for part, is_fixed in parts if is_fixed]:
        assert len(fixed) == len(parts)
        assert {part.stop - part.start for part in fixed} <= allowed
        assert sum(part.stop - part.start for part in fixed) < rows + min(allowed)  # only the last one goes back
    else:
        assert parts == [(slice(0, rows), False)]
        assert not any(step <= rows for step in allowed)


QUANTIZED = [type_ for type_ in [*GGML_TYPES, *GLFT.types] if not type_.exact]


def fields_of(type_: TensorType, rows: int, columns: int) -> dict[str, torch.Tensor]:
    weights = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    return {name: torch.from_numpy(field) for name, field in type_.encode(weights, "w").items()}


def triple(w: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    return 3.0 * numbers


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Keeps the graphs that a code generator would get, and runs them as they are."""
    graphs: list[object] = []
    monkeypatch.setattr(on_torch, "BACKEND", lambda graph, inputs: graphs.append(graph) or graph.forward)
    monkeypatch.setattr(on_torch, "SIZES", (16 * 256, 8 * 256))
    monkeypatch.setattr(on_torch, "_COMPILED", {})
    monkeypatch.setenv(MODE, "off")
    return graphs


@pytest.mark.parametrize("type_", [Q8_PER_CHANNEL, Q4_PER_GROUP_64, GGML_TYPES["Q4_1"]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decodes_in_a_graph_for_each_size(
    type_: TensorType, dtype: torch.dtype, backend: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = fields_of(type_, 40, 256)
    expected = on_torch.decode(type_, fields, 256, dtype=dtype)
    assert not backend
    monkeypatch.setattr(on_torch, "compiles", lambda out: True)
    for _ in range(2):  # the second time nothing is compiled
        assert torch.equal(on_torch.decode(type_, fields, 256, dtype=dtype), expected)
    assert len(backend) == 2
    monkeypatch.setattr(on_torch, "compiles", lambda out: False)
    assert torch.equal(
        on_torch.decode(type_, {name: field[:16] for name, field in fields.items()}, 256, dtype=dtype), expected[:16]
    )
    assert len(backend) == 2


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_decodes_to_anywhere(first: int, backend: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    fields, memory = fields_of(Q4_PER_GROUP_64, 43, 256), torch.full((44 * 256,), 7.0)
    expected = on_torch.decode(Q4_PER_GROUP_64, fields, 256)
    monkeypatch.setattr(on_torch, "compiles", lambda out: True)
    on_torch.decode(Q4_PER_GROUP_64, fields, 256, out=memory[first : first + 43 * 256].view(43, 256))
    assert torch.equal(memory[first : first + 43 * 256].view(43, 256), expected)
    assert torch.equal(torch.cat((memory[:first], memory[first + 43 * 256 :])), torch.full((256,), 7.0))
    assert len(backend) == 2


def test_more_shapes_than_torch_compiles_of_one_function(backend: list[object]) -> None:
    for rows in range(1, 13):
        weights, out = torch.randn(rows, 64), torch.empty(rows, 64)
        on_torch.run_compiled(triple, {"numbers": weights}, out)
        assert torch.equal(out, 3 * weights)
    assert len(backend) == 12


def test_without_a_compiler_a_warning_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(graph: object, inputs: object) -> None:
        raise RuntimeError("Cannot find a working triton installation\nand more")

    monkeypatch.setattr(on_torch, "BACKEND", missing)
    monkeypatch.setattr(on_torch, "_COMPILED", {})
    monkeypatch.setattr(on_torch, "_FAILED", {})
    weights, out = torch.randn(5, 64), torch.empty(5, 64)
    with pytest.warns(
        RuntimeWarning, match="torch.compile failed, so formulas run uncompiled and slower: .* Cannot find a working triton"
    ):
        on_torch.run_compiled(triple, {"numbers": weights[:4]}, out[:4])
    assert torch.equal(out[:4], 3 * weights[:4])
    on_torch.run_compiled(triple, {"numbers": weights}, out)  # warnings are errors
    assert torch.equal(out, 3 * weights)


def test_memory_that_runs_out_is_no_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*tensors: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(on_torch, "BACKEND", lambda graph, inputs: full)
    monkeypatch.setattr(on_torch, "_COMPILED", {})
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        on_torch.run_compiled(triple, {"numbers": torch.empty(4, 64)}, torch.empty(4, 64))


@on_gpu
@pytest.mark.parametrize("type_", QUANTIZED, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decodes_on_a_gpu(type_: TensorType, dtype: torch.dtype) -> None:
    rows, columns = 5001, 1024  # in the last chunk scales begin at odd places
    if not type_.needs_importance:
        fields = fields_of(type_, rows, columns)
    else:
        size = type_.nbytes([rows, columns]) // rows
        fields = {"blocks": torch.randint(0, 256, (rows, size), dtype=torch.uint8)}
    expected = on_torch.decode(type_, fields, columns, dtype=dtype)
    found = on_torch.decode(
        type_, {name: to_device(field, "cuda") for name, field in fields.items()}, columns, dtype=dtype
    ).cpu()
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())


@on_gpu
@pytest.mark.parametrize("type_", [GGML_TYPES["Q4_K"], Q4_PER_GROUP_64], ids=str)
def test_encodes_tensors_of_a_gpu(type_: TensorType) -> None:
    weights = torch.randn(501, 1024, generator=torch.Generator().manual_seed(0))
    expected, found = type_.encode(weights, "w"), type_.encode(weights.cuda(), "w")
    assert all(np.array_equal(field, expected[name]) for name, field in found.items())


@on_gpu
def test_large_payloads_arrive_whole_on_a_gpu(tmp_path: Path) -> None:
    weights = torch.randn(3, PINNED // 4)
    save_file({"w": weights, "v": weights[0] + 1}, tmp_path / "m.glft")
    loaded = glft_schema.load_file(tmp_path / "m.glft", device="cuda")
    assert torch.equal(loaded["w"].cpu(), weights)
    assert torch.equal(loaded["v"].cpu(), weights[0] + 1)


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "IQ3_S", "TQ1_0"])
def test_a_call_under_a_mode_leaves_nothing_behind(name: str) -> None:
    """Tensors that FakeTensorMode makes are not cached, nor are cached ones used under it."""
    type_ = GGML_TYPES[name]
    packed = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (4, type_.nbytes([256])), np.uint8))
    fields = on_torch.unpack(type_, packed, 256)
    expected = type_.decode({key: field.numpy() for key, field in fields.items()}, 256)
    on_torch._formula.cache_clear()
    for _ in range(2):
        with FakeTensorMode() as mode:
            fakes = {key: mode.from_tensor(field) for key, field in fields.items()}
            assert on_torch.decode(type_, fakes, 256).shape == (4, 256)
        out = torch.empty(4, 256)
        on_torch._by_operations(type_, fields, 256, out)
        assert np.array_equal(out.numpy(), expected, equal_nan=True)
