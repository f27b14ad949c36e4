"""Identifiers for Kaitai Struct."""

from __future__ import annotations

import pytest

from glft_schema.describe.kaitai.names import KaitaiNames


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dims", "dims"),
        ("in", "in_value"),
        ("class", "class_value"),
        ("u4", "u4_value"),
        ("IQ4_NL", "iq4_nl"),
        ("4 bits", "x4_bits"),
        ("", "x"),
        ("a\"\n'$(x)\u202e", "a_x"),
        ("Größe", "gr_e"),
    ],
)
def test_names(name: str, expected: str) -> None:
    assert KaitaiNames().new(name) == expected


def test_names_differ_in_camel_case_too() -> None:
    names = KaitaiNames("n_kv")
    assert [names.new("nkv"), names.new("n_kv"), names.new("N.KV")] == ["nkv_2", "n_kv_3", "n_kv_4"]
