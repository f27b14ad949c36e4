"""Saving: schemes, tensors that types cannot hold, tied weights, layout and memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import glft_schema.numpy
from glft_schema import (
    Container,
    FormatError,
    LimitError,
    SchemeError,
    TensorError,
    convert,
    load_file,
    load_into,
    save_file,
)
from glft_schema.errors import OptionError, TiedWarning
from glft_schema.lab import fake_quantize, read_gguf_lite, write_gguf_lite
from glft_schema.storage.dtypes import FLOATS, NAMES, dtype_of
from glft_schema.storage.torch_tensors import as_array
from glft_schema.tensor_types import chunks
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.weights import payloads
from glft_schema.weights.payloads import WrittenTensor
from tests.tools import forked

Q4, Q8 = "q4_per_group_64", "q8_per_channel"

CONVERT = "exclude the tensor, or convert it to one of float32, float16"


def types(path: Path) -> dict[str, str]:
    with Container.parse_file(path) as file:
        return {name: tensor.type.scheme for name, tensor in file.tensors.items()}


STATE = {
    "emb.weight": torch.randn(10, 128),
    "layers.0.fc1.weight": torch.randn(4, 64),
    "layers.0.fc1.bias": torch.randn(4),
    "layers.0.odd.weight": torch.randn(3, 10),
    "layers.1.fc1.weight": torch.randn(4, 64).half(),
}


@pytest.mark.parametrize(
    ("schemes", "expected"),
    [
        ({}, ["f32", "f32", "f32", "f32", "f16"]),
        ({"*": Q4}, [Q4, Q4, "f32", "f32", Q4]),
        ({"*": Q8, "layers.*": Q4}, [Q8, Q4, "f32", Q8, Q4]),
        ({"layers.*": Q4, "*": Q8}, [Q8, Q8, "f32", Q8, Q8]),
        ({"layers.0.fc1.weight": Q8, "layers.*": Q4}, ["f32", Q8, "f32", "f32", Q4]),
        ({"*.bias": "f16", "*.fc[0-9].weight": Q4}, ["f32", Q4, "f16", "f32", Q4]),
    ],
)
def test_schemes(path: Path, schemes: dict[str, str], expected: list[str]) -> None:
    save_file(STATE, path, schemes=schemes)
    assert list(types(path).values()) == expected


def test_report_says_what_kept_its_type_and_why(path: Path) -> None:
    notes = {tensor.name: tensor.note for tensor in save_file(STATE, path, schemes={"*": Q8, "layers.*": Q4}) if tensor.note}
    refusal = "expected at least 2 dims [out, in], none of them 0, found [4]"
    assert notes == {
        "layers.0.fc1.bias": f"not {Q4}: {refusal}; not {Q8}: {refusal}",
        "layers.0.odd.weight": f"not {Q4}: expected `in` to be a multiple of 64, found [3, 10]",
    }


@pytest.mark.parametrize(
    ("schemes", "message"),
    [
        ({"layers.0.fc1.weihgt": Q4}, "did you mean 'layers.0.fc1.weight'?"),
        ({"decoder.*": Q4}, "expected a tensor that matches 'decoder.*', found none"),
        ({"*": "q4_0"}, f"GLFT has no type 'q4_0': expected f32, f16, {Q8} or {Q4}"),
    ],
)
def test_schemes_that_cannot_be_followed(path: Path, schemes: dict[str, str], message: str) -> None:
    with pytest.raises(SchemeError) as caught:
        save_file(STATE, path, schemes=schemes)
    assert message in str(caught.value)
    assert not path.exists()


with FakeTensorMode():
    FAKE = torch.ones(2)


@pytest.mark.parametrize(
    ("tensor", "schemes", "message"),
    [
        (torch.ones(3, 10), {"w": Q4}, f"cannot be stored as {Q4}: expected `in` to be a multiple of 64, found [3, 10]"),
        (torch.ones(3, dtype=torch.int64), {}, f"tensor 'w': GLFT has no type for int64: {CONVERT}"),
        (torch.ones(3, dtype=torch.uint32), {"*": "f32"}, f"tensor 'w': GLFT has no type for uint32: {CONVERT}"),
        (torch.ones(3, dtype=torch.bool), {"w": "f32"}, "expected a float dtype, found bool"),
        (
            torch.ones(3, dtype=torch.float64),
            {},
            "no type stores float64 exactly; to round it, select a type such as f32 by a scheme",
        ),
        (torch.tensor([1, 10]).double() ** 300, {"w": "f32"}, "at [1]: a finite number is too large for float32"),
        (torch.tensor([[0.0], [70000.0]]), {"w": "f16"}, "at [1, 0]: a finite number is too large for float16"),
        (torch.ones(2, device="meta"), {}, "expected a dense tensor with values in memory, found a Tensor (meta)"),
        (torch.eye(2).to_sparse(), {}, "found a Tensor (torch.sparse_coo)"),
        (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged), {}, "found a NestedTensor"),
        (FAKE, {}, "expected a dense tensor with values in memory, found a FakeTensor"),
        (np.ma.masked_less(np.arange(4.0), 2), {"w": "f32"}, "expected an array without masked elements: fill them"),
        (np.zeros(2, dtype_of("float4_e2m1fn_x2")), {}, "GLFT has no type for float4_e2m1fn_x2"),
        (torch.zeros(2, dtype=torch.uint8).view(torch.bits8), {}, "no format has a type for torch.bits8"),
        ([1.0], {}, "expected a tensor of torch or an array of numpy, found [1.0]"),
        (np.ones(1, object), {}, "expected an array of numbers, found object"),
        (np.ones(1, [("bfloat16", "<f4")]), {}, "expected an array of numbers, found [('bfloat16', '<f4')]"),
    ],
)
def test_tensors_that_cannot_be_stored(path: Path, tensor: torch.Tensor, schemes: dict[str, str], message: str) -> None:
    with pytest.raises(TensorError) as caught:
        save_file({"w": tensor}, path, schemes=schemes)
    assert message in str(caught.value)
    assert caught.value.tensor == "w"
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("dtype", [name for name in FLOATS if name.startswith("float8") and hasattr(torch, name)])
def test_every_float8_is_held_exactly(path: Path, dtype: str) -> None:
    every = torch.arange(256).to(torch.uint8).view(getattr(torch, dtype))
    save_file({"w": every}, path)
    np.testing.assert_array_equal(load_file(path)["w"], every.to(torch.float32))  # NaN equals NaN


def bits_of(name: str) -> np.ndarray:
    """Returns an array [6, 4] of any bits, in the dtype of a name."""
    size, most = dtype_of(name).itemsize, 2 if name == "bool" else 256
    return np.random.default_rng(0).integers(0, most, (6, 4 * size), np.uint8).view(dtype_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_arrays_of_every_dtype(name: str, tmp_path: Path) -> None:
    """safetensors finds their bits, in whatever order they are in memory."""
    array = bits_of(name)
    arrays = {
        "whole": array,
        "columns": array[:, ::2],
        "backwards": array[::-1],
        "transposed": array.T,
        "repeated": np.broadcast_to(array[:1], (3, 4)),
        "nothing": array[:, :0],
        "big-endian": array.astype(array.dtype.newbyteorder(">")) if array.dtype.kind in "iufc" else array,
    }
    if name != "float4_e2m1fn_x2":  # whose last dim doubles
        arrays["scalar"] = array[0, 0, ...]
    written = save_file(arrays, tmp_path / "a.safetensors")
    found = dict(safetensors.deserialize((tmp_path / "a.safetensors").read_bytes()))
    for tensor in written:
        given = arrays[tensor.name]
        dims = [*given.shape[:-1], 2 * given.shape[-1]] if name == "float4_e2m1fn_x2" else [*given.shape]
        assert (tensor.source, tensor.note, found[tensor.name]["shape"]) == (name, "", dims)
        assert bytes(found[tensor.name]["data"]) == given.astype(array.dtype).tobytes()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scheme", ["f32", "f16", "bf16", "q8_0", "q4_k"])
def test_arrays_are_encoded_like_tensors(dtype: torch.dtype, scheme: str, tmp_path: Path) -> None:
    tensor = torch.randn(512, 6, generator=torch.Generator().manual_seed(0)).to(dtype).T
    array = as_array(tensor)
    assert not array.flags.c_contiguous
    given = [tensor, array, *([array.astype(array.dtype.newbyteorder(">"))] if array.dtype.kind == "f" else [])]
    for number, weights in enumerate(given):
        save_file({"w": weights}, tmp_path / f"{number}.gguf", schemes={"w": scheme}, rules=[])
        assert (tmp_path / f"{number}.gguf").read_bytes() == (tmp_path / "0.gguf").read_bytes()


def test_views_with_other_numbers_are_not_tied(tmp_path: Path) -> None:
    waves = torch.randn(4, 64, dtype=torch.complex64)
    tensors = {"a": waves, "conjugate": waves.conj(), "real": torch.view_as_real(waves), "negative": waves.conj().imag}
    tensors["imag"] = waves.imag
    assert not aliases(save_file(tensors, tmp_path / "m.safetensors"))
    loaded = load_file(tmp_path / "m.safetensors")
    assert all(torch.equal(loaded[name], tensor.resolve_conj().resolve_neg()) for name, tensor in tensors.items())


def test_tied_tensors_of_different_types_are_warned_of(path: Path) -> None:
    base = torch.randn(4, 64)
    with pytest.warns(TiedWarning, match="tensor 'b' is tied to 'a', which has a different type, so it is stored separately"):
        written = save_file({"a": base, "b": base, "c": base}, path, schemes={"a": Q8, "b": Q4, "c": Q4})
    assert [tensor.alias_of for tensor in written] == [None, None, "b"]
    assert written[1].note == "tied to 'a', which has a different type, so it is stored separately"


@pytest.mark.parametrize("name", ["", "\ud800", "n" * 65536])
def test_names_that_the_format_cannot_hold(path: Path, name: str) -> None:
    with pytest.raises(FormatError) as caught:
        save_file({name: torch.ones(1)}, path)
    assert caught.value.path == "descriptors -> 0 -> name"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tensors": [1]}, OptionError, r"expected tensors by name, such as model.state_dict\(\), found \[1\]"),
        ({"schemes": Q4}, SchemeError, "expected names or patterns with types, as a mapping or pairs"),
        ({"schemes": [("*",)]}, SchemeError, "expected names or patterns with types, as a mapping or pairs"),
        ({"schemes": {1: Q4}}, SchemeError, "expected a name or pattern, found 1"),
        ({"metadata": ["a=1"]}, FormatError, "expected a mapping of text to text"),
        ({"metadata": {"a": "1\nb=2"}}, FormatError, "^metadata: "),
        ({"tensors": {1: torch.ones(1)}}, TensorError, "expected a string as the name of a tensor"),
        ({"alignment": "4"}, OptionError, "expected an alignment of at least 1, found '4'"),
        ({"alignment": 1 << 40}, LimitError, r"expected at most 1048576 bytes \(a limit of glft_schema\), found 1099511627776"),
        ({"exclude": [1]}, SchemeError, "expected a name or pattern, found 1"),
        ({"exclude": ["emb.weihgt"]}, SchemeError, "matches 'emb.weihgt', found none; did you mean 'emb.weight'"),
    ],
)
def test_arguments_of_the_wrong_kind(path: Path, arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        save_file(**{"tensors": STATE, "path": path, **arguments})
    assert not path.exists()


EVERY_WAY = """
import hashlib, json, sys, warnings
from pathlib import Path
import torch
import glft_schema
from glft_schema import convert, save_file
from glft_schema.lab import write_gguf_lite
from glft_schema.files.splitting import merge, split

