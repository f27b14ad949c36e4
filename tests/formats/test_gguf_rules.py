"""Each rule of GGUF broken once: our error, and what llama.cpp and gguf-py do with the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from glft_schema import Container, FormatError
from glft_schema.codec.rules import GGML, SPEC, Check
from glft_schema.errors import OptionError
from glft_schema.files.parsing import check_rules
from glft_schema.formats.gguf import GGUF, KeyValue, TensorInfo
from tests.catalogue.cases import NEVER, READS
from tests.catalogue.gguf_cases import READ, REFUSED, entries, tensors, w
from tests.oracles import llama_cpp
from tests.oracles.peers import gguf

STRUCTS = (GGUF.struct, GGUF.struct.header, KeyValue, TensorInfo)
CHECKS = [field for struct in STRUCTS for field in struct.subcons if isinstance(field, Check)]

CASES = {**REFUSED, **READ}


@pytest.mark.parametrize("name", CASES)
def test_llama_cpp_does_what_the_table_says(name: str) -> None:
    reads = REFUSED[name].c if name in REFUSED else not READ[name].ggml
    assert llama_cpp.reads_gguf(CASES[name].stored) == reads


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.gguf_py != NEVER]
)  # a view of each of 2^40 numbers
@pytest.mark.filterwarnings("ignore")
def test_gguf_py_does_what_the_table_says(name: str, tmp_path: Path) -> None:
    case, path = CASES[name], tmp_path / "file.gguf"
    path.write_bytes(case.stored)
    try:
        reader = gguf.GGUFReader(path)
    except Exception as error:
        assert case.gguf_py == type(error).__name__
        return
    assert case.gguf_py == READS
    if name in READ:
        payloads = {tensor.name: bytes(tensor.raw) for tensor in Container.parse(case.stored).tensors.values()}
        assert {tensor.name: tensor.data.tobytes() for tensor in reader.tensors} == payloads


def test_a_finding_names_rule_field_and_byte() -> None:
    (found,) = check_rules(Container.parse(tensors(w(b"n" * 65))), GGML)
    assert (found.rule, found.path, found.offset) == ("gguf-name-63", "tensor_infos -> 0 -> name", 24)
    assert found.problem == f"expected at most 63 bytes, found {'n' * 65!r}"
    (found,) = check_rules(Container.parse(entries((b"general.architecture", 8, b"toy"), (b"k", 7, 2))), SPEC)
    assert (found.rule, found.path, found.offset) == ("gguf-bool", "metadata -> 1 -> value", 80)
    with pytest.raises(OptionError, match="expected one of spec, ggml, rust, required, found 'strict'"):
        check_rules(Container.parse(entries()), "strict")


def test_building_keeps_to_the_rule_sets_asked_for() -> None:
    regions = {"format": "GGUF", "metadata": {"Key": 1}}
    assert Container.parse(Container.build(regions)).metadata == {"Key": 1}
    assert Container.build(regions, rules=(GGML,))
    with pytest.raises(FormatError, match="metadata -> 0 -> key: expected lower_snake_case segments joined by dots") as caught:
        Container.build(regions, rules=(SPEC, GGML))
    assert caught.value.rule == "gguf-key"
    deliberate = {"format": "GGUF", "header": {"version": 1, "byte_order": "big"}}
    assert Container.parse(Container.build(deliberate, rules=(GGML,))).header.byte_order == "big"


def test_a_shard_number_that_is_an_array() -> None:
    """A long array is a numpy view, whose comparison with a number has no truth value."""
    file = Container.parse(Container.build({"format": "GGUF", "metadata": {"split.no": list(range(2000))}}))
    assert [finding.rule for finding in check_rules(file, SPEC)] == ["gguf-key-type", "gguf-architecture"]


def test_a_type_of_ones_own_needs_no_rules() -> None:
    """Building says how; a finding has nothing to build."""
    stored = READ["a type of a fork, 200"].stored
    file = Container.parse(stored)
    expected = "tensor_infos -> 0 -> dtype: expected a type of ggml, found type 200"
    for rules in (["spec"], ["ggml"]):
        with pytest.raises(FormatError) as caught:
            Container.build(file, rules=rules)
        assert str(caught.value) == f"{expected}: rules=[] (--rules required) allows types that ggml does not have"
        assert [f"{f.path}: {f.problem}" for f in check_rules(file, rules) if f.rule == "gguf-type"] == [expected]
    assert Container.build(file, rules=[]) == Container.build(file, rules=["required"]) == stored
