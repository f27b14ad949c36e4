"""Well-known GGUF keys: gguf-py's types for them, conversion to these types, and findings."""

from __future__ import annotations

import enum
import inspect
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import glft_schema
from glft_schema import Container, FormatError, Typed, convert, save_file
from glft_schema.files.parsing import check_rules
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.gguf_keys import ARCH, TYPES, suits, type_of_key
from tests.oracles.peers import gguf
from tests.tools.command_line import assert_refused
from tests.tools.command_line import in_this_process as glft

GROUPS = ("general.", "tokenizer.", "toy.")
SEVERAL_KINDS = {"toy.attention.sliding_window_pattern", "toy.attention.shared_kv_layers"}
SEVERAL_KINDS |= {"toy.swiglu_clamp_exp", "toy.swiglu_clamp_shexp"}
NAME_INSIDE = {"toy.x_feat_in", "toy.x_feat_out"}
SAMPLES: dict[Any, Any] = {int: 1, str: "x", float: 0.5, bool: True, bytes: b"x"}


def sample(hint: Any) -> Any:
    """Returns a value of a type, or of the first type of a union."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return sample(typing.get_args(hint)[0])
    if typing.get_origin(hint) is Sequence:
        return [sample(typing.get_args(hint)[0])]
    return next(iter(hint)) if issubclass(hint, enum.Enum) else SAMPLES[hint]


def written_by_gguf_py() -> dict[str, str]:
    """Returns the types by key that gguf-py's writer gives, from a call of each ``add_`` method."""
    found: dict[str, str] = {}
    for name, method in inspect.getmembers(gguf.GGUFWriter, inspect.isfunction):
        given = [hint for hint in typing.get_type_hints(method).items() if hint[0] != "return"]
        if not name.startswith("add_") or "key" in dict(given) or name in ("add_tensor", "add_tensor_info"):
            continue
        writer = gguf.GGUFWriter(None, "toy")
        writer.kv_data[0].clear()
        method(writer, *(sample(hint) for _, hint in given))
        for key, value in writer.kv_data[0].items():
            found[key] = value.type.name.lower()
            if value.type is gguf.GGUFValueType.ARRAY:  # elements have the type of the first, bytes are uint8
                is_bytes = isinstance(value.value, bytes)
                found[key] += "[uint8]" if is_bytes else f"[{gguf.GGUFValueType.get_type(value.value[0]).name.lower()}]"
    return found


def test_types_are_those_that_gguf_py_writes() -> None:
    written = {key: type_ for key, type_ in written_by_gguf_py().items() if key.startswith(GROUPS)}
    assert len(written) > 170
    known = {key: type_of_key(key) for key in written}
    assert known == {key: None if key in SEVERAL_KINDS | NAME_INSIDE else type_ for key, type_ in written.items()}


def test_types_of_keys() -> None:
    types = {
        "general.datasets": "array[string]",
        "general.dataset.12.name": "string",
        "general.dataset.count": "uint32",
        "tokenizer.chat_template.tool_use": "string",
        "nomic-bert.block_count": "uint32",
        "llama.rope.scale_linear": "float32",
    }
    types |= dict.fromkeys(("tokenizer.block_count", "general.block_count", "block_count", ""), None)
    assert {key: type_of_key(key) for key in types} == types


def metadata_of(path: Path) -> dict[str, tuple[Any, str]]:
    with glft_schema.open(path) as file:
        return {key: (file.metadata[key], file.metadata.type_of(key)) for key in file.metadata}


