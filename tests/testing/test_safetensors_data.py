"""Test data for safetensors: what is generated as valid or broken is so for the library, too."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from glft_schema import Container, byte_map
from glft_schema.errors import LimitError, OptionError
from glft_schema.files.parsing import check_rules
from glft_schema.formats.format import Format
from glft_schema.formats.safetensors import SAFETENSORS
from glft_schema.testing import Corruption, containers, corruptions, rule_ids
from glft_schema.testing.faults import Breaker, LastRow
from glft_schema.testing.fuzzing import fuzz
from tests.formats.test_safetensors import in_file, in_library
from tests.tools.depth import FULL

BOTH = ("spec", "rust")
QUIET = settings(
    derandomize=True, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
TEXT = b'{"__metadata__": {"a": "b"}, "w":{"shape":[2],"dtype":"F32","data_offsets":[0,8]}} '
SMALL = len(TEXT).to_bytes(8, "little") + TEXT + bytes(8)


@pytest.mark.parametrize("rules", [(), BOTH])
def test_valid_files(rules: tuple[str, ...]) -> None:
    """Every byte has one stretch; the library reads what `rust` allows, and the same content."""
    seen: Counter[str] = Counter()

    @settings(QUIET, max_examples=60 if FULL else 30)
    @given(containers("safetensors", rules=rules))
    def check(stored: bytes) -> None:
        file = Container.parse(stored)
        assert Container.build(file) == stored
        findings = check_rules(file, BOTH)
        seen.update(finding.rule for finding in findings)
        theirs = in_library(stored)
        assert (theirs is None) == any("rust" in finding.sets for finding in findings)
        assert theirs in (None, in_file(file))
        at = 0
        for byte_range in byte_map(file):
            assert (byte_range.start, byte_range.kind != "unclaimed") == (at, True)
            at = byte_range.end
            seen[byte_range.doc] += 1
        assert at == len(stored)

    check()
    if rules:
        assert not seen.keys() & set(rule_ids("safetensors"))
    else:
        assert {id for id in rule_ids("safetensors") if id in seen} >= {"safetensors-names-once", "safetensors-known-keys"}
        assert seen["replaced by a later entry of this name"]
        assert seen["replaced by a later value of this key"]
        assert seen["of an unknown key; preserved"]


@pytest.mark.parametrize("rule", rule_ids("safetensors"))
def test_every_rule_can_be_broken_alone(rule: str) -> None:
    """The library refuses the file if the rule is required or one of `rust`."""
    if rule == "safetensors-header-size":  # 100 MB
        with pytest.raises(OptionError, match=f"no values are known that break '{rule}'"):
            corruptions(SMALL, rule)
        return
    count = 0

    @settings(QUIET, max_examples=4)
    @given((st.just(SMALL) | containers("safetensors", rules=BOTH, max_tensors=2)).flatmap(lambda it: corruptions(it, rule)))
    def check(made: Corruption) -> None:
        nonlocal count
        count += 1
        assert (made.rule, made.problem()) == (rule, None)
        refused = made.error is not None or "rust" in next(
            finding.sets for finding in check_rules(Container.parse(made.stored), BOTH) if finding.rule == rule
        )
        assert (in_library(made.stored) is None) == refused

    check()
    assert count


@settings(QUIET, max_examples=1)
@given(st.data())
def test_every_refused_text(data: st.DataObject) -> None:
    row = LastRow(Breaker(data.draw, Container.parse(SMALL)))
    for path, fault, text in (*row.refused_rows(), *row.refused_texts()):
        draft = row.draft_of(text)
        assert Corruption(draft.build(), fault.sentence, path, draft.fault, error=fault.error).problem() is None
        assert fault.error is LimitError or in_library(draft.build()) is None  # a limit of this package


@pytest.mark.parametrize("source", [SAFETENSORS, SMALL], ids=["format", "file"])
def test_fuzzing_finds_nothing(source: Format | bytes) -> None:
    fuzzed = fuzz(source, 300 if FULL else 40)
    assert fuzzed.failure is None
    assert fuzzed.counts["damaged"]
    assert fuzzed.counts["corrupted"]


def test_fuzzing_a_file_with_metadata() -> None:
    fuzzed = fuzz(SMALL, 30)
    assert (fuzzed.failure, set(fuzzed.counts)) == (None, {"damaged", "corrupted"})
