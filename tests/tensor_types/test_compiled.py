"""How formulas are compiled for a GPU: tested on a CPU as far as possible, the rest on a GPU."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from unittest.mock import patch

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
from glft_schema.tensor_types.symmetric import Q4_PER_GROUP_64, Q8_PER_CHANNEL
from tests.scalar.sources import same_bits
from tests.tools.depth import some_by_default

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@given(rows=st.integers(1, 200), columns=st.integers(1, 40), sizes=st.sampled_from([(64, 16), (1000, 10), (1 << 30, 1 << 29)]))
def test_chunks_of_fixed_sizes_cover_all_rows(rows: int, columns: int, sizes: tuple[int, int]) -> None:
    with patch.object(on_torch, "SIZES", sizes):
        parts = list(on_torch.fixed_chunks(rows, columns))
    covered = [row for part, _ in parts for row in range(part.start, part.stop)]
    allowed = {rows - rows % 16 if rows > 16 else rows for rows in (size // columns for size in sizes)} - {0}
    if min(allowed, default=rows + 1) > rows:
        assert parts == [(slice(0, rows), False)]
    else:
        assert {(part.stop - part.start, is_fixed) for part, is_fixed in parts} <= {(size, True) for size in allowed}
        assert {*covered} == {*range(rows)}
        assert len(covered) < rows + min(allowed)  # only the last one goes back
        assert [part.start for part, _ in parts] == sorted({part.start for part, _ in parts})


QUANTIZED = [type_ for type_ in [*GGML_TYPES, *GLFT.types] if not type_.exact]


def random_fields(type_: TensorType, rows: int, columns: int = 256) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Returns fields and their weights, by the functions for arrays."""
    random = np.random.default_rng(0)
    if type_.needs_importance:
        arrays = {"blocks": random.integers(0, 256, (rows, type_.nbytes([1, columns])), np.uint8)}
    else:
        arrays = type_.encode(random.standard_normal((rows, columns), np.float32), "w")
    return {name: torch.from_numpy(field) for name, field in arrays.items()}, torch.from_numpy(type_.decode(arrays, columns))


def are(found: torch.Tensor, weights: torch.Tensor) -> bool:
    """Tells whether numbers have the bits of weights in their dtype."""
    return same_bits(found.cpu().float().numpy(), weights.to(found.dtype).float().numpy())


def triple(w: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    return 3.0 * numbers


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formulas are compiled for the CPU as for a GPU."""
    monkeypatch.setattr(on_torch, "SIZES", (16 * 256, 8 * 256))
    monkeypatch.setattr(on_torch, "compiles", lambda out: not on_torch.in_mode())
    monkeypatch.setattr(on_torch, "_COMPILED", {})


@pytest.fixture
def graphs(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Keeps the graphs that a code generator would get, and runs them as they are."""
    graphs: list[object] = []
    monkeypatch.setattr(on_torch, "BACKEND", lambda graph, inputs: graphs.append(graph) or graph.forward)
    return graphs


EACH = [(Q8_PER_CHANNEL, torch.float32), (Q4_PER_GROUP_64, torch.bfloat16), (GGML_TYPES["Q4_1"], torch.bfloat16)]


@pytest.mark.parametrize(
    ("type_", "dtype"), [*EACH, *some_by_default([(type_, torch.float32) for type_ in GGML_TYPES if type_.block], 4)], ids=str
)
def test_decodes_by_a_graph_for_each_size(type_: TensorType, dtype: torch.dtype, graphs: list[object]) -> None:
    """Into memory that begins anywhere; the second time nothing is compiled."""
    fields, weights = random_fields(type_, 43)
    for first in range(3):
        memory = torch.full((44 * 256,), 7.0, dtype=dtype)
        out = memory[first : first + weights.numel()].view(weights.shape)
        assert on_torch.decode(type_, fields, 256, out=out) is out
        assert are(out, weights)
        assert torch.equal(torch.cat((memory[:first], memory[first + weights.numel() :])), torch.full((256,), 7.0, dtype=dtype))
    assert len(graphs) == 2
    few = {name: field[:4] for name, field in fields.items()}
    assert are(on_torch.decode(type_, few, 256, dtype=dtype), weights[:4])
    assert len(graphs) == 2 if type_.least_row == 256 else graphs


# One for each kind of expression: halves, computed scales, offsets, a table, a grid, digits, E4M3.
KINDS = ["Q3_K", "Q5_1", "Q4_K", "Q8_K", "IQ4_XS", "IQ1_M", "IQ3_S", "TQ1_0", "NVFP4"]


@pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler")
@pytest.mark.full
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("type_", [*map(GGML_TYPES.__getitem__, KINDS), Q4_PER_GROUP_64, Q8_PER_CHANNEL], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_real_code_generator(type_: TensorType, dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    fields, weights = random_fields(type_, 16)
    with caplog.at_level(logging.INFO, "glft_schema"):
        found = on_torch.decode(type_, fields, 256, dtype=dtype)
    assert are(found, weights)
    assert [message.partition(" for {'")[0] for message in caplog.messages] == ["compiled a formula"]


def test_more_shapes_than_torch_compiles_of_one_function(graphs: list[object]) -> None:
    for rows in range(1, 13):
        weights, out = torch.randn(rows, 64), torch.empty(rows, 64)
        on_torch.run_compiled(triple, {"numbers": weights}, out)
        assert torch.equal(out, 3 * weights)
    assert len(graphs) == 12


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
    fields, weights = random_fields(type_, 5001, 1024)  # in the last chunk scales begin at odd places
    found = on_torch.decode(type_, {name: to_device(field, "cuda") for name, field in fields.items()}, 1024, dtype=dtype)
    assert are(found, weights)


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
def test_a_call_under_a_mode_leaves_nothing_behind(name: str, graphs: list[object]) -> None:
    """Tensors that FakeTensorMode makes are not cached, nor are cached ones used under it."""
    fields, weights = random_fields(GGML_TYPES[name], 4)
    on_torch._formula.cache_clear()
    for _ in range(2):
        with FakeTensorMode() as mode:
            fakes = {key: mode.from_tensor(field) for key, field in fields.items()}
            assert on_torch.decode(GGML_TYPES[name], fakes, 256).shape == (4, 256)
        assert are(on_torch.decode(GGML_TYPES[name], fields, 256), weights)