GIVEN = {  # text on the command line, and the stored value and type
    "general.architecture": ("10", "10", "string"),
    "general.quantization_version": ("2", 2, "uint32"),
    "general.sampling.top_k": ("40", 40, "int32"),
    "general.tags": ('["a", "b"]', ["a", "b"], "array[string]"),
    "tokenizer.ggml.add_bos_token": ("true", True, "bool"),
    "toy.attention.layer_norm_epsilon": ("1", 1.0, "float32"),
    "toy.note": ("3", "3", "string"),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    safetensors.torch.save_file({"w": torch.ones(4, 32)}, tmp_path / "in.safetensors")
    return tmp_path / "in.safetensors"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.gguf"


def test_text_on_the_command_line_takes_the_type_of_its_key(source: Path, out: Path) -> None:
    options = [option for key, (text, *_) in GIVEN.items() for option in ("--metadata", f"{key}={text}")]
    done = glft("convert", source, out, *options, "--scheme", "q8_0")
    assert (done.returncode, done.stderr) == (0, "")
    assert metadata_of(out) == {key: (value, type_) for key, (_, value, type_) in GIVEN.items()}
    assert glft("verify", out, "--rules", "spec").returncode == 0


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("general.quantization_version", "two", "a uint32"),
        ("general.quantization_version", "-1", "a uint32"),
        ("general.quantization_version", "2.5", "a uint32"),
        ("general.sampling.top_k", "", "an int32"),
        ("tokenizer.ggml.add_bos_token", "yes", "a bool"),
        ("toy.rope.freq_base", "1e99", "a float32"),
        ("general.tags", "a]", "an array[string]"),
    ],
)
def test_text_of_another_kind_is_refused(source: Path, out: Path, key: str, text: str, expected: str) -> None:
    done = glft("convert", source, out, "--metadata", f"{key}={text}")
    assert done.stderr == f"glft: {out}: metadata -> {key}: expected {expected}, found {text!r}\n"
    assert_refused(done)
    assert not out.exists()


def test_a_given_type_is_kept_and_refused_by_the_rule(source: Path, out: Path, tmp_path: Path) -> None:
    wrong = ("convert", source, out, "--metadata", 'general.quantization_version:string="2"')
    problem = "metadata -> 0 -> type: expected an integer for general.quantization_version, found string"
    refused = glft(*wrong)
    assert refused.stderr == f"glft: {out}: {problem} [gguf-key-type]\n"
    assert refused.returncode == 2
    assert glft(*wrong, "--rules", "ggml").returncode == 0
    assert metadata_of(out) == {"general.quantization_version": ("2", "string")}
    assert "gguf-key-type" in glft("verify", out).stdout
    assert glft("convert", out, tmp_path / "mended.gguf", "--metadata", "general.quantization_version=2").returncode == 0
    assert metadata_of(tmp_path / "mended.gguf") == {"general.quantization_version": (2, "uint32")}


def test_plain_values_take_the_type_of_their_key(out: Path, tmp_path: Path) -> None:
    plain = {"toy.rope.freq_base": 10000, "general.sampling.top_k": 40, "general.tags": [], "tokenizer.ggml.scores": [1, 2]}
    plain |= {"toy.attention.head_count": [8, 4], "toy.context_length": 1 << 40, "general.quantization_version": "2"}
    save_file({}, out, plain)
    assert metadata_of(out) == {
        "toy.rope.freq_base": (10000.0, "float32"),
        "general.sampling.top_k": (40, "int32"),
        "general.tags": ([], "array[string]"),
        "tokenizer.ggml.scores": ([1.0, 2.0], "array[float32]"),
        "toy.attention.head_count": ([8, 4], "array[int32]"),
        "toy.context_length": (1 << 40, "uint64"),
        "general.quantization_version": (2, "uint32"),
    }
    save_file({}, out, {"toy.rope.freq_base": Typed(0.5, "float64"), "toy.block_count": np.int8(3)})
    assert metadata_of(out) == {"toy.rope.freq_base": (0.5, "float64"), "toy.block_count": (3, "int8")}
    convert(out, tmp_path / "again.gguf", metadata={"toy.block_count": "4", "toy.logit_scale": 2})
    again = metadata_of(tmp_path / "again.gguf")
    assert (again["toy.block_count"], again["toy.logit_scale"]) == ((4, "int8"), (2.0, "float32"))
    with glft_schema.open(tmp_path / "again.gguf") as file:
        added = file.metadata.without("toy.logit_scale") | {"toy.logit_scale": 3, "toy.note": 3}
        assert [added.type_of(key) for key in ("toy.logit_scale", "toy.note")] == ["float32", "uint32"]


def test_a_plain_value_of_another_kind_is_refused(out: Path) -> None:
    problem = "metadata -> 0 -> type: expected a bool for toy.attention.causal, found uint32"
    with pytest.raises(FormatError) as caught:
        save_file({}, out, {"toy.attention.causal": 1})
    assert (str(caught.value), caught.value.rule) == (problem, "gguf-key-type")


