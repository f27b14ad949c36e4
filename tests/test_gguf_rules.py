"""Each rule of GGUF broken once: what we say, and what llama.cpp and gguf-py do with the same file."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import gguf
import pytest

from glft_schema import Container, FormatError, SchemeError
from glft_schema.container import findings
from glft_schema.formats.gguf import GGUF, KeyValue, TensorInfo
from glft_schema.rules import GGML, LENIENT, RULE_SETS, SPEC, Check
from tests import llama_cpp
from tests.gguf_cases import NEVER, READ, READS, REFUSED, entries, tensors, w

STRUCTS = (GGUF.struct, GGUF.struct.header, KeyValue, TensorInfo)
CHECKS = [field for struct in STRUCTS for field in struct.subcons if isinstance(field, Check)]


EVERYWHERE = {"architecture", "quantization-version"}  # what few of the cases state


@pytest.mark.parametrize("name", REFUSED)
def test_bad_files_are_refused(name: str) -> None:
    case = REFUSED[name]
    with pytest.raises(FormatError) as caught:
        Container.parse(case.stored)
    assert (caught.value.path, caught.value.offset) == (case.path, case.offset)
    assert case.message in caught.value.problem
    in_row = case.path.startswith("metadata -> ") and name != "a key longer than the file"
    assert (caught.value.key in ("k", "general.alignment")) == in_row == ("key '" in str(caught.value))
    assert llama_cpp.reads_gguf(case.stored) == case.c


@pytest.mark.parametrize("name", READ)
def test_unusual_files_are_read_and_built_back(name: str) -> None:
    case = READ[name]
    file = Container.parse(case.stored)
    assert Container.build(file) == case.stored
    for rules, expected in ((SPEC, case.spec), (GGML, case.ggml)):
        found = findings(file, rules)
        broken = {finding.rule.removeprefix("gguf-") for finding in found} - EVERYWHERE
        assert sorted(broken) == expected.split()
        for finding in found:
            assert finding.path
            assert finding.offset is not None
            assert finding.problem.startswith("expected ")
    assert findings(file, LENIENT) == []
    assert llama_cpp.reads_gguf(case.stored) == (not case.ggml)


def gguf_py(stored: bytes, path: Path) -> str:
    path.write_bytes(stored)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gguf.GGUFReader(path)
    except Exception as error:
        return type(error).__name__
    return READS


@pytest.mark.parametrize("name", [*REFUSED, *READ])
def test_gguf_py_does_what_the_table_says(name: str, tmp_path: Path) -> None:
    case = {**REFUSED, **READ}[name]
    if case.gguf_py == NEVER:
        pytest.skip("gguf-py would make a view for each of 2^40 numbers")
    assert gguf_py(case.stored, tmp_path / "file.gguf") == case.gguf_py


def test_every_rule_is_broken_by_a_case() -> None:
    broken = {rule for case in READ.values() for rule in (case.spec + " " + case.ggml).split()}
    refused = set()
    for case in REFUSED.values():
        with pytest.raises(FormatError) as caught:
            Container.parse(case.stored)
        refused.add(caught.value.rule)
    untested = {check.id for check in CHECKS if not check.is_always_needed} - {f"gguf-{rule}" for rule in broken}
    assert untested == {"gguf-length", *(f"gguf-{rule}" for rule in EVERYWHERE)}  # the first needs a file of a gigabyte
    assert {check.id for check in CHECKS if check.is_always_needed} - refused == {"gguf-magic"}  # told before: no format has it


def test_rules_are_sentences_with_sets() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert re.fullmatch(r"gguf-[a-z0-9-]+", check.id)
        assert set(check.sets) <= set(RULE_SETS)
        assert check.is_always_needed == (check.sets == RULE_SETS)


def test_a_finding_names_rule_field_and_byte() -> None:
    (found,) = findings(Container.parse(tensors(w(b"n" * 65))), GGML)
    assert (found.rule, found.path, found.offset) == ("gguf-name-63", "tensor_infos -> 0 -> name", 24)
    assert found.problem == f"expected at most 63 bytes, found {'n' * 65!r}"
    (found,) = findings(Container.parse(entries((b"general.architecture", 8, b"toy"), (b"k", 7, 2))), SPEC)
    assert (found.rule, found.path, found.offset) == ("gguf-bool", "metadata -> 1 -> value", 80)
    with pytest.raises(SchemeError, match="expected one of spec, ggml, lenient, found 'strict'"):
        findings(Container.parse(entries()), "strict")


def test_keys_that_the_specification_requires() -> None:
    def rules(metadata: dict[str, object], type_: str) -> list[str]:
        infos = [{"name": "w", "dims": [32], "dtype": type_}]
        regions = {
            "format": "GGUF",
            "metadata": metadata,
            "tensor_infos": infos,
            "data": {"w": bytes(128 if type_ == "f32" else 34)},
        }
        return [finding.rule for finding in findings(Container.parse(Container.build(regions, rules=SPEC)), SPEC)]

    assert rules({}, "q8_0") == ["gguf-architecture", "gguf-quantization-version"]
    assert rules({"general.architecture": "toy"}, "f32") == []
    assert rules({"general.architecture": "toy", "general.quantization_version": 2}, "q8_0") == []


def test_building_keeps_to_the_rule_sets_asked_for() -> None:
    regions = {"format": "GGUF", "metadata": {"Key": 1}}
    assert Container.parse(Container.build(regions)).metadata == {"Key": 1}
    assert Container.build(regions, rules=(GGML,))
    with pytest.raises(FormatError, match="metadata -> 0 -> key: expected lower_snake_case segments joined by dots") as caught:
        Container.build(regions, rules=(SPEC, GGML))
    assert caught.value.rule == "gguf-key"
    with pytest.raises(SchemeError, match="expected one of spec, ggml, lenient, found 'strict'"):
        Container.build(regions, rules="strict")
    deliberate = {"format": "GGUF", "header": {"version": 1, "byte_order": "big"}}
    assert Container.parse(Container.build(deliberate, rules=(GGML,))).header.byte_order == "big"
