"""Strings after their length."""

from __future__ import annotations

import pytest

from glft_schema import TruncatedError
from glft_schema.codec.numbers import u8, u16, u32
from glft_schema.codec.structs import Struct
from glft_schema.codec.text import Text, is_utf8
from tests.codec.assertions import assert_stored, build_error, parse_error

short, long, strict = Text(u8), Text(u32), Text(u16, strict=True)
Named = Struct("name" / long)


def test_strings_after_their_length_in_bytes() -> None:
    assert_stored(short, "00", "")
    assert_stored(long, "02000000 6162", "ab")
    assert_stored(long, "00000002 6162", "ab", byte_order="big")
    assert_stored(short, "06 C3BC F09F8C8D", "ü🌍")


def test_bytes_that_are_not_utf8_become_lone_surrogates() -> None:
    assert_stored(short, "04 61 FF 80 62", "a\udcff\udc80b")
    assert_stored(short, "03 EDA080", "\udced\udca0\udc80")  # U+D800, which UTF-8 forbids
    assert_stored(short, "02 00 0A", "\0\n")


def test_strict_text() -> None:
    row = Struct("n" / u8, "name" / strict)
    assert_stored(row, "07 0300 C3BC62", {"n": 7, "name": "üb"})
    error = parse_error(row, "07 0200 62FF")
    assert str(error) == "name: expected UTF-8 text, found bytes or characters that are not UTF-8"
    assert str(parse_error(row, "07 0300 6162")) == "name: expected 3 bytes, found 2 (at byte 3)"
    error = build_error(row, {"n": 7, "name": "\udcff"})
    assert str(error) == "name: expected text that can be encoded as UTF-8, found '\\udcff'"


def test_text_without_surrogates_is_utf8() -> None:
    assert is_utf8("aü\0")
    assert not is_utf8("a\udcff")
    assert not is_utf8("\ud800")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"ab", "name: expected text, found b'ab'"),
        (None, "name: expected text, found None"),
        ("\ud800", "name: expected text that can be encoded as UTF-8, found '\\ud800'"),
        ("a" * 256, "name: expected at most 255 bytes, found 256"),
    ],
)
def test_values_that_cannot_be_built(value: object, message: str) -> None:
    assert str(build_error(Struct("name" / short), {"name": value})) == message
    assert len(short.build("a" * 255)) == 256


def test_truncated_strings() -> None:
    for stored, message in (
        ("030000", "name: expected 4 bytes, found 3 (at byte 0)"),
        ("05000000 6162", "name: expected 5 bytes, found 2"),
        ("FFFFFFFF 6162", "name: expected 4294967295 bytes, found 2"),
    ):
        error = parse_error(Named, stored)
        assert (type(error), str(error)) == (TruncatedError, message)