def test_text_of_another_format_takes_the_type_of_its_key(tmp_path: Path, out: Path) -> None:
    source = tmp_path / "in.glft"
    save_file({}, source, {"general.quantization_version": "2", "toy.block_count": "many"})
    with pytest.raises(FormatError, match=r"^metadata -> toy.block_count: expected a uint32, found 'many'$"):
        convert(source, out)
    convert(source, out, metadata={"toy.block_count": "3"})
    assert metadata_of(out) == {"general.quantization_version": (2, "uint32"), "toy.block_count": (3, "uint32")}


WRONG: dict[str, tuple[Any, str]] = {
    "general.architecture": (1, "expected a string for general.architecture, found uint8"),
    "general.quantization_version": ("2", "expected an integer for general.quantization_version, found string"),
    "general.file_type": (True, "expected an integer for general.file_type, found bool"),
    "general.license": (["mit"], "expected a string for general.license, found array[string]"),
    "tokenizer.ggml.tokens": ("a", "expected an array of strings for tokenizer.ggml.tokens, found string"),
    "tokenizer.ggml.scores": ([1, 2], "expected an array of floats for tokenizer.ggml.scores, found array[int32]"),
    "tokenizer.ggml.add_bos_token": (1, "expected a bool for tokenizer.ggml.add_bos_token, found uint32"),
    "toy.context_length": (4096.0, "expected an integer or an array of integers for toy.context_length, found float32"),
    "toy.rope.freq_base": ("1", "expected a float or an array of floats for toy.rope.freq_base, found string"),
    "toy.rope.scaling.type": (2, "expected a string for toy.rope.scaling.type, found uint32"),
    "toy.attention.causal": ([True], "expected a bool for toy.attention.causal, found array[bool]"),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_type_is_reported_with_key_and_offset(key: str) -> None:
    value, problem = WRONG[key]
    typed = Typed(value, problem.rpartition(" found ")[2])
    stored = Container.build({"format": "GGUF", "metadata": {"k": 1, key: typed}})
    findings = check_rules(Container.parse(stored), ("spec", "ggml"))
    (found,) = [finding for finding in findings if finding.rule == "gguf-key-type"]
    assert (found.sets, found.path, found.problem) == (("spec",), "metadata -> 1 -> type", problem)
    assert found.offset == 24 + (8 + 1 + 4 + 4) + 8 + len(key)


def test_every_width_suits_and_no_other_kind() -> None:
    integers, floats = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"], ["float32", "float64"]
    scalars = [*integers, *floats, "bool", "string"]
    nested = ["array[array[int8]]", "array[array[int8],array[string]]", "array[array]"]
    every = [*scalars, *(f"array[{type_}]" for type_ in scalars), *nested]
    for key, type_ in TYPES.items():
        element = type_.removeprefix("array[").removesuffix("]")
        family = next((widths for widths in (integers, floats) if element in widths), [element])
        arrays = {f"array[{one}]" for one in family}
        suitable = arrays if element != type_ else set(family)
        if key.startswith(ARCH) and type_ in ("uint32", "float32"):
            suitable |= arrays  # one per layer
        assert {found for found in every if suits(key, found)} == suitable
    assert all(suits("toy.note", found) for found in every)


def test_numbers_of_an_architecture_may_be_arrays() -> None:
    given = {"toy.attention.head_count": [4, 8], "toy.rope.freq_base": [1, 2], "toy.block_count": "[3]", "toy.vocab_size": []}
    metadata = GGUF.metadata.metadata(given)
    assert [metadata.type_of(key) for key in given] == ["array[int32]", "array[float32]", "array[int32]", "array[int32]"]
    assert list(metadata.values()) == [[4, 8], [1.0, 2.0], [3], []]


def test_a_value_of_a_wrong_kind_can_be_replaced() -> None:
    wrong = {"toy.rope.freq_base": Typed(10000, "uint32"), "general.author": Typed(["x"], "array[string]")}
    metadata = Container.parse(Container.build({"format": "GGUF", "metadata": wrong})).metadata
    mended = metadata | {"toy.rope.freq_base": 0.5, "general.author": "y"}
    assert [(mended[key], mended.type_of(key)) for key in wrong] == [(0.5, "float32"), ("y", "string")]
