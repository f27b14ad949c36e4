"""Plain data as YAML: a parser reads back what was written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glft_schema.describe.kaitai.as_yaml import as_yaml
from tests.oracles.peers import yaml

scalars = st.text() | st.integers() | st.booleans()


@given(st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_yaml_reads_back(value: Any) -> None:
    assert yaml.safe_load(as_yaml({"value": value})) == {"value": value}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain words, (1 + 2) * x", "value: plain words, (1 + 2) * x"),
        ("no", 'value: "no"'),
        ("a: b", 'value: "a: b"'),
        ("0x10", 'value: "0x10"'),
        ("one\ntwo", "value: |-\n  one\n  two"),
        ("one\n two", 'value: "one\\n two"'),
        ("\u202e\x00\U000e0001", 'value: "\\u202E\\u0000\\U000E0001"'),
        ([{"a": 1, "b": []}, True], "value:\n  - a: 1\n    b: []\n  - true"),
    ],
)
def test_quotes_what_it_must(value: object, expected: str) -> None:
    assert as_yaml({"value": value}) == expected + "\n"
