"""Properties: files read back equal, GGUF also with gguf-py, or a documented error is raised."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

import glft_schema
from glft_schema import FormatError, TensorError, Typed, convert, save_file
from glft_schema.errors import OptionError
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.formats.safetensors import TYPES as SAFETENSORS_TYPES
from glft_schema.storage.torch_tensors import as_tensor
from glft_schema.tensors.tensor import Tensor
from glft_schema.weights.checkpoints import Checkpoint, open_with_metadata
from glft_schema.weights.in_memory import in_memory
from glft_schema.weights.payloads import WrittenTensor
from tests.oracles.peers import gguf
from tests.tools.gguf_strategies import same
from tests.tools.in_memory import IN_MEMORY

EXAMPLES = settings(max_examples=max(settings.default.max_examples // 10, 25))
DOCUMENTED = (FormatError, TensorError, OptionError)
pytestmark = pytest.mark.filterwarnings(
    "ignore::glft_schema.errors.QuantizationWarning", "ignore::glft_schema.errors.TiedWarning"
)

# Most drawn values are valid, or few files with several tensors could be written.
odd_texts = ["", "\ud800", "\udcff", "a=b", "1\nadmin=true", "n" * 63, "n" * 64, "重" * 22, "n" * 65536, "__metadata__"]
texts = st.one_of(*[st.text(max_size=6)] * 9, st.sampled_from(odd_texts))
names = [*["float32", "float16", "bfloat16"] * 15, *(type_.exact for type_ in SAFETENSORS_TYPES)]
FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)
dtypes = st.sampled_from([getattr(torch, name) for name in names if hasattr(torch, name)])
small, large = st.lists(st.integers(0, 3), max_size=4), st.sampled_from([[2, 64], [1, 256], [64], [2, 2, 32]])
shapes = st.one_of(*[small, large] * 8, st.sampled_from([[1] * 5, [1] * 65]))
numbers = st.sampled_from([*[0.0, -0.0, 1.0, -1.5, 0.1, 1e-9, 1e-40, 300.0] * 9, 7e4, 1e30, math.inf, math.nan])
layouts = st.sampled_from(
    [
        lambda tensor: tensor,
        lambda tensor: tensor.transpose(0, -1) if tensor.dim() else tensor,
        lambda tensor: tensor[:1].expand(3, *tensor.shape[1:]) if tensor.dim() and len(tensor) else tensor,
        lambda tensor: tensor[::2] if tensor.dim() else tensor,
        lambda tensor: tensor.conj() if tensor.is_complex() else tensor,
        lambda tensor: tensor.clone().conj().imag if tensor.is_complex() and tensor.dtype != torch.complex32 else tensor,
        lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
        lambda tensor: tensor.requires_grad_() if tensor.is_floating_point() and tensor.element_size() > 1 else tensor,
    ]
)
plain = st.one_of(
    st.booleans(),
    st.integers(-(1 << 63), 1 << 64),
    st.floats(width=32),
    texts,
    st.lists(st.integers(-(1 << 33), 1 << 33), min_size=1, max_size=3),
    st.lists(texts, max_size=3),
    st.lists(st.booleans(), min_size=1, max_size=3),
    st.builds(Typed, st.integers(0, 300), st.sampled_from(["uint8", "int16", "uint64", "float64"])),
    st.builds(Typed, st.lists(st.integers(0, 130), max_size=3), st.sampled_from(["array[uint8]", "array[float64]"])),
)
no_values = st.sampled_from([None, b"x", [[1], [2]], [], Typed(1, "string"), Typed(1, "bool"), Typed(1, "x"), 1j])
values = st.one_of(*[plain] * 19, no_values)
segments = st.lists(st.text("abc_09", min_size=1, max_size=4), min_size=1, max_size=3).map(".".join)
keys = st.one_of(*[segments] * 18, texts, st.sampled_from(["general.alignment", "GGUF.version", 1]))
alignments = st.sampled_from([*[None, 8, 64, 4096] * 4, 0, 1, 3, 24, 1 << 21])


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """Tensors of any dtype, shape and layout in memory, some of them tied."""
    made: dict[str, torch.Tensor] = {}
    for name in draw(st.lists(texts, unique=True, max_size=3)):
        if made and draw(st.integers(0, 3)) == 0:
            made[name] = draw(st.sampled_from(list(made.values())))
            continue
        dtype, shape, some = draw(dtypes), draw(shapes), draw(st.lists(numbers, min_size=1, max_size=4))
        flat = torch.tensor((some * (math.prod(shape) // len(some) + 1))[: math.prod(shape)], dtype=torch.float64)
        stored = torch.uint8 if dtype == FLOAT4 else dtype  # to which torch converts nothing
        if not stored.is_floating_point and not stored.is_complex:
            flat = flat.nan_to_num(0, 1, 0).clamp(0, 100)
        made[name] = draw(layouts)(flat.to(stored).reshape(shape).view(dtype))
    return made


def stored_bits(tensor: torch.Tensor) -> list[int]:
    """Returns the bytes of a tensor's values."""
    stored: list[int] = tensor.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8).tolist()
    return stored


