"""Test data for safetensors: what is generated as valid or broken is so for the library, too."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from glft_schema import Container, byte_map
from glft_schema.errors import LimitError
from glft_schema.files.parsing import check_rules
from glft_schema.testing import Corruption, containers, rule_ids
from glft_schema.testing.faults import Breaker, LastRow
from tests.describe.test_byte_map import check as check_byte_map
from tests.formats.test_safetensors import in_file, in_library
from tests.testing.test_corruptions import SAFE_FILE
from tests.tools.depth import FULL

BOTH = ("spec", "rust")
QUIET = settings(
    derandomize=True, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("rules", [(), BOTH])
def test_valid_files(rules: tuple[str, ...]) -> None:
    """The library reads what `rust` allows, and the same content."""
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
        check_byte_map(stored)
        seen.update(byte_range.doc for byte_range in byte_map(file))

    check()
    assert (not seen.keys() & set(rule_ids("safetensors"))) == bool(rules)
    texts = {"replaced by a later entry of this name", "replaced by a later value of this key", "of an unknown key; preserved"}
    assert rules or seen.keys() >= {"safetensors-names-once", "safetensors-known-keys", *texts}


@settings(QUIET, max_examples=1)
@given(st.data())
def test_every_refused_text(data: st.DataObject) -> None:
    row = LastRow(Breaker(data.draw, Container.parse(SAFE_FILE)))
    for path, fault, text in (*row.refused_rows(), *row.refused_texts()):
        draft = row.draft_of(text)
        assert Corruption(draft.build(), fault.sentence, path, draft.fault, error=fault.error).problem() is None
        assert fault.error is LimitError or in_library(draft.build()) is None  # a limit of this package
