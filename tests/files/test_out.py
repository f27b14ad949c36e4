"""Values into memory that is there: `load_file`, `get_tensor`, `dequantize`, parts of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import glft_schema
from glft_schema import TensorError, load_file, save_file

SCHEMES = {"a": "q4_0", "b": "f16", "c": "f32"}
SHAPES = {"a": (6, 64), "b": (3, 2, 5), "c": (7,)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("out") / "m.gguf"
    tensors = {name: torch.randn(shape, generator=torch.Generator().manual_seed(0)) for name, shape in SHAPES.items()}
    save_file(tensors, path, schemes=SCHEMES)
    return path


def destinations(dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    own = {"a": torch.float32, "b": torch.float16, "c": torch.float32}
    return {name: torch.full(shape, 7, dtype=dtype or own[name]) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float64])
def test_a_dict_of_tensors(mmap: bool, dtype: torch.dtype | None, model: Path) -> None:
    expected, out = load_file(model, dtype=dtype), destinations(dtype)
    found = load_file(model, mmap=mmap, out=out)
    assert list(found) == list(expected)
    for name, tensor in found.items():
        assert tensor is out[name]
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name])


def test_parameters_of_a_module(model: Path) -> None:
    """They are written, although they require a gradient."""
    out = {name: torch.nn.Parameter(tensor) for name, tensor in destinations(torch.float32).items()}
    load_file(model, out=out)
    assert all(torch.equal(out[name], tensor) for name, tensor in load_file(model, dtype=torch.float32).items())
    assert all(tensor.requires_grad for tensor in out.values())


def test_a_function(model: Path) -> None:
    memory, asked = torch.zeros(1000), []

    def make(tensor: glft_schema.Tensor) -> torch.Tensor | None:
        asked.append(tensor.name)
        return memory[: tensor[...].numel()].view(tensor.shape) if tensor.name == "a" else None

    found = load_file(model, out=make)
    assert asked == ["a", "b", "c"]
    assert found["a"].data_ptr() == memory.data_ptr()
    assert all(torch.equal(tensor, load_file(model)[name]) for name, tensor in found.items())


def test_names_that_share_a_payload(tmp_path: Path) -> None:
    tensor = torch.randn(4, 8)
    save_file({"one": tensor, "other": tensor}, tmp_path / "m.glft")
    out = {"one": torch.zeros(4, 8), "other": torch.zeros(4, 8)}
    load_file(tmp_path / "m.glft", out=out)
    assert all(torch.equal(found, tensor) for found in out.values())


WRONG: list[tuple[str, Any, str]] = [
    ("b", None, "tensor 'b': out has no tensor for it"),
    ("d", torch.zeros(1), "tensor 'd': out has a tensor for it, but the file has none"),
    ("a", torch.zeros(64, 6), r"tensor 'a': expected out as a torch.Tensor of \[6, 64\], found \[64, 6\]"),
    ("a", [[0.0] * 64] * 6, r"tensor 'a': expected out as a torch.Tensor of \[6, 64\], found \[\[0.0, 0.0, .*\.\.\."),
    ("a", torch.zeros(6, 64, dtype=torch.int32), "tensor 'a': expected out as a float dtype, found torch.int32"),
    ("c", torch.zeros(14)[::2], r"tensor 'c': expected a contiguous out, found strides \[2\]"),
]


@pytest.mark.parametrize(("name", "tensor", "sentence"), WRONG)
def test_checked_before_anything_is_written(name: str, tensor: object, sentence: str, model: Path) -> None:
    out: dict[str, Any] = destinations()
    if tensor is None:
        del out[name]
    else:
        out[name] = tensor
    before = {name: tensor.clone() for name, tensor in out.items() if isinstance(tensor, torch.Tensor)}
    with pytest.raises(TensorError, match=f"^{sentence}$"):
        load_file(model, out=out)
    assert all(torch.equal(out[name], tensor) for name, tensor in before.items())


def test_arguments_that_contradict_out(model: Path) -> None:
    with pytest.raises(TensorError, match=r"tensor 'a': expected out as torch\.float16, found torch\.float32"):
        load_file(model, dtype=torch.float16, out=destinations())
    with pytest.raises(TensorError, match="tensor 'a': expected out on meta, found cpu"):
        load_file(model, "meta", out=destinations())
    with glft_schema.open(model) as file:
        tensor = file.tensors["a"]
        with pytest.raises(TensorError, match="expected out on meta, found cpu"):
            tensor.dequantize(device="meta", out=torch.zeros(6, 64))
        with pytest.raises(TensorError, match=r"expected out as a torch.Tensor of \[2, 64\], found \[2, 63\]"):
            tensor.read(slice(2), out=torch.zeros(2, 63))
        assert tensor.dequantize(out=torch.zeros(6, 64, device="meta")).device.type == "meta"


def test_an_integer_tensor_takes_its_own_dtype(tmp_path: Path) -> None:
    numbers = torch.arange(6, dtype=torch.int32).view(2, 3)
    save_file({"i": numbers}, tmp_path / "m.gguf")
    with glft_schema.open(tmp_path / "m.gguf") as file:
        out = torch.zeros(2, 3, dtype=torch.int32)
        assert torch.equal(file.get_tensor("i", out=out), numbers)
        assert torch.equal(file.tensors["i"].read(1, out=out[0]), numbers[1])
        with pytest.raises(TensorError, match=r"expected out as a float dtype or torch.int32, found torch.int64"):
            file.get_tensor("i", out=out.long())


INDICES = st.one_of(
    st.integers(-6, 5),
    st.slices(6),
    st.just(...),
    st.tuples(st.slices(6), st.slices(64)),
    st.tuples(st.integers(-6, 5), st.slices(64)),
    st.tuples(st.slices(6), st.integers(-64, 63)),
)


@settings(max_examples=50)
@given(index=INDICES, dtype=st.sampled_from([None, torch.float16, torch.float32]), name=st.sampled_from(["a", "c"]))
def test_parts_of_tensors(index: Any, dtype: torch.dtype | None, name: str, model: Path) -> None:
    with glft_schema.open(model) as file:
        tensor = file.tensors[name]
        try:
            expected = tensor[index].to(dtype or torch.float32)
        except IndexError:
            return
        assert torch.equal(tensor.read(index, dtype=dtype), expected)
        memory = torch.full((expected.numel() + 2,), 7, dtype=expected.dtype)
        out = memory[1:-1].view(expected.shape)
        assert tensor.read(index, out=out) is out
        assert torch.equal(out, expected)
        assert memory[0] == memory[-1] == 7
