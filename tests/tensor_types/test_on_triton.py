"""Kernels of Triton: run in its interpreter, and compiled for GPUs that need not be there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from glft_schema.nn import Embedding, Experts, Linear, operators
from glft_schema.scalar.kinds import KINDS
from glft_schema.storage.torch_tensors import as_tensor
from glft_schema.tensor_types import TensorType, on_torch, on_triton
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.symmetric import Q4_PER_GROUP_64, Q8_PER_CHANNEL
from tests.scalar.sources import same_bits
from tests.tensor_types.packed_rows import TYPES, decoded, parts_of, product
from tests.tools.depth import FULL, some_by_default

EDGES = np.array([0.0, -0.0, 2**-24, -(2**-15), 1.0, 65504.0, np.inf, -np.inf, np.nan], np.float16)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
METHODS = [*on_triton.SUMS, *on_triton.DOTS]
needs_interpreter = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or not find_spec("triton"), reason="no Triton, or a GPU"
)


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The interpreter does not round to bfloat16 as a GPU does, so that torch does it here."""
    monkeypatch.setattr(on_triton, "_KERNELS", {})
    monkeypatch.setattr(on_triton, "SAMPLES", 2)  # the interpreter takes its time
    if find_spec("triton"):
        from triton.runtime import interpreter as module

        convert = module._convert_float

        def rounded(numbers: np.ndarray[Any, Any], source: Any, target: Any, mode: Any) -> np.ndarray[Any, Any]:
            if target != module.tl.bfloat16:
                return convert(numbers, source, target, mode)
            return torch.from_numpy(np.ascontiguousarray(numbers)).bfloat16().view(torch.int16).numpy().view(np.uint16)

        monkeypatch.setattr(module, "_convert_float", rounded)
    with np.errstate(all="ignore"):
        yield


def rows_of(type_: TensorType, rows: int, columns: int, start: int = 0) -> torch.Tensor:
    """Returns packed rows of random bytes at an address that is `start` above a multiple of 8."""
    size = type_.nbytes([1, columns])
    memory = torch.zeros(rows * size + 16, dtype=torch.uint8)
    first = -memory.data_ptr() % 8 + start
    random = np.random.default_rng(0).integers(0, 256, (rows, size), np.uint8)
    return memory[first : first + random.size].view(rows, size).copy_(torch.from_numpy(random))


