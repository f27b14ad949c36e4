"""Conversion between all formats: copied payloads, converted values, and metadata."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

import glft_schema
from glft_schema import FormatError, LimitError, Limits, SchemeError, Typed, convert, load_file, save_file
from glft_schema.errors import OptionError
from glft_schema.files.splitting import split
from glft_schema.formats.safetensors import TYPES as SAFETENSORS_TYPES
from glft_schema.lab import fake_quantize
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.weights.checkpoints import open_with_metadata
from tests.catalogue.gguf_cases import READ
from tests.tools.command_line import in_this_process

TENSORS = {
    "a.weight": torch.randn(4, 128),
    "b.weight": torch.randn(2, 2, 64),
    "h": torch.randn(3, 5).half(),
    "norm": torch.randn(64),
    "s": torch.tensor(1.5),
    "empty": torch.zeros(0, 4),
}
METADATA = {
    "general.architecture": "toy",
    "t.tokens": ["a", "ü", 'quote " and\nnewline', ""],
    "t.none": Typed([], "array[string]"),
    "t.u8": Typed(7, "uint8"),
    "t.big": Typed(2**63, "uint64"),
    "t.nested": [[1, 2], ["x"]],
    "t.f": [0.1, float("inf"), float("-inf"), float("nan")],
    "t.d": Typed(0.1, "float64"),
    "t.nan": np.frombuffer(bytes.fromhex("0100a07f"), "<f4")[0],
    "t.flag": True,
}
SUFFIXES = (".gguf", ".glft", ".safetensors")


def metadata_of(path: Path) -> object:
    return open_with_metadata(path)[1]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.gguf"
    save_file(TENSORS, path, METADATA, schemes={"*.weight": "q4_0"}, format="gguf", rules=())
    return path


@pytest.mark.parametrize(("middle", "last"), list(itertools.product(SUFFIXES, SUFFIXES)))
def test_there_and_back(source: Path, tmp_path: Path, middle: str, last: str) -> None:
    """Values survive every path of conversion, metadata bit for bit."""
    steps = [source, tmp_path / f"middle{middle}", tmp_path / f"last{last}", tmp_path / "end.gguf"]
    for before, after in itertools.pairwise(steps):
        written = convert(before, after)
        assert {tensor.name for tensor in written} == set(TENSORS)
        assert all(tensor.error == 0 for tensor in written)
    expected = load_file(source)
    found = load_file(steps[-1])
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    with glft_schema.open(source) as one, glft_schema.open(steps[-1]) as other:
        assert list(other.metadata) == list(METADATA)
        for key in METADATA:
            assert one.metadata.type_of(key) == other.metadata.type_of(key)
        assert other.source.view(24, 400) == one.source.view(24, 400)  # the first key-values
        types = {row.name: row.dtype.name for row in other.tensor_infos}
        kept = middle == last == ".gguf"
        assert types["a.weight"] == ("Q4_0" if kept else "F32")
        assert {row.name for row in one.tensor_infos} == set(types)


def test_payloads_are_copied_where_the_type_is_there(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    for header in (None, {"byte_order": "big"}, {"version": 2}):
        written = convert(source, out, header=header)
        assert all(tensor.copied and tensor.error == 0 and not tensor.note for tensor in written)
        with glft_schema.open(source) as one, glft_schema.open(out) as other:
            for name, tensor in one.tensors.items():
                assert torch.equal(other.tensors[name].dequantize(), tensor.dequantize())
    convert(source, out)
    assert out.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_torch_file_gives_the_file_of_its_tensors(suffix: str, zipped: bool, tmp_path: Path) -> None:
    """Also of those with strides, and of dtypes that numpy lacks."""
    base = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    tensors = {
        "transposed": base.T,
        "strided": base[::2, ::3],
        "bf16": base[:4, :64].bfloat16(),
        "f8": base[0].to(torch.float8_e5m2),
        "f64": base[1].double(),
        "imaginary": torch.complex(base[2], base[2]).conj().imag,
        "s": torch.tensor(1.5).half(),
        "empty": torch.zeros(0, 4),
    } | ({} if suffix == ".glft" else {"i": torch.arange(6).view(2, 3).T})
    torch.save(tensors, tmp_path / "model.pt", _use_new_zipfile_serialization=zipped)
    schemes = {"f64": "f32"} | ({"transposed": "q8_0"} if suffix == ".gguf" else {})
    convert(tmp_path / "model.pt", tmp_path / f"out{suffix}", schemes=schemes, rules=[])
    metadata = {"format": "pt"} if suffix == ".safetensors" else None
    save_file(tensors, tmp_path / f"expected{suffix}", metadata, schemes=schemes, rules=[])
    assert (tmp_path / f"out{suffix}").read_bytes() == (tmp_path / f"expected{suffix}").read_bytes()
    numbers = load_file(tmp_path / f"out{suffix}")
    for name in ("strided", "f8", "imaginary", "s"):
        assert torch.equal(numbers[name].float(), tensors[name].float())


def test_types_that_are_asked_for_are_computed(source: Path, tmp_path: Path) -> None:
    schemes = {"*": "q8_0", "b.weight": "q4_0"}
    again = convert(source, tmp_path / "out.gguf", schemes=schemes, allow_requantize=True)
    written = {tensor.name: tensor for tensor in again}
    numbers = load_file(source)
    expected = torch.from_numpy(GGML_TYPES["Q8_0"].round_trip(numbers["a.weight"], "w"))
    assert torch.equal(load_file(tmp_path / "out.gguf")["a.weight"], expected)
    assert written["a.weight"].error == float((expected - numbers["a.weight"]).abs().max()) > 0
    assert not written["a.weight"].copied
    assert (written["b.weight"].copied, written["norm"].copied) == (True, True)
    assert written["h"].note == "not q8_0: expected a row length that is a multiple of 32, found 5"


def test_types_that_are_not_there_are_dequantized(source: Path, tmp_path: Path) -> None:
    for suffix in (".glft", ".safetensors"):
        written = {tensor.name: tensor for tensor in convert(source, tmp_path / f"out{suffix}")}
        assert written["a.weight"].note == "Q4_0 dequantized"
        assert (written["a.weight"].type.name, written["a.weight"].copied, written["a.weight"].error) == ("F32", False, 0)
        assert written["h"].copied
    numbers = load_file(source)["a.weight"]
    convert(source, tmp_path / "out.glft", schemes={"*.weight": "q8_per_channel"}, allow_requantize=True)
    assert torch.equal(load_file(tmp_path / "out.glft")["a.weight"], fake_quantize(numbers, "q8_per_channel"))
    convert(source, tmp_path / "out.safetensors", schemes={"*.weight": "bf16"})
    assert torch.equal(safetensors.torch.load_file(tmp_path / "out.safetensors")["a.weight"], numbers.bfloat16())


def test_safetensors_files_are_what_the_library_reads(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.safetensors"
    convert(source, path, metadata={"note": "added"})
    loaded = safetensors.torch.load_file(path)
    numbers = load_file(source)
    assert set(loaded) == set(numbers)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in numbers.items())
    with safetensors.safe_open(path, "pt") as opened:
        metadata = opened.metadata()
    assert metadata["glft_schema.metadata"] == "typed"
    assert metadata["t.u8"] == "uint8 7"
    assert metadata["t.nan"] == 'float32 "0x7fa00001"'
    assert metadata["t.nested"] == 'array[array[int32],array[string]] [[1, 2], ["x"]]'
    assert metadata["note"] == 'string "added"'
    plain = {"a": torch.ones(3), "b": torch.arange(4), "c": torch.ones(2).half(), "d": torch.tensor([True])}
    safetensors.torch.save_file(plain, tmp_path / "in.safetensors", {"k": "v"})
    written = convert(tmp_path / "in.safetensors", path, metadata={"k2": "v2"})
    assert [(tensor.name, tensor.type.name) for tensor in written] == [("b", "I64"), ("a", "F32"), ("c", "F16"), ("d", "BOOL")]
    assert path.read_bytes()[:8] == (len(path.read_bytes()) - 12 - 32 - 4 - 1 - 8).to_bytes(8, "little")
    assert metadata_of(path) == {"format": "pt", "k": "v", "k2": "v2"}
    save_file({"__metadata__": torch.ones(1)}, tmp_path / "x.gguf", format="gguf")
    with pytest.raises(FormatError, match="name: expected each name once, and none that is reserved, found '__metadata__'"):
        convert(tmp_path / "x.gguf", path)


def test_safetensors_files_are_copied(tmp_path: Path) -> None:
    names = [type_.exact for type_ in SAFETENSORS_TYPES if hasattr(torch, type_.exact)]
    bits = torch.arange(48, dtype=torch.uint8)
    tensors = {name: bits.clone().view(getattr(torch, name)) if name != "bool" else bits > 3 for name in names}
    safetensors.torch.save_file(tensors, tmp_path / "in.safetensors")
    written = convert(tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    assert all(tensor.copied and tensor.error == 0 and not tensor.note for tensor in written)
    loaded = safetensors.torch.load_file(tmp_path / "out.safetensors")
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name].view(torch.uint8), tensor.view(torch.uint8))
    with pytest.raises(SchemeError, match="expected a type with an encoder, found 'u8', which can only be read"):
        convert(tmp_path / "in.safetensors", tmp_path / "out.safetensors", schemes={"*": "u8"})


def test_what_is_added_keeps_to_the_rules(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "clean.gguf", metadata={"t.nested": Typed([1], "array[uint8]")}, rules=["spec", "ggml"])
    for added, message in (({"Bad key": 1}, "gguf-key"), ({"n": [[1], [2]]}, "gguf-nested-array")):
        with pytest.raises(FormatError) as caught:
            convert(tmp_path / "clean.gguf", tmp_path / "out.gguf", metadata=added)
        assert caught.value.rule == message
        convert(source, tmp_path / "out.gguf", metadata=added)  # the source breaks the rules itself


def test_text_becomes_strings_and_stays(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "in.glft", {"arch": "toy", "note": "x=y"})
    convert(tmp_path / "in.glft", tmp_path / "out.gguf", metadata={"n": Typed(3, "uint8")})
    assert metadata_of(tmp_path / "out.gguf") == {"arch": "toy", "note": "x=y", "n": 3}
    convert(tmp_path / "in.glft", tmp_path / "out.safetensors")
    assert metadata_of(tmp_path / "out.safetensors") == {"format": "pt", "arch": "toy", "note": "x=y"}
    torch.save({"a": torch.ones(1)}, tmp_path / "in.pt")
    convert(tmp_path / "in.pt", tmp_path / "out.glft", metadata={"k": "v"})
    assert metadata_of(tmp_path / "out.glft") == {"k": "v"}
    assert metadata_of(tmp_path / "in.pt") == {}


def test_a_text_for_a_number_is_read_as_its_type(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out.gguf", metadata={"t.u8": "9", "t.flag": "false", "general.architecture": "10"})
    changed = metadata_of(tmp_path / "out.gguf")
    assert (changed["t.u8"], changed["t.flag"], changed["general.architecture"]) == (9, False, "10")
    with pytest.raises(FormatError, match=r"""^metadata -> t.u8: expected a uint8, found '"x"'$"""):
        convert(source, tmp_path / "out.gguf", metadata={"t.u8": '"x"'})


def test_from_a_set_of_files(source: Path, tmp_path: Path) -> None:
    with glft_schema.open(source) as file:
        first, *_ = split(file, tmp_path / "part", max_tensors=2)
    for steps in ([tmp_path / "out.gguf"], [tmp_path / "out.glft", tmp_path / "out.gguf"]):
        for before, after in itertools.pairwise([Path(first), *steps]):
            convert(before, after)
        with glft_schema.open(source) as one, glft_schema.open(tmp_path / "out.gguf") as other:
            assert list(one.metadata) == list(other.metadata)
            assert all(torch.equal(other.tensors[name].dequantize(), one.tensors[name].dequantize()) for name in TENSORS)


def test_what_safetensors_cannot_hold_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    (tmp_path / "in.gguf").write_bytes(READ["a name that is not UTF-8"].stored)
    with pytest.raises(FormatError, match="tensor_infos -> 0 -> name: expected text that can be encoded as UTF-8, found"):
        convert(tmp_path / "in.gguf", out)
    save_file({}, tmp_path / "in.glft", {"k": "v"})
    for value in (3, Typed(3, "uint8"), "\udcff"):
        with pytest.raises(FormatError, match=r"^metadata: expected text"):
            convert(tmp_path / "in.glft", out, metadata={"n": value})
    with Limits(metadata=20), pytest.raises(LimitError, match="expected at most 20 bytes"):
        convert(tmp_path / "in.glft", out)
    assert not out.exists()


def test_the_mark_of_typed_text_is_no_key(tmp_path: Path) -> None:
    save_file({}, tmp_path / "in.gguf", {"glft_schema.metadata": "typed", "x": Typed(5, "uint8")})
    with pytest.raises(FormatError, match=r"expected no key glft_schema.metadata, which is reserved for typed metadata"):
        convert(tmp_path / "in.gguf", tmp_path / "out.glft")


def test_tied_tensors_stay_so_between_gguf_files(tmp_path: Path) -> None:
    (tmp_path / "in.gguf").write_bytes(READ["one payload for two tensors"].stored)
    written = convert(tmp_path / "in.gguf", tmp_path / "out.gguf")
    assert [tensor.alias_of for tensor in written] == [None, "w"]
    assert (tmp_path / "out.gguf").read_bytes() == READ["one payload for two tensors"].stored
    written = convert(tmp_path / "in.gguf", tmp_path / "out.gguf", rules="ggml")
    assert [tensor.alias_of for tensor in written] == [None, None]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *(
            (text, f"expected a type and its value, such as uint32 5, found {text!r}")
            for text in ("no value", "uint8", "uint8 x")
        ),
        ("uint8 256", "expected a number in the range of u8, found 256"),
        ('float32 "0x12"', "expected a float32, a number or its bits in hex, found '0x12'"),
        ("array[int8] 3", "expected a list, found 3"),
        ('float32 "zz"', "expected a float32, a number or its bits in hex, found 'zz'"),
        ('float32 "0x7fa000017fa00001"', "expected a float32, a number or its bits in hex, found '0x7fa000017fa00001'"),
    ],
)
def test_marked_text_that_is_none(tmp_path: Path, text: str, problem: str) -> None:
    save_file({}, tmp_path / "in.glft", {"glft_schema.metadata": "typed", "k": text})
    with pytest.raises(FormatError, match=f"metadata -> k: {re.escape(problem)}$"):
        convert(tmp_path / "in.glft", tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_keys_that_a_format_cannot_hold_are_refused(tmp_path: Path) -> None:
    save_file({}, tmp_path / "in.gguf", {"a=b": 1}, format="gguf", rules=())
    with pytest.raises(FormatError, match="metadata: expected a non-empty key without '=' or newline"):
        convert(tmp_path / "in.gguf", tmp_path / "out.glft")
    save_file({}, tmp_path / "in.glft", {"Key": "v"})
    with pytest.raises(FormatError, match="expected lower_snake_case segments joined by dots, found 'Key'"):
        convert(tmp_path / "in.glft", tmp_path / "out.gguf")
    convert(tmp_path / "in.glft", tmp_path / "out.gguf", rules=["ggml"])


def test_formats_by_name_and_by_ending(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "in.glft")
    convert(tmp_path / "in.glft", tmp_path / "out.bin", format="GGUF")
    assert (tmp_path / "out.bin").read_bytes()[:4] == b"GGUF"
    for format, message in (
        (None, "expected a format, or an output file that ends in .*found '.*out.bin'"),
        ("onnx", "found 'onnx'"),
    ):
        with pytest.raises(OptionError, match=message):
            convert(tmp_path / "in.glft", tmp_path / "out.bin", format=format)


def test_an_open_checkpoint_is_converted_without_what_is_excluded(source: Path, tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2), "step": 3}, tmp_path / "in.pt")
    assert [tensor.name for tensor in convert(tmp_path / "in.pt", tmp_path / "out.glft", exclude=["step"])] == ["a"]
    checkpoint = open_with_metadata(source)
    written = convert(checkpoint, tmp_path / "out.gguf", exclude=["*.weight"])
    assert {tensor.name for tensor in written} == {"h", "norm", "s", "empty"}


@pytest.mark.parametrize("ending", ["gguf", "safetensors"])
def test_a_part_of_a_set_is_not_a_model(ending: str, tmp_path: Path) -> None:
    """Every job that needs a whole model names the file that opens it."""
    glft_schema.save_file({"a": torch.ones(2, 32), "b": torch.zeros(3)}, tmp_path / f"m.{ending}")
    with glft_schema.open(tmp_path / f"m.{ending}") as file:
        glft_schema.split(file, tmp_path / "m", max_tensors=1)
    part, whole = {
        "gguf": ("file 2 of 2", "m-00001-of-00002.gguf"),
        "safetensors": ("one of the files of an index", "m.safetensors.index.json"),
    }[ending]
    problem = re.escape(f"expected a whole model, found {part}: open {whole}")
    last = tmp_path / f"m-00002-of-00002.{ending}"
    for work in (
        lambda: convert(last, tmp_path / "out.gguf"),
        lambda: glft_schema.quantize(last, tmp_path / "out.gguf", "Q8_0"),
        lambda: glft_schema.weights.open_checkpoint(last),
    ):
        with pytest.raises(FormatError, match=problem):
            work()
    assert not (tmp_path / "out.gguf").exists()
    assert f", {part} ({whole} opens the whole model)\n" in in_this_process("inspect", last).stdout
    assert json.loads(in_this_process("inspect", last, "--json").stdout)["part_of"] == str(tmp_path / whole)
    assert list(glft_schema.weights.open_checkpoint(tmp_path / whole)) == ["a", "b"]