warnings.simplefilter("ignore")
torch.set_num_threads(int(sys.argv[2]))
torch.manual_seed(0)
model = torch.nn.TransformerEncoderLayer(64, 2, 128)
state = {**model.state_dict(), "tied": model.linear1.weight, "large": torch.randn(256, 256)}
made = Path(sys.argv[1])
found = []
for _ in range(2):
    save_file(state, made / "a.glft", {"b": "1", "a": "2"}, schemes={"*.weight": "q4_per_group_64", "large": "q8_per_channel"})
    write_gguf_lite(made / "b.glft", model, {"*": "q4_per_group_64"})
    metadata = {"general.architecture": "toy", "t.b": 1, "t.a": ["x", "y"]}
    save_file(state, made / "c.gguf", metadata, schemes={"*": "q4_0", "large": "q8_0", "*.bias": "bf16"})
    convert(made / "c.gguf", made / "d.safetensors", metadata={"t.c": True})
    convert(made / "d.safetensors", made / "e.gguf", schemes={"*": "q5_1"}, metadata={"t.d": "z"})
    convert(made / "c.gguf", made / "f.glft", schemes={"*": "q8_per_channel"}, allow_requantize=True)
    with glft_schema.open(made / "c.gguf") as file:
        parts = split(file, made / "part", max_tensors=4)
    with glft_schema.open(parts[0]) as file:
        merge(file, made / "g.gguf")
    found.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(made.iterdir())})
    for path in made.iterdir():
        path.unlink()
