"""Conversion between all formats: copied payloads, converted values, and metadata."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

import glft_schema
from glft_schema import FormatError, LimitError, Limits, SchemeError, Typed, convert, load_file, save_file
from glft_schema.errors import OptionError
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


def equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], tensor) for name, tensor in expected.items())


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
        assert all(tensor.error == 0 for tensor in convert(before, after))
    assert equal(load_file(steps[-1]), load_file(source))
    start, end = 24, source.read_bytes().index(b"a.weight") - 8  # of all key-values
    assert steps[-1].read_bytes()[start:end] == source.read_bytes()[start:end]


@pytest.mark.parametrize("header", [None, {"byte_order": "big"}, {"version": 2}])
def test_payloads_are_copied_where_the_type_is_there(source: Path, tmp_path: Path, header: dict[str, Any] | None) -> None:
    out = tmp_path / "out.gguf"
    assert all(tensor.copied and tensor.error == 0 and not tensor.note for tensor in convert(source, out, header=header))
    assert equal(load_file(out), load_file(source))
    assert header or out.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_torch_file_gives_the_file_of_its_tensors(suffix: str, zipped: bool, tmp_path: Path) -> None:
    """Also of those with strides, and of dtypes that numpy lacks."""
    base = torch.randn(64, 96)
    tensors = {
        "transposed": base.T,
        "strided": base[::2, ::3],
        "bf16": base[:4, :64].bfloat16(),
        "f64": base[1].double(),
        "imaginary": torch.complex(base[2], base[2]).conj().imag,
        "scalar": base[0, 0],
        "empty": base[:0],
    }
    torch.save(tensors, tmp_path / "model.pt", _use_new_zipfile_serialization=zipped)
    schemes = {"f64": "f32"} | ({"transposed": "q8_0"} if suffix == ".gguf" else {})
    convert(tmp_path / "model.pt", tmp_path / f"out{suffix}", schemes=schemes, rules=[])
    metadata = {"format": "pt"} if suffix == ".safetensors" else None
    save_file(tensors, tmp_path / f"expected{suffix}", metadata, schemes=schemes, rules=[])
    assert (tmp_path / f"out{suffix}").read_bytes() == (tmp_path / f"expected{suffix}").read_bytes()


def test_types_that_are_asked_for_are_computed(source: Path, tmp_path: Path) -> None:
    schemes = {"*": "q8_0", "b.weight": "q4_0"}
    again = convert(source, tmp_path / "out.gguf", schemes=schemes, allow_requantize=True)
    weights = load_file(source)["a.weight"]
    expected = torch.from_numpy(GGML_TYPES["Q8_0"].round_trip(weights, "w"))
    assert torch.equal(load_file(tmp_path / "out.gguf")["a.weight"], expected)
    assert again[0].error == float((expected - weights).abs().max()) > 0
    assert {tensor.name: tensor.copied for tensor in again} == {name: name not in ("a.weight", "empty") for name in TENSORS}
    assert again[2].note == "not q8_0: expected a row length that is a multiple of 32, found 5"


@pytest.mark.parametrize("suffix", [".glft", ".safetensors"])
def test_types_that_are_not_there_are_dequantized(suffix: str, source: Path, tmp_path: Path) -> None:
    a, *_ = convert(source, tmp_path / f"out{suffix}")
    assert (a.note, a.type.name, a.copied, a.error) == ("Q4_0 dequantized", "F32", False, 0)


def test_dequantized_numbers_are_encoded(source: Path, tmp_path: Path) -> None:
    numbers = load_file(source)["a.weight"]
    convert(source, tmp_path / "out.glft", schemes={"*.weight": "q8_per_channel"}, allow_requantize=True)
    assert torch.equal(load_file(tmp_path / "out.glft")["a.weight"], fake_quantize(numbers, "q8_per_channel"))
    convert(source, tmp_path / "out.safetensors", schemes={"*.weight": "bf16"})
    assert torch.equal(safetensors.torch.load_file(tmp_path / "out.safetensors")["a.weight"], numbers.bfloat16())


def test_safetensors_files_are_what_the_library_reads(source: Path, tmp_path: Path) -> None:
    """With types in the text of metadata."""
    path = tmp_path / "out.safetensors"
    convert(source, path, metadata={"note": "added"})
    assert equal(safetensors.torch.load_file(path), load_file(source))
    with safetensors.safe_open(path, "pt") as opened:
        metadata = opened.metadata()
    expected = {
        "glft_schema.metadata": "typed",
        "t.u8": "uint8 7",
        "t.nan": 'float32 "0x7fa00001"',
        "t.nested": 'array[array[int32],array[string]] [[1, 2], ["x"]]',
        "note": 'string "added"',
    }
    assert expected.items() <= metadata.items()


def test_safetensors_files_are_copied(tmp_path: Path) -> None:
    names = [type_.exact for type_ in SAFETENSORS_TYPES if hasattr(torch, type_.exact)]
    bits = torch.arange(48, dtype=torch.uint8)
    tensors = {name: bits.clone().view(getattr(torch, name)) if name != "bool" else bits > 3 for name in names}
    safetensors.torch.save_file(tensors, tmp_path / "in.safetensors", {"format": "pt"})
    written = convert(tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    assert all(tensor.copied and tensor.error == 0 and not tensor.note for tensor in written)
    assert (tmp_path / "out.safetensors").read_bytes() == (tmp_path / "in.safetensors").read_bytes()
    with pytest.raises(SchemeError, match="expected a type with an encoder, found 'u8', which can only be read"):
        convert(tmp_path / "in.safetensors", tmp_path / "out.safetensors", schemes={"*": "u8"})


@pytest.mark.parametrize(("added", "rule"), [({"Bad key": 1}, "gguf-key"), ({"n": [[1], [2]]}, "gguf-nested-array")])
def test_what_is_added_keeps_to_the_rules_unless_the_source_breaks_them(
    added: dict[str, Any], rule: str, source: Path, tmp_path: Path
) -> None:
    clean, out = tmp_path / "clean.gguf", tmp_path / "out.gguf"
    convert(source, clean, metadata={"t.nested": Typed([1], "array[uint8]")}, rules=["spec", "ggml"])
    with pytest.raises(FormatError) as caught:
        convert(clean, out, metadata=added)
    assert caught.value.rule == rule
    convert(source, out, metadata=added)


def test_text_becomes_strings_and_stays(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "in.glft", {"arch": "toy", "note": "x=y"})
    convert(tmp_path / "in.glft", tmp_path / "out.gguf", metadata={"n": Typed(3, "uint8")})
    assert metadata_of(tmp_path / "out.gguf") == {"arch": "toy", "note": "x=y", "n": 3}
    convert(tmp_path / "in.glft", tmp_path / "out.safetensors")
    assert metadata_of(tmp_path / "out.safetensors") == {"format": "pt", "arch": "toy", "note": "x=y"}


def test_a_torch_file_has_no_metadata(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "in.pt")
    convert(tmp_path / "in.pt", tmp_path / "out.glft", metadata={"k": "v"})
    assert (metadata_of(tmp_path / "in.pt"), metadata_of(tmp_path / "out.glft")) == ({}, {"k": "v"})


def test_a_text_for_a_number_is_read_as_its_type(source: Path, tmp_path: Path) -> None:
    added = {"t.u8": "9", "t.flag": "false", "general.architecture": "10"}
    convert(source, tmp_path / "out.gguf", metadata=added)
    changed = metadata_of(tmp_path / "out.gguf")
    assert [changed[key] for key in added] == [9, False, "10"]
    with pytest.raises(FormatError, match=r"""^metadata -> t.u8: expected a uint8, found '"x"'$"""):
        convert(source, tmp_path / "out.gguf", metadata={"t.u8": '"x"'})


def test_from_a_set_of_files(source: Path, tmp_path: Path) -> None:
    first, *_ = glft_schema.split(source, tmp_path / "part", max_tensors=2)
    convert(first, tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == source.read_bytes()


REFUSED: list[tuple[str, Any, dict[str, Any], str]] = [  # ending of the output, source, added metadata, problem
    (".safetensors", {"k": "v"}, {"n": 3}, "metadata: expected text"),
    (".safetensors", {"k": "v"}, {"n": Typed(3, "uint8")}, "metadata: expected text"),
    (".safetensors", {"k": "v"}, {"n": "\udcff"}, "metadata: expected text"),
    (".gguf", {"Key": "v"}, {}, "metadata -> 0 -> key: expected lower_snake_case segments joined by dots, found 'Key'"),
    *(
        (".gguf", {"glft_schema.metadata": "typed", "k": text}, {}, f"metadata -> k: {problem}")
        for text, problem in (
            *(
                (text, f"expected a type and its value, such as uint32 5, found {text!r}")
                for text in ("no value", "uint8", "uint8 x")
            ),
            ("uint8 256", "expected an integer in the range of u8, found 256"),
            ("array[int8] 3", "expected a list, found 3"),
            *(
                (f'float32 "{bits}"', f"expected a float32, a number or its bits in hex, found '{bits}'")
                for bits in ("0x12", "zz", "0x7fa000017fa00001")
            ),
        )
    ),
]


@pytest.mark.parametrize(("ending", "metadata", "added", "problem"), REFUSED)
def test_metadata_that_a_format_cannot_hold(
    ending: str, metadata: dict[str, str], added: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    save_file({}, tmp_path / "in.glft", metadata)
    with pytest.raises(FormatError, match=f"^{re.escape(problem)}"):
        convert(tmp_path / "in.glft", tmp_path / f"out{ending}", metadata=added)
    assert not (tmp_path / f"out{ending}").exists()


@pytest.mark.parametrize(
    ("key", "name", "ending", "problem"),
    [
        ("a=b", "w", ".glft", "metadata: expected a non-empty key without '=' or newline"),
        ("glft_schema.metadata", "w", ".glft", "expected no key glft_schema.metadata, which is reserved for typed metadata"),
        ("k", "__metadata__", ".safetensors",
         "name: expected each name once, and none that is reserved, found '__metadata__'"),
    ],
)  # fmt: skip
def test_names_that_a_format_cannot_hold(key: str, name: str, ending: str, problem: str, tmp_path: Path) -> None:
    save_file({name: torch.ones(1)}, tmp_path / "in.gguf", {key: "typed"}, rules=())
    with pytest.raises(FormatError, match=problem):
        convert(tmp_path / "in.gguf", tmp_path / f"out{ending}")


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "in.gguf").write_bytes(READ["a name that is not UTF-8"].stored)
    with pytest.raises(FormatError, match="tensor_infos -> 0 -> name: expected text that can be encoded as UTF-8, found"):
        convert(tmp_path / "in.gguf", tmp_path / "out.safetensors")


def test_a_limit_of_the_metadata_that_is_written(tmp_path: Path) -> None:
    save_file({}, tmp_path / "in.glft", {"k": "v"})
    with Limits(metadata=20), pytest.raises(LimitError, match="expected at most 20 bytes"):
        convert(tmp_path / "in.glft", tmp_path / "out.safetensors")


def test_tied_tensors_stay_so_between_gguf_files(tmp_path: Path) -> None:
    """Unless a rule forbids it."""
    (tmp_path / "in.gguf").write_bytes(stored := READ["one payload for two tensors"].stored)
    assert [tensor.alias_of for tensor in convert(tmp_path / "in.gguf", tmp_path / "out.gguf")] == [None, "w"]
    assert (tmp_path / "out.gguf").read_bytes() == stored
    apart = convert(tmp_path / "in.gguf", tmp_path / "out.gguf", rules="ggml")
    assert [tensor.alias_of for tensor in apart] == [None, None]


def test_formats_by_name(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "in.glft")
    convert(tmp_path / "in.glft", tmp_path / "out.bin", format="GGUF")
    assert (tmp_path / "out.bin").read_bytes()[:4] == b"GGUF"
    with pytest.raises(OptionError, match="found 'onnx'"):
        convert(tmp_path / "in.glft", tmp_path / "out.bin", format="onnx")


def test_an_open_checkpoint_is_converted_without_what_is_excluded(source: Path, tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2), "step": 3}, tmp_path / "in.pt")
    assert [tensor.name for tensor in convert(tmp_path / "in.pt", tmp_path / "out.glft", exclude=["step"])] == ["a"]
    written = convert(open_with_metadata(source), tmp_path / "out.gguf", exclude=["*.weight"])
    assert [tensor.name for tensor in written] == ["h", "norm", "s", "empty"]


@pytest.mark.parametrize(
    ("ending", "part", "whole"),
    [
        ("gguf", "file 2 of 2", "m-00001-of-00002.gguf"),
        ("safetensors", "one of the files of an index", "m.safetensors.index.json"),
    ],
)
def test_a_part_of_a_set_is_not_a_model(ending: str, part: str, whole: str, tmp_path: Path) -> None:
    """Every job that needs a whole model names the file that opens it."""
    save_file({"a": torch.ones(2, 32), "b": torch.zeros(3)}, tmp_path / f"m.{ending}")
    glft_schema.split(tmp_path / f"m.{ending}", tmp_path / "m", max_tensors=1)
    last, out = tmp_path / f"m-00002-of-00002.{ending}", tmp_path / "out.gguf"
    for work in (lambda: convert(last, out), lambda: glft_schema.quantize(last, out, "Q8_0")):
        with pytest.raises(FormatError, match=re.escape(f"expected a whole model, found {part}: open {whole}")):
            work()
    assert f", {part} ({whole} opens the whole model)\n" in in_this_process("inspect", last).stdout
    assert json.loads(in_this_process("inspect", last, "--json").stdout)["part_of"] == str(tmp_path / whole)
