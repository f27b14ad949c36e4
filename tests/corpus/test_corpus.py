"""Every reader, oracle and rule set over the corpus, which has each feature, rule and damage."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path

import pytest

from glft_schema import Container, FormatError
from glft_schema.files.parsing import check_rules
from glft_schema.formats.format import Format
from glft_schema.formats.safetensors import SAFETENSORS
from glft_schema.testing.faults import FIELD_FAULTS, rule_locations
from glft_schema.testing.fuzzing import check as check_properties
from tests.codec.test_columns import assert_files_agree
from tests.corpus import FORMATS, PARTS, RENEW, Drawn, corpus, every, verdict_on
from tests.corpus.__main__ import name_of
from tests.corpus.features import features, required
from tests.corpus.other_readers import our_numbers, rewritten
from tests.describe.test_byte_map import check as check_byte_map
from tests.files.test_ways_to_read import READERS, verdict
from tests.formats.test_disagreements import assert_explained, gguf_py  # noqa: F401
from tests.formats.test_safetensors import in_file, in_library, is_explained
from tests.fuzz.promises import check_promises, problem_of_map, problem_of_views
from tests.oracles.readers import GgufPy
from tests.tools.depth import FULL, some, some_by_default

by_format = pytest.mark.parametrize("format", FORMATS, ids=[format.name for format in FORMATS])
by_part = pytest.mark.parametrize(
    ("format", "part"), [pytest.param(*one, id=f"{one[0].name}-{one[1]}") for one in product(FORMATS, range(PARTS))]
)


def part_of(format: Format, part: int) -> tuple[Drawn, ...]:
    return corpus(format.name)[part::PARTS]


# Contents of the corpus


@by_format
def test_every_feature_of_the_declaration(format: Format) -> None:
    found = {feature for drawn in corpus(format.name) for feature in drawn.entry.get("has", ())}
    assert required(format) <= found, RENEW


@by_format
def test_every_rule_is_broken(format: Format) -> None:
    expected = {location.check.id for location in rule_locations(format) if location.can_be_broken}
    assert expected <= {drawn.entry.get("rule") for drawn in corpus(format.name)}, RENEW


def test_every_damage() -> None:
    expected = {name_of(fault) for faults in FIELD_FAULTS.values() for fault in faults}
    assert expected == {drawn.entry["damage"] for drawn in every() if "damage" in drawn.entry}, RENEW


# This package


@by_part
def test_the_verdict_is_the_expected_one(format: Format, part: int) -> None:
    """The error or all findings, the features, the bytes, and the numbers of other decoders."""
    for drawn in part_of(format, part):
        assert verdict_on(drawn.stored) == drawn.verdict, drawn.id
        if not drawn.is_read:
            continue
        file = Container.parse(drawn.stored)
        assert sorted(features(drawn.stored)) == drawn.entry["has"], (drawn.id, RENEW)
        assert rewritten(file, drawn.stored) in (None, drawn.stored), drawn.id
        for tensor, expected in zip(file.tensors.values(), drawn.entry["numbers"], strict=True):
            assert expected is None or expected == our_numbers(tensor.dequantize()), (drawn.id, tensor.name)


@by_part
def test_the_properties_of_fuzzing_hold(format: Format, part: int) -> None:
    for drawn in some(part_of(format, part), 2):
        check_properties(drawn.case)


@by_part
def test_the_promises_of_the_search_hold(format: Format, part: int) -> None:
    """Also all views, and metadata in text, in another version and in another byte order."""
    for drawn in some(part_of(format, part), 4):
        if format is not SAFETENSORS:
            check_promises(drawn.stored)
            continue
        file = Container.parse(drawn.stored) if drawn.is_read else None
        has_fields = file and not any(tensor.type.bytes_only for tensor in file.tensors.values())
        assert problem_of_map(drawn.stored, file) is None, drawn.id
        assert problem_of_views(drawn.stored, file if has_fields else None) is None, drawn.id


@by_part
def test_slices_are_parts_of_the_whole(format: Format, part: int) -> None:
    for drawn in part_of(format, part):
        for tensor in Container.parse(drawn.stored).tensors.values() if drawn.is_read else ():
            if tensor.type.bytes_only is None:
                for index in (slice(1, None, 2), (..., slice(-3, None)), tuple(slice(size // 2) for size in tensor.shape)):
                    if tensor.shape or index == ():
                        expected = our_numbers(tensor.dequantize()[index])
                        assert our_numbers(tensor[index]) == expected, (drawn.id, tensor.name, index)


@by_part
def test_the_byte_map_is_whole(format: Format, part: int) -> None:
    for drawn in part_of(format, part):
        if drawn.is_read:
            check_byte_map(drawn.stored)


@by_part
def test_the_fast_path_of_rows_agrees(format: Format, part: int) -> None:
    for drawn in some(part_of(format, part), 2):
        assert_files_agree(drawn.stored)


@pytest.mark.parametrize("reader", some_by_default([*READERS], 3))
def test_every_way_to_read(reader: str, tmp_path: Path) -> None:
    """A fourth of the files in each way: each file is read in six ways, by default in three."""
    step = 4 if FULL else 8
    for drawn in every()[list(READERS).index(reader) % step :: step]:
        expected = verdict(partial(Container.parse, drawn.stored))
        assert verdict(partial(READERS[reader], drawn.stored, tmp_path)) == expected, drawn.id


# Other readers


@pytest.mark.parametrize("part", range(PARTS))
def test_llama_cpp_and_gguf_py_agree_or_a_row_says_why(part: int, gguf_py: GgufPy) -> None:  # noqa: F811
    for drawn in corpus("GGUF")[part::PARTS]:
        assert_explained(drawn.stored, gguf_py)


def test_the_safetensors_library_agrees() -> None:
    verdicts = set()
    for drawn in corpus("safetensors"):
        theirs = in_library(drawn.stored)
        if not drawn.is_read:
            with pytest.raises(FormatError) as caught:
                Container.parse(drawn.stored)
            assert theirs is None or is_explained(caught.value), drawn.id
            continue
        file = Container.parse(drawn.stored)
        follows = not any("rust" in finding.sets for finding in check_rules(file, "rust"))
        assert (theirs is not None) == follows, drawn.id
        assert theirs is None or in_file(file) == theirs, drawn.id
        verdicts.add(follows)
    assert verdicts == {True, False}