assert found[0] == found[1]
print(json.dumps([found[0], "torch._dynamo" in sys.modules]))
"""


@pytest.mark.long
def test_same_input_same_bytes(tmp_path: Path) -> None:
    """Twice in one process, and for any hash seed and number of threads.

    A new interpreter does not import the compiler of torch.
    """
    environment = {**os.environ, "PYTHONHASHSEED": "2"}
    command = [sys.executable, "-c", EVERY_WAY, tmp_path, "2"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found, imports_the_compiler = json.loads(done.stdout)
    assert not imports_the_compiler
    assert found == json.loads(forked.run("-c", EVERY_WAY, tmp_path, 1).stdout)[0]
    assert len(found) == 11


def test_saving_over_the_file_that_the_tensors_are_mapped_from(path: Path) -> None:
    save_file({"w": torch.arange(100_000).float()}, path)
    loaded = load_file(path)
    save_file({"first": torch.ones(7), **loaded}, path)
    assert torch.equal(load_file(path)["w"], torch.arange(100_000).float())
    assert torch.equal(loaded["w"], torch.arange(100_000).float())


MEMORY = """
import resource, sys, warnings, torch
from glft_schema import save_file
from glft_schema.tensors.stored_tensor import StoredTensor
warnings.simplefilter("ignore")
source, scheme = getattr(torch, sys.argv[2]), sys.argv[3]
def make(shape):
    made = torch.ones(shape, dtype=source)
    made[:1] = 0
    return made