def assert_tensors(path: Path, given: Mapping[str, torch.Tensor], written: list[WrittenTensor]) -> None:
    found = open_with_metadata(path).tensors
    assert set(found) == set(given)
    for tensor in written:
        loaded, source = as_tensor(found[tensor.name].values()), given[tensor.name].detach()
        expected = source.resolve_conj() if tensor.copied else as_tensor(tensor.type.round_trip(source, tensor.name))
        assert (loaded.shape, loaded.dtype) == (source.shape, expected.dtype)
        assert stored_bits(loaded) == stored_bits(expected)


def check(
    given: dict[str, torch.Tensor],
    name: str,
    write: Callable[[Path], list[WrittenTensor]],
    compare: Callable[[Path], None],
) -> None:
    """Writes a file and compares it with `given`. A documented error must leave nothing behind."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY, ignore_cleanup_errors=True) as folder:
        path = Path(folder, name)
        try:
            written = write(path)
        except DOCUMENTED as error:
            event(f"refused: {type(error).__name__}")
            assert not list(Path(folder).iterdir())
            return
        event("written")
        assert_tensors(path, given, written)
        compare(path)


@EXAMPLES
@given(
    tensors(),
    st.dictionaries(texts, st.one_of(*[texts] * 9, st.none(), st.integers()), max_size=3),
    st.sampled_from([{}, *({"*": type_.scheme} for type_ in GLFT.types)]),
    alignments,
)
def test_glft(given: dict[str, torch.Tensor], metadata: dict[str, Any], schemes: dict[str, str], alignment: int | None) -> None:
    def compare(path: Path) -> None:
        with glft_schema.open(path) as file:
            assert list(file.metadata.items()) == list(metadata.items())
            assert list(file.tensors) == list(given)
            assert all(tensor.position % (alignment or 1) == 0 for tensor in file.tensors.values())

    options = {"schemes": schemes if given else {}, "alignment": alignment}
    check(given, "file.glft", lambda path: save_file(given, path, metadata, **options), compare)


def equal(given: Any, found: Any) -> bool:
    """Returns whether a metadata value came back; NaN equals NaN, and 1 may become 1.0."""
    given = given.value if isinstance(given, Typed) else given
    if isinstance(given, list):
        return isinstance(found, list) and len(given) == len(found) and all(map(equal, given, found))
    return same(given, found) or (isinstance(found, float) and given == found)


def gguf_py_reads(tensor: Tensor) -> bool:
    """Returns whether gguf-py 0.19 reads a tensor.

    It lacks Q2_0, assumes 40 bytes per Q8_1 block, and fails on BF16 tensors without dims.
    """
    return tensor.type.name not in ("Q2_0", "Q8_1") and not (tensor.type.name == "BF16" and not tensor.dims)


@EXAMPLES
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of NaN in gguf-py
@given(
    tensors(),
    st.dictionaries(keys, values, max_size=3),
    st.sampled_from([{}, *({"*": type_.scheme} for type_ in GGUF.types if not type_.needs_importance)]),
    alignments,
    st.sampled_from([None, {"byte_order": "big"}, {"version": 2}]),
)
def test_gguf(
    given: dict[str, torch.Tensor],
    metadata: dict[str, Any],
    schemes: dict[str, str],
    alignment: int | None,
    header: dict[str, Any] | None,
) -> None:
    stated = metadata if alignment is None else {**metadata, "general.alignment": alignment}

    def compare(path: Path) -> None:
        with glft_schema.open(path) as file:
            assert list(file.metadata) == list(stated)
            assert all(equal(stated[key], found) for key, found in file.metadata.items())
            if not all(map(gguf_py_reads, file.tensors.values())):
                return
            reader = gguf.GGUFReader(path)
            assert all(equal(found, reader.fields[key].contents()) for key, found in file.metadata.items())
            assert [tensor.name for tensor in reader.tensors] == list(given)
            for tensor in reader.tensors:
                ours = file.tensors[tensor.name]
                assert ours.raw == tensor.data.tobytes()
                assert tuple(map(int, tensor.shape)) == ours.dims

    options: dict[str, Any] = {"schemes": schemes if given else {}, "alignment": alignment, "header": header}
    check(given, "file.gguf", lambda path: save_file(given, path, metadata, **options), compare)


@EXAMPLES
@given(tensors(), st.dictionaries(texts, texts, max_size=3))
def test_safetensors(given: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    def compare(path: Path) -> None:
        with safetensors.safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt", **metadata}

    check(given, "file.safetensors", lambda path: convert(Checkpoint(in_memory(given), metadata), path), compare)
