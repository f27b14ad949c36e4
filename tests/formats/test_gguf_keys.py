"""Well-known GGUF keys: gguf-py's types for them, conversion to these types, and findings."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import glft_schema
from glft_schema import Container, FormatError, Typed, convert, save_file
from glft_schema.files.parsing import check_rules
from glft_schema.formats.gguf_keys import ARCH, ROWS, TYPES, suits, type_of_key
from tests.oracles.peers import gguf
from tests.tools.command_line import in_this_process as glft
from tests.tools.llama_cpp_facts import UNTYPED, written_by, wrong_types


def test_types_are_those_that_gguf_py_writes() -> None:
    written = written_by(gguf)
    assert len(written) > 240
    assert list(wrong_types(written)) == []
    assert all(type_of_key(key) is None for key in UNTYPED)


def test_rows_list_each_key_once() -> None:
    counts = Counter(f"{prefix}.{name}" for prefix, _, names in ROWS for name in names.split())
    assert [key for key, count in counts.items() if count > 1] == []


def test_types_of_keys() -> None:
    types = {
        "general.datasets": "array[string]",
        "general.dataset.12.name": "string",
        "general.dataset.count": "uint32",
        "tokenizer.chat_template.tool_use": "string",
        "nomic-bert.block_count": "uint32",
        "llama.rope.scale_linear": "float32",
        **dict.fromkeys(("tokenizer.block_count", "general.block_count", "block_count", "")),
    }
    assert {key: type_of_key(key) for key in types} == types


def metadata_of(path: Path) -> list[str]:
    with glft_schema.open(path) as file:
        return [f"{key}: {file.metadata.type_of(key)} = {value!r}" for key, value in file.metadata.items()]


GIVEN = {  # text on the command line, and the stored type and value
    "general.architecture=10": "string = '10'",
    "general.quantization_version=2": "uint32 = 2",
    "general.sampling.top_k=40": "int32 = 40",
    'general.tags=["a", "b"]': "array[string] = ['a', 'b']",
    "tokenizer.ggml.add_bos_token=true": "bool = True",
    "toy.attention.layer_norm_epsilon=1": "float32 = 1.0",
    "toy.note=3": "string = '3'",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    safetensors.torch.save_file({"w": torch.ones(4, 32)}, tmp_path / "in.safetensors")
    return tmp_path / "in.safetensors"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.gguf"


def test_text_on_the_command_line_takes_the_type_of_its_key(source: Path, out: Path) -> None:
    options = [option for given in GIVEN for option in ("--metadata", given)]
    done = glft("convert", source, out, *options, "--scheme", "q8_0")
    assert (done.returncode, done.stderr) == (0, "")
    assert metadata_of(out) == [f"{given.partition('=')[0]}: {stored}" for given, stored in GIVEN.items()]
    assert glft("verify", out, "--rules", "spec").returncode == 0


REFUSED = {
    "general.quantization_version=two": "a uint32",
    "general.quantization_version=-1": "a uint32",
    "general.quantization_version=2.5": "a uint32",
    "general.sampling.top_k=": "an int32",
    "tokenizer.ggml.add_bos_token=yes": "a bool",
    "toy.rope.freq_base=1e99": "a float32",
    "general.tags=a]": "an array[string]",
}


@pytest.mark.parametrize("given", REFUSED)
def test_text_of_another_kind_is_refused(source: Path, out: Path, given: str) -> None:
    done, (key, _, text) = glft("convert", source, out, "--metadata", given), given.partition("=")
    problem = f"glft: {out}: metadata -> {key}: expected {REFUSED[given]}, found {text!r}\n"
    assert (done.returncode, done.stderr, out.exists()) == (2, problem, False)


def test_a_given_type_is_kept_and_refused_by_the_rule(source: Path, out: Path, tmp_path: Path) -> None:
    wrong = ("convert", source, out, "--metadata", 'general.quantization_version:string="2"')
    problem = "metadata -> 0 -> type: expected an integer for general.quantization_version, found string"
    refused = glft(*wrong)
    assert (refused.returncode, refused.stderr) == (2, f"glft: {out}: {problem} [gguf-key-type]\n")
    assert glft(*wrong, "--rules", "ggml").returncode == 0
    assert metadata_of(out) == ["general.quantization_version: string = '2'"]
    assert "gguf-key-type" in glft("verify", out).stdout
    assert glft("convert", out, tmp_path / "mended.gguf", "--metadata", "general.quantization_version=2").returncode == 0
    assert metadata_of(tmp_path / "mended.gguf") == ["general.quantization_version: uint32 = 2"]


def test_plain_values_take_the_type_of_their_key(out: Path, tmp_path: Path) -> None:
    plain = {"toy.rope.freq_base": 10000, "general.sampling.top_k": 40, "general.tags": [], "tokenizer.ggml.scores": [1, 2]}
    plain |= {"toy.attention.head_count": [8, 4], "toy.context_length": 1 << 40, "general.quantization_version": "2"}
    plain |= {"x.rope.freq_base": [1, 2], "x.block_count": "[3]", "x.vocab_size": []}  # one per layer
    save_file({}, out, plain)
    stored = """toy.rope.freq_base: float32 = 10000.0