stored = lambda shape: StoredTensor(shape, source, lambda: make(shape))
save_file({"w": stored((64, 64))}, sys.argv[1], schemes={"*": scheme})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
save_file({f"{i}": stored((2048, 4096)) for i in range(6)}, sys.argv[1], schemes={"*": scheme})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.linux("measures a process's memory in KiB")
@pytest.mark.parametrize(
    ("dtype", "scheme"),
    [
        ("float32", Q4),
        *(pytest.param(*pair, marks=pytest.mark.full) for pair in (("float32", "f32"), ("bfloat16", "f16"), ("float64", Q8))),
    ],
)
def test_peak_memory_is_two_tensors_and_a_constant(path: Path, dtype: str, scheme: str) -> None:
    """Six lazy tensors of 2^23 weights, 32 MiB as float32, each with a row of zeros."""
    done = forked.run("-c", MEMORY, path, dtype, scheme)
    largest = 32 << 10 if dtype != "float64" else 64 << 10
    assert int(done.stdout) < 2 * largest + (24 << 10)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("w.ggfu", "; did you mean '.gguf'?"),
        ("w.pt", ""),
        ("w", "; convert writes a Hugging Face folder to {}/"),
    ],
)
def test_an_ending_of_no_format_is_refused(name: str, hint: str, tmp_path: Path) -> None:
    """Unless the format is given."""
    path = tmp_path / name
    text = f"output file that ends in .glft, .gguf-lite, .gguf, .safetensors, found {str(path)!r}{hint.format(path)}"
    with pytest.raises(OptionError, match=f"{re.escape(text)}$"):
        save_file({"w": torch.ones(2)}, path)
    assert not path.exists()
    save_file({"w": torch.ones(2)}, path, format="gguf")
    assert path.read_bytes()[:4] == b"GGUF"