def with_scales(type_: TensorType, packed: torch.Tensor, columns: int, scales: np.ndarray[Any, Any]) -> torch.Tensor:
    """Returns packed rows after some of `scales` in turn are written into their float16 fields."""
    layout, cells = type_.scalar_layout, packed.numpy()
    if layout.weights:
        cells = cells.reshape(-1, layout.offsets[-1])
        spans = [slice(*pair) for pair in pairwise(layout.offsets)]
    else:
        spans = [span for _, span, _ in type_.spans_of_row(columns)]
    for field, span in zip(layout.fields, spans, strict=True):
        if field.number in ("f16", "f32"):
            numbers = np.resize(scales, (len(cells), cells[:, span].shape[1] // KINDS[field.number].size))
            cells[:, span] = numbers.astype(KINDS[field.number].numpy).view(np.uint8)
    if type_.name == "IQ1_M":  # its scale is in the top nibbles of four words
        words = np.ascontiguousarray(cells[:, -8:]).view(np.uint16) & 0xFFF
        bits = np.resize(scales, len(words)).view(np.uint16)[:, None] >> np.arange(0, 16, 4, dtype=np.uint16) & 15
        cells[:, -8:] = (words | bits << 12).view(np.uint8)
    return packed


def by_decoding(weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (x.float() @ weights.T).to(x.dtype)


def shape_of(type_: TensorType) -> tuple[int, int]:
    """Returns rows and columns that fill no program: columns are 3 blocks or groups, or 37."""
    return 5, 3 * type_.least_row if type_.least_row > 1 else 37


@needs_interpreter
@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_decodes_to_the_bits_of_the_library(type_: TensorType) -> None:
    """In each dtype and from any address, with scales that are zero, subnormal, infinite or NaN."""
    rows, columns = shape_of(type_)
    for start, dtype in zip((0, 1, 2), FLOATS, strict=True):
        packed = with_scales(type_, rows_of(type_, rows, columns, start), columns, EDGES)
        memory = torch.full((rows * columns + 9,), 7.0, dtype=dtype)
        out = memory[5 : 5 + rows * columns].view(rows, columns)
        assert on_triton.decode(type_, parts_of(type_, packed, columns), columns, out)
        assert same_bits(out.float().numpy(), decoded(type_, packed, columns, dtype).float().numpy())
        assert (memory[:5] == 7).all()
        assert (memory[-4:] == 7).all()


@needs_interpreter
@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_products_are_those_of_decoded_weights(type_: TensorType) -> None:
    """By each method, also of packed rows that hold several rows of weights."""
    rows, columns = shape_of(type_)
    scales = np.array([1.0, 0.5, -0.25], np.float16)
    for method, count, together in zip(METHODS, (1, 3, 7, 16), (1, 1, 5, 1), strict=True):
        packed = with_scales(type_, rows_of(type_, rows // together, columns * together), columns * together, scales)
        weights = decoded(type_, packed, columns * together).view(rows, columns).double()
        weights /= (largest := weights.abs().max())
        x = torch.randn(count, columns, generator=torch.Generator().manual_seed(count))
        found = product(type_, x, packed, rows, method)
        torch.testing.assert_close(found.double() / largest, x.double() @ weights.T, rtol=1e-5, atol=1e-4)


@needs_interpreter
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("type_", [GGML_TYPES["Q4_K"], Q8_PER_CHANNEL], ids=str)
def test_multiplies_in_the_dtype_of_x_by_the_fastest_method(
    type_: TensorType, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No method is refused; more rows of x than a kernel takes are decoded."""
    rows, columns = 5, 512
    if dtype == torch.bfloat16:
        monkeypatch.setattr(on_triton, "DOTS", ())  # the interpreter multiplies the words
    packed = as_tensor(type_.pack(type_.encode(torch.randn(rows, columns) / 8, "w")))
    weights = decoded(type_, packed, columns)
    for count in (1, 2, 5, 16, 17, 0):
        x = torch.randn(columns, count).to(dtype).T  # not contiguous
        expected = x.float() @ weights.T
        found = on_triton.multiply(type_, x, packed, rows, partial(by_decoding, weights))
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.05)
    assert {key[4] for key in on_triton._KERNELS} == {1, 2, 8, 16}


DAMAGES = {
    (".to(out.dtype", ".to(tl.float16).to(out.dtype"): "Triton's kernel of Q4_0 gives other numbers than the decoder",
    ("tl.minimum", "tl.missing"): "Triton cannot run a kernel of Q4_0: .*missing.*",
    ("tl.sum", "tl.max"): "Triton's kernel of Q4_0 gives other numbers than the decoder",
}


@needs_interpreter
@pytest.mark.parametrize("replaced", DAMAGES)
def test_a_kernel_that_is_wrong_is_refused_with_a_warning(replaced: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is damaged as a faulty compiler would damage it. Zeros show no difference, so that
    nothing is decided by them."""
    print_kernel = on_triton._print_kernel
    on_triton.kernel_of.cache_clear()

    def damaged(*given: Any) -> tuple[str, list[Any]]:
        source, tables = print_kernel(*given)
        return source.replace(*replaced), tables

    monkeypatch.setattr(on_triton, "_print_kernel", damaged)
    type_, packed, out = GGML_TYPES["Q4_0"], rows_of(GGML_TYPES["Q4_0"], 3, 96), torch.empty(3, 96)
    with_scales(type_, packed, 96, np.array([1e-3], np.float16))
    warned = pytest.warns(RuntimeWarning, match=f"{DAMAGES[replaced]}; a slower method is used")
    for context in (warned, nullcontext()):  # once
        with nullcontext() if replaced[0] == "tl.sum" else context:
            assert on_triton.decode(type_, [packed], 96, out) == (replaced[0] == "tl.sum")
    weights, x = decoded(type_, packed, 96), torch.randn(1, 96)
    assert not on_triton.multiply(type_, x, torch.zeros_like(packed), 3, partial(by_decoding, 0 * weights)).any()
    if "float16" not in replaced[1]:
        for context in (warned, nullcontext()):
            with context:
                found = on_triton.multiply(type_, x, packed, 3, partial(by_decoding, weights))
            assert torch.equal(found, x @ weights.T)
    on_triton.kernel_of.cache_clear()


@needs_interpreter
def test_products_of_infinite_weights_are_infinite() -> None:
    type_, columns = GGML_TYPES["Q8_0"], 96
    packed = rows_of(type_, 3, columns)
    with_scales(type_, packed, columns, np.array([1, 1, 1, 1, np.inf, 1, 1, 1, np.nan], np.float16))
    x = torch.rand(2, columns) + 1
    for method in METHODS:
        found = product(type_, x, packed, 3, method)
        assert found.isfinite().tolist() == [[True, False, False]] * 2


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is taken for a GPU."""
    monkeypatch.setattr(on_torch, "PLAIN", ("meta",))
    monkeypatch.setattr(on_triton, "serves", lambda device: True)
    monkeypatch.setattr(operators, "_multiply", lambda *given: None)  # the library's product


@needs_interpreter
@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("type_", [GGML_TYPES["Q5_K"], Q4_PER_GROUP_64], ids=str)
def test_layers_run_kernels(type_: TensorType) -> None:
    """Few rows of x, more, rows of an embedding, an expert, and gradients."""
    layer, rows, experts = Linear(256, 20, type_), Embedding(30, 256, type_), Experts((3, 4, 256), type_)
    for each in (layer, rows, experts):
        each.set_weights(torch.randn(each.weight_shape))
    weights = decoded(type_, layer.weight.detach(), 256)
    for count in (1, 3, 20):
        x = torch.randn(2, count, 256, requires_grad=True)
        found = layer(x)
        torch.testing.assert_close(found, x @ weights.T, rtol=1e-4, atol=1e-3)
        found.sum().backward()
        torch.testing.assert_close(x.grad, weights.sum(0).expand(x.shape), rtol=1e-4, atol=1e-3)
    assert torch.equal(rows(torch.tensor([7])), decoded(type_, rows.weight.detach()[7:8], 256))
    expert = decoded(type_, experts.weight.detach()[1:2], 1024).view(4, 256)
    assert torch.equal(experts[1], expert)
    torch.testing.assert_close(experts(x[0], 1), x[0] @ expert.T, rtol=1e-4, atol=1e-3)
    assert {len(key) for key in on_triton._KERNELS} == {5, 7}


def test_without_triton_a_warning_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is taken for a GPU that Triton does not serve."""
    type_, packed, out = GGML_TYPES["Q8_0"], rows_of(GGML_TYPES["Q8_0"], 4, 64), torch.empty(4, 64)
    monkeypatch.setattr(on_torch, "PLAIN", ("meta",))
    monkeypatch.setattr(on_torch, "_UNSAID", [True])
    with pytest.warns(RuntimeWarning, match="Triton does not serve cpu: formulas run as operations of torch"):
        on_torch.decode_packed(type_, packed, 64, out)
    assert same_bits(out.numpy(), decoded(type_, packed, 64).numpy())
    on_torch.decode_packed(type_, packed, 64, out)  # warnings are errors


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "IQ3_S", "TQ1_0"])
def test_a_call_under_a_mode_leaves_nothing_behind(name: str) -> None:
    """Tensors that FakeTensorMode makes are not cached, nor are cached ones used under it."""
    type_, packed = GGML_TYPES[name], rows_of(GGML_TYPES[name], 4, 256)
    fields = {"blocks": packed}
    on_torch._formula.cache_clear()
    for _ in range(2):
        with FakeTensorMode() as mode:
            fakes = {key: mode.from_tensor(field) for key, field in fields.items()}
            assert on_torch.decode(type_, fakes, 256).shape == (4, 256)
        assert same_bits(on_torch.decode(type_, fields, 256).numpy(), decoded(type_, packed, 256).numpy())


COMPILED = """
import sys
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from glft_schema.formats.glft import GLFT
from glft_schema.tensor_types import on_triton
from glft_schema.tensor_types.ggml import GGML_TYPES

types = {type_.name: type_ for type_ in [*GGML_TYPES, *GLFT.types]}
number, name = int(sys.argv[1]), sys.argv[2]
layout, formula, parts = types[name].scalar_layout, types[name].formula, len(list(types[name].fields()))
for at, method in enumerate((on_triton.DECODE, *on_triton.SUMS, *on_triton.DOTS)):
    for target in (GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64))[:: 1 if sys.argv[3:] else 2]:
        form, height, warps = method
        variant = number + at
        dtype, alignment = ("bf16", "fp32", "fp16")[variant % 3], (1, 2, 4)[variant // 3 % 3]
        batch = 16 if form == "dot" else (1, 2, 4)[variant % 3]
        kernel, tables = on_triton.kernel_of(layout, formula, (alignment,) * parts, form, batch, bool(variant % 2))
        constants = {"CELLS": on_triton.cells_of(form, layout.unit), **({"ROWS": height} if height else {})}
        pointers = dict(part="*u8", x="*" + dtype, out="*" + dtype, table="*i32")
        kinds = {name: pointers.get(name.partition("_")[0], "i32") for name in kernel.arg_names}
        kinds |= {f"table_{at}": "*fp32" for at, table in enumerate(tables) if table.dtype.kind == "f"}
        source = ASTSource(kernel, kinds | dict.fromkeys(constants, "constexpr"), constants)
        made = compile(source, target=target, options={"num_warps": warps, "enable_fp_fusion": form != "decode"})
        assert made.asm["cubin" if target.backend == "cuda" else "hsaco"], (name, form)
print(name)
"""


@pytest.mark.skipif(not find_spec("triton"), reason="no Triton")
@pytest.mark.parametrize("type_", some_by_default([Q4_PER_GROUP_64, *TYPES], 40), ids=str)
def test_compiles_for_gpus_that_are_not_there(type_: TensorType) -> None:
    """Each form for an H100, and with --full an MI300, in a dtype and from an alignment that change
    by type."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, str(TYPES.index(type_)), type_.name, *["all"] * FULL],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )
    assert done.stdout == f"{type_.name}\n", done.stderr[-2000:]