general.sampling.top_k: int32 = 40
general.tags: array[string] = []
tokenizer.ggml.scores: array[float32] = [1.0, 2.0]
toy.attention.head_count: array[int32] = [8, 4]
toy.context_length: uint64 = 1099511627776
general.quantization_version: uint32 = 2
x.rope.freq_base: array[float32] = [1.0, 2.0]
x.block_count: array[int32] = [3]
x.vocab_size: array[int32] = []"""
    assert metadata_of(out) == stored.splitlines()
    save_file({}, out, {"toy.rope.freq_base": Typed(0.5, "float64"), "toy.block_count": np.int8(3)})
    assert metadata_of(out) == ["toy.rope.freq_base: float64 = 0.5", "toy.block_count: int8 = 3"]
    convert(out, tmp_path / "again.gguf", metadata={"toy.block_count": "4", "toy.logit_scale": 2})
    assert metadata_of(tmp_path / "again.gguf")[1:] == ["toy.block_count: int8 = 4", "toy.logit_scale: float32 = 2.0"]
    with glft_schema.open(tmp_path / "again.gguf") as file:
        added = file.metadata.without("toy.logit_scale") | {"toy.logit_scale": 3, "toy.note": 3}
        assert [added.type_of(key) for key in ("toy.logit_scale", "toy.note")] == ["float32", "uint32"]


def test_text_of_another_format_takes_the_type_of_its_key(tmp_path: Path, out: Path) -> None:
    source = tmp_path / "in.glft"
    save_file({}, source, {"general.quantization_version": "2", "toy.block_count": "many"})
    with pytest.raises(FormatError, match=r"^metadata -> toy.block_count: expected a uint32, found 'many'$"):
        convert(source, out)
    convert(source, out, metadata={"toy.block_count": "3"})
    assert metadata_of(out) == ["general.quantization_version: uint32 = 2", "toy.block_count: uint32 = 3"]


WRONG: list[tuple[str, Any, str, str]] = [
    ("general.architecture", 1, "a string", "uint8"),
    ("general.quantization_version", "2", "an integer", "string"),
    ("general.file_type", True, "an integer", "bool"),
    ("general.license", ["mit"], "a string", "array[string]"),
    ("tokenizer.ggml.tokens", "a", "an array of strings", "string"),
    ("tokenizer.ggml.scores", [1, 2], "an array of floats", "array[int32]"),
    ("tokenizer.ggml.add_bos_token", 1, "a bool", "uint32"),
    ("toy.context_length", 4096.0, "an integer or an array of integers", "float32"),
    ("toy.rope.freq_base", "1", "a float or an array of floats", "string"),
    ("toy.rope.scaling.type", 2, "a string", "uint32"),
    ("toy.attention.causal", [True], "a bool", "array[bool]"),
]


@pytest.mark.parametrize(("key", "value", "expected", "type_"), WRONG)
def test_a_wrong_type_is_reported_with_key_and_offset(key: str, value: Any, expected: str, type_: str) -> None:
    stored = Container.build({"format": "GGUF", "metadata": {"k": 1, key: Typed(value, type_)}})
    (found,) = (one for one in check_rules(Container.parse(stored), ("spec", "ggml")) if one.rule == "gguf-key-type")
    problem = f"expected {expected} for {key}, found {type_}"
    assert (found.sets, found.path, found.problem) == (("spec",), "metadata -> 1 -> type", problem)
    assert found.offset == 24 + (8 + 1 + 4 + 4) + 8 + len(key)


INTEGERS = [f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("u", "")]


def test_every_width_suits_and_no_other_kind() -> None:
    scalars = [*INTEGERS, "float32", "float64", "bool", "string"]
    nested = ["array[array[int8]]", "array[array[int8],array[string]]", "array[array]"]
    every = [*scalars, *(f"array[{type_}]" for type_ in scalars), *nested]
    for key, type_ in TYPES.items():
        element = type_.removeprefix("array[").removesuffix("]")
        family = INTEGERS if element in INTEGERS else ["float32", "float64"] if element == "float32" else [element]
        arrays = {f"array[{one}]" for one in family}
        suitable = arrays if element != type_ else set(family)
        if key.startswith((ARCH, "xielu.")) and type_ in ("uint32", "float32"):
            suitable |= arrays  # one per layer
        assert {found for found in every if suits(key, found)} == suitable
    assert all(suits("toy.note", found) for found in every)


def test_a_value_of_a_wrong_kind_can_be_replaced() -> None:
    wrong = {"toy.rope.freq_base": Typed(10000, "uint32"), "general.author": Typed(["x"], "array[string]")}
    metadata = Container.parse(Container.build({"format": "GGUF", "metadata": wrong})).metadata
    mended = metadata | {"toy.rope.freq_base": 0.5, "general.author": "y"}
    assert [(mended[key], mended.type_of(key)) for key in wrong] == [(0.5, "float32"), ("y", "string")]