def test_the_error_of_chunks_that_several_threads_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest one, in whatever order the chunks are done."""
    monkeypatch.setattr(chunks, "CHUNK", 1 << 10)
    monkeypatch.setattr(chunks, "LEAST_CHUNK", 1 << 10)
    weights, before = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0)), torch.get_num_threads()
    expected = float(np.abs(GGML_TYPES["Q8_0"].round_trip(weights, "w") - weights.numpy()).max())
    torch.set_num_threads(4)
    try:
        saved = [save_file({"w": weights}, tmp_path / "w.gguf", schemes={"*": "q8_0"}, measure=True)[0] for _ in range(50)]
    finally:
        torch.set_num_threads(before)
    assert {tensor.error for tensor in saved} == {expected}


def test_widened_types_are_noted(path: Path) -> None:
    names = ("float32", "float16", "bfloat16", "float8_e5m2")
    written = save_file({name: torch.ones(2).to(getattr(torch, name)) for name in names}, path)
    widened = [f"{name} widened to F32 (lossless)" for name in names[2:]]
    assert [(str(tensor.type), tensor.note) for tensor in written] == [
        ("F32", ""),
        ("F16", ""),
        *(("F32", note) for note in widened),
    ]


def aliases(written: list[WrittenTensor]) -> dict[str, str]:
    return {tensor.name: tensor.alias_of for tensor in written if tensor.alias_of}


BASE, ARRAY = torch.randn(4, 64), np.random.default_rng(0).standard_normal((4, 64), np.float32)
FIXED, BIG = ARRAY.view(), ARRAY.astype(">f4")
FIXED.flags.writeable = False


@pytest.mark.parametrize(
    ("tied", "expected"),
    [
        ({"tied": BASE, "view": BASE[:], "part": BASE[:2], "turned": BASE.t(), "none": BASE[:0]}, {"tied": "a", "view": "a"}),
        (
            {
                "view": ARRAY[:],
                "fixed": FIXED,
                "part": ARRAY[:2],
                "turned": ARRAY.T,
                "big": BIG,
                "big too": BIG,
                "none": ARRAY[:0],
            },
            {"view": "a", "fixed": "a", "big too": "big"},
        ),
    ],
)
def test_tied_tensors_are_stored_once(tied: dict[str, Any], expected: dict[str, str], path: Path) -> None:
    written = save_file({"a": BASE if "tied" in tied else ARRAY, **tied, "none too": tied["none"]}, path)
    assert aliases(written) == expected
    assert {tensor.nbytes for tensor in written if tensor.alias_of} == {0}
    loaded = load_file(path)
    assert loaded["a"] is loaded["view"]


def test_tied_tensors_of_different_types_in_gguf(tmp_path: Path) -> None:
    """GGUF tensors never share a payload. Only tied tensors of different types cause a warning."""
    module = torch.nn.ModuleDict({"embed": torch.nn.Embedding(20, 256), "head": torch.nn.Linear(256, 20, bias=False)})
    module["head"].weight = module["embed"].weight
    state, path = module.state_dict(), tmp_path / "two.gguf"
    with pytest.warns(TiedWarning, match="tensor 'head.weight' is tied to 'embed.weight', which has a different type"):
        assert not aliases(save_file(state, path, schemes={"embed.weight": "q8_0", "head.weight": "q4_k"}))
    with pytest.raises(OptionError, match=re.escape("with which it is tied; names={'head.weight': None} leaves it out")):
        load_into(module, path, packed=True)
    load_into(module, path, packed=True, names={"head.weight": None})
    assert module["head"].weight_type.name == "Q8_0"
    save_file(state, tmp_path / "one.gguf")


def test_the_labs_two_functions(path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8, affine=False))
    write_gguf_lite(path, model, {"0.weight": Q4}, exclude=["*.num_batches_tracked"])
    weights = read_gguf_lite(path)
    assert list(weights) == ["0.weight", "0.bias", "1.running_mean", "1.running_var"]
    assert torch.equal(weights["0.weight"], fake_quantize(model[0].weight, Q4))


@pytest.mark.parametrize(("count", "prefix"), [(1, ""), (16, "nnn")])
@pytest.mark.parametrize("alignment", [1, 16, 1024])
def test_alignment_after_a_text(path: Path, alignment: int, count: int, prefix: str) -> None:
    """The text is padded, so a file without gaps follows the rules."""
    tensors = {f"{prefix}{i}": torch.tensor([i], dtype=torch.int8) for i in range(count)}
    again = path.with_name("again")
    save_file(tensors, path, format="safetensors", alignment=alignment, rules=[] if count > 1 else None)
    convert(path, again, format="safetensors", alignment=2 * alignment, rules=[])
    for written, step in ((path, alignment), (again, 2 * alignment)):
        with Container.parse_file(written) as file:
            assert {tensor.position % step for tensor in file.tensors.values()} == {0}
            assert [file.tensors[name].raw[0] for name in tensors] == [*range(count)]


def test_exact_names_may_look_like_patterns(path: Path) -> None:
    tensors = {"a[0]": torch.ones(1, 64), "a0": torch.ones(1, 64), "ids": torch.arange(2), "extra": object()}
    save_file(tensors, path, schemes={"a[0]": Q8}, exclude=["ids", "ext*"])
    assert types(path) == {"a[0]": Q8, "a0": "f32"}
    save_file(tensors, path, exclude=["a[0]", "ids", "extra"])
    assert types(path) == {"a0": "f32"}
    save_file({"a0": tensors["a0"], "ids": tensors["ids"]}, path, exclude="ids")
    assert types(path) == {"a0": "f32"}


def test_tensors_of_an_open_file_are_copied(tmp_path: Path) -> None:
    path, out, new = tmp_path / "model.gguf", tmp_path / "out.gguf", torch.arange(64.0)
    tensors = {"blk.0.w": torch.randn(8, 64), "blk.1.w": torch.randn(8, 64), "norm": torch.ones(64)}
    save_file(tensors, path, {"toy.n": 1}, schemes={"*": "q4_1"})
    with Container.parse_file(path) as file:
        save_file({**file.tensors, "norm": new}, out, file.metadata)
        expected = bytearray(path.read_bytes())
        start = file.tensors["norm"].position
        expected[start : start + 256] = new.numpy().tobytes()
        assert out.read_bytes() == expected
        save_file({"other": file.tensors["blk.0.w"], "blk.1.w": tensors["blk.1.w"]}, out, schemes={"blk.1.w": "q8_0"})
    assert types(out) == {"other": "q4_1", "blk.1.w": "q8_0"}


def test_a_payload_is_not_copied_for_thousands_of_names(tmp_path: Path) -> None:
    """A GLFT file can share it; the others would be much larger than the source."""
    tied = dict.fromkeys(map(str, range(2000)), np.zeros(1 << 20, np.float32))
    small, out = tmp_path / "shared.glft", tmp_path / "out.gguf"
    glft_schema.numpy.save_file(tied, small)
    problem = r"^tensors: expected at most 16 times their stored bytes \(a limit .*\), found 1600 \(limit repeats\)$"
    for write in (
        lambda: convert(small, out),
        lambda: convert(small, out.with_suffix(".safetensors")),
        lambda: glft_schema.numpy.save_file(tied, out),
    ):
        with pytest.raises(LimitError, match=problem):
            write()
    glft_schema.numpy.save_file(tied, out, rules=())
    with pytest.raises(LimitError, match=r"found \d+ \(limit repeats\)$"):
        glft_schema.split(out, tmp_path / "part", max_tensors=1500)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf", "shared.glft"]
    convert(small, tmp_path / "again.glft")
    assert (tmp_path / "again.glft").stat().st_size == small.stat().st_size < 5_000_000


@pytest.mark.parametrize("scheme", ["q8_0", "q4_k", "iq4_nl"])
def test_a_weight_that_cannot_be_stored_has_an_index(scheme: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the whole tensor, whatever the parts in which it is read and encoded."""
    monkeypatch.setattr(chunks, "CHUNK", 512)
    monkeypatch.setattr(payloads, "PART", 4096)
    weights = torch.randn(40, 256)
    weights[33, 7] = torch.nan
    with pytest.raises(TensorError, match=r"tensor 'w' at \[33, 7\]: NaN and infinities cannot be quantized"):
        save_file({"w": weights}, path, format="gguf", schemes={"w": scheme})
