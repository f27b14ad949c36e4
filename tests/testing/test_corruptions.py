"""Corruptions of every rule and many fields are reported as expected, also by llama.cpp."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from glft_schema import Container, FormatError, TruncatedError
from glft_schema.codec.rules import Check
from glft_schema.errors import OptionError
from glft_schema.files.parsing import check_rules
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.testing import Corruption, containers, corruptions, rule_ids
from glft_schema.testing.containers import Draft
from glft_schema.testing.corruption import distinct_rules
from glft_schema.testing.faults import FIELD_FAULTS, Breaker, FieldFault
from tests.formats.test_gguf_rules import CHECKS
from tests.formats.test_glft_rules import field_at
from tests.formats.test_safetensors import in_library
from tests.fuzz.mutator import drawn
from tests.golden import golden
from tests.oracles import glft_reference as reference
from tests.oracles import llama_cpp
from tests.oracles.gguf_reference import File, Info
from tests.tools.depth import FULL

TOO_LARGE = {"gguf-length", "safetensors-header-size"}  # 2^30 bytes or elements, and 100 MB
LIMITS = {"gguf-limit-alignment", "gguf-dims-fit-type"}  # llama.cpp's limits are wider
A_FEW = settings(
    max_examples=4, derandomize=True, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
GGUF_FILE = File(
    [(b"general.architecture", 8, b"toy"), (b"k", 0, 1)], [Info(b"w", [2], 0, bytes(8)), Info(b"v", [1], 0, bytes(4))]
)


SAFE_TEXT = b'{"__metadata__": {"a": "b"}, "w":{"shape":[2],"dtype":"F32","data_offsets":[0,8]}} '
SAFE_FILE = len(SAFE_TEXT).to_bytes(8, "little") + SAFE_TEXT + bytes(8)
FILES = {"glft": golden("four_types"), "gguf": GGUF_FILE.bytes(), "safetensors": SAFE_FILE}
RULES = [(format, rule) for format in FILES for rule in rule_ids(format)]


def is_refused(made: Corruption) -> bool:
    """Tells whether llama.cpp or the safetensors library refuses a file."""
    return not llama_cpp.reads_gguf(made.stored) if made.stored[:4] == b"GGUF" else in_library(made.stored) is None


@pytest.mark.parametrize(("format", "rule"), RULES)
def test_every_rule_can_be_broken_alone(format: str, rule: str) -> None:
    """Exactly one finding, or the error, is about the rule. The corpus has more such files."""
    if rule in TOO_LARGE:
        with pytest.raises(OptionError, match=f"no values are known that break '{rule}'"):
            corruptions(FILES[format], rule)
        return
    given_file = st.just(FILES[format])
    files = given_file | containers(format, rules=("spec", "ggml", "rust"), max_tensors=2) if FULL else given_file
    count = 0

    @settings(A_FEW, max_examples=4 if FULL else 2)
    @given(files.flatmap(lambda stored: corruptions(stored, rule).map(lambda made: (stored, made))))
    def check(case: tuple[bytes, Corruption]) -> None:
        nonlocal count
        stored, made = case
        count += 1
        assert (made.rule, made.stored == stored, made.problem()) == (rule, False, None)
        assert len(made.findings) == (made.error is None)
        if format == "safetensors":
            assert is_refused(made) == bool(made.error or "rust" in made.sets)
        elif format == "gguf" and (made.error or "ggml" in made.sets) and rule not in LIMITS:
            assert is_refused(made)

    check()
    assert count


def test_ids_are_those_of_the_declarations() -> None:
    assert {check.id for check in CHECKS} < {*rule_ids("gguf")}


QUANTIZED = [(name, type_) for name, format in (("glft", GLFT), ("gguf", GGUF)) for type_ in format.types if not type_.exact]


@pytest.mark.parametrize(("format", "type_"), QUANTIZED)
def test_every_type_has_a_corruption(format: str, type_: Any) -> None:
    for check in type_.payload.subcons:
        if isinstance(check, Check):
            many = settings(A_FEW, max_examples=100)
            made = find(corruptions(FILES[format], check.id), lambda made: f"of {type_}:" in made.sentence, settings=many)
            assert (made.problem(), made.reported) == (None, f"{format}-dims-fit-type")


KINDS = {
    "glft": {
        *("metadata: a line without `=` or with an empty key", "metadata: a duplicate key", "metadata: text that is not UTF-8"),
        *("name: text that is not UTF-8", "dtype: an unknown type code"),
    },
    "gguf": {"dims: more than 64, a limit of glft_schema", "value: a count beyond the file", "type: an unknown type code"},
}


@st.composite
def with_a_fault(draw: st.DrawFn, fault: FieldFault, files: st.SearchStrategy[bytes]) -> Corruption | None:
    return fault(Breaker(draw, Container.parse(draw(files))))


@pytest.mark.parametrize("format", ["glft", "gguf"])
def test_every_field_can_be_broken(format: str) -> None:
    kinds = {"cut off", "a payload begins outside of the file", "name: a length beyond the file"}
    kinds |= {"the count of metadata claims more than there is", *KINDS[format]}
    rich = st.just(golden({"glft": "four_types", "gguf": "gguf_little"}[format]))  # every damage applies to it
    faults = dict.fromkeys(fault for faults in FIELD_FAULTS.values() for fault in faults)
    for fault, files in product(faults, [rich, containers(format, rules="spec")] if FULL else [rich]):

        @settings(A_FEW, max_examples=25 if FULL else 10)
        @given(with_a_fault(fault, files))
        def check(made: Corruption | None) -> None:
            if made is not None:
                assert made.problem() is None
                kinds.discard(made.sentence.partition(" at byte")[0])

        check()
    assert kinds == set()


@settings(A_FEW, max_examples=150 if FULL else 50)
@given(corruptions(golden("four_types")))
def test_cutting_off_names_the_field(made: Corruption) -> None:
    if made.error is TruncatedError and "cut off" in made.sentence:
        assert made.stored == golden("four_types")[: len(made.stored)]
        assert made.path == field_at(len(made.stored))[1]


def test_bytes_of_a_duplicate_name() -> None:
    made = find(corruptions(GGUF_FILE.bytes(), "gguf-names-once"), lambda made: True, settings=A_FEW)
    names = [Info(b"w", [2], 0, bytes(8)), Info(b"v", [1], 0, bytes(4), 32), Info(b"w", [2], 0, b"", 0)]
    assert made.stored == File(GGUF_FILE.entries, names, bytes(64)).bytes()


def test_a_file_that_breaks_rules_already() -> None:
    stored = File([(b"Key", 0, 1)], [Info(b"n" * 65, [1], 0, bytes(4))]).bytes()
    before = {(finding.rule, finding.path) for finding in check_rules(Container.parse(stored), "spec")}
    assert len(before) == 3
    made = find(corruptions(stored, "gguf-bool"), lambda made: True, settings=A_FEW)
    assert set(made.findings) == {*before, ("gguf-bool", "metadata -> 1 -> value")}
    assert made.problem() is None


BIG = Container.build(
    {"format": "GGUF", "header": {"byte_order": "big", "version": 3}, "metadata": {"general.architecture": "toy"}}
)
EMPTY = reference.write(b"", [], b"")
BAD_KEY = Container.build({"format": "GGUF", "metadata": {"Bad Key": 1}})
OPAQUE = File([], [Info(b"a", [1], 200), Info(b"b", [2], 200)], b"").bytes()  # an added byte belongs to both
WIDE = File([], [Info(b"w", [0, 1 << 33], 0)]).bytes()  # dims out of the range of version 1


@pytest.mark.parametrize(
    ("stored", "rule"),
    [
        (BIG, "gguf-little-endian"),  # is broken already
        (BAD_KEY, "gguf-architecture"),
        (OPAQUE, "gguf-gaps"),
        (OPAQUE, "gguf-offset"),
        (WIDE, "gguf-version-2"),
    ],
)
def test_rules_that_cannot_be_broken(stored: bytes, rule: str) -> None:
    assert [drawn(corruptions(stored, rule), Random(number)) for number in range(8)] == [None] * 8


@settings(A_FEW, max_examples=100 if FULL else 40)
@given(
    st.sampled_from([BIG, BAD_KEY, OPAQUE, WIDE, EMPTY, golden("four_types")]).flatmap(
        lambda stored: corruptions(stored).map(lambda made: (stored, made))
    )
)
def test_no_corruption_is_the_file_itself(case: tuple[bytes, Corruption]) -> None:
    stored, made = case
    assert made.stored != stored
    assert made.problem() is None


def test_differences_are_reported() -> None:
    stored = GGUF_FILE.bytes()
    rules = ("gguf-version", "gguf-bool")
    made, found = (find(corruptions(stored, rule), lambda made: True, settings=A_FEW) for rule in rules)
    for other, problem in (
        (replace(made, stored=stored), "expected FormatError of gguf-version at header -> version, found no error"),
        (replace(made, reported="gguf-magic"), "expected FormatError of gguf-magic"),
        (replace(made, path="header -> magic"), "expected FormatError of gguf-version at header -> magic"),
        (replace(made, offset=5), "at byte 5, found FormatError"),
        (replace(made, error=TruncatedError), "expected TruncatedError"),
        (replace(found, stored=stored), "expected the findings of spec: gguf-bool at metadata -> 2 -> value, found []"),
        (replace(found, offset=3), "at byte 3, found it at"),
    ):
        assert problem in str(other.problem())
    assert re.fullmatch(
        r"<\d+ bytes, value breaks its rule: bool values that are 0 or 1; expected the findings of spec: gguf-.*>", repr(found)
    )


def test_a_draft_has_any_count_and_value() -> None:
    draft = Draft.of(Container.parse(GGUF_FILE.bytes())).replace({"header": {"version": 9, "byte_order": "little", "n_kv": 7}})
    assert draft.head[0][:24] == b"GGUF" + struct.pack("<IQQ", 9, 2, 7)
    assert [(found.rule, found.path) for found in draft.broken_rules() or ()] == [("gguf-version", "header -> version")]
    assert (draft.start("header -> version"), draft.start("header -> n_kv"), draft.start("data")) == (4, 16, 160)


@pytest.mark.parametrize("format", ["glft", "gguf", "safetensors"])
def test_predicates_of_values_say_what_the_reader_says(format: str) -> None:
    """The values of a draft break the rules that the reader finds in the bytes."""

    @settings(A_FEW, max_examples=60 if FULL else 20)
    @given(containers(format))
    def check(stored: bytes) -> None:
        file = Container.parse(stored)
        expected = [(found.rule, found.path, found.problem) for found in check_rules(file, file.format.rule_sets)]
        draft = Draft.of(file)
        assert draft.build() == stored
        assert [(found.rule, found.path, found.problem) for found in draft.broken_rules() or ()] == expected

    check()


@pytest.mark.parametrize("format", FILES)
def test_no_reader_says_what_is_broken(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Container.parse(FILES[format])

    def refuse(*arguments: object, **params: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr("glft_schema.files.parsing._run", refuse)
    for rule in sorted({*distinct_rules(file.format)} - TOO_LARGE):
        assert find(corruptions(file, rule), lambda made: True, settings=A_FEW).rule == rule


def test_a_gap_after_padding_that_a_file_without_tensors_may_lack() -> None:
    stored = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
    made = find(corruptions(stored, "gguf-gaps"), lambda made: True, settings=A_FEW)
    assert (made.stored, made.offset, made.problem()) == (stored + bytes(8) + b"\1", 32, None)


def test_bad_requests() -> None:
    with pytest.raises(OptionError, match=r"expected a GLFT rule \(glft-byte-order, .*, q4-groups\), found 'gguf-key'"):
        corruptions(golden("four_types"), "gguf-key")
    with pytest.raises(FormatError, match="header -> magic"):
        corruptions(b"nothing")
    with pytest.raises(OptionError, match="expected GLFT, GGUF or safetensors, found 'ggml'"):
        rule_ids("ggml")


def test_an_opened_file_and_no_metadata() -> None:
    file = Container.parse(EMPTY)
    for rule in rule_ids("glft"):
        assert find(corruptions(file, rule), lambda made: True, settings=A_FEW).problem() is None
