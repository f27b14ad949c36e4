"""Metadata as lines of text."""

from __future__ import annotations

import pytest
from construct import this

from glft_schema import FormatError
from glft_schema.codec.metadata_lines import KeyValueLines, TextMetadata
from glft_schema.codec.numbers import u8
from glft_schema.codec.structs import Count, Struct
from tests.codec.assertions import assert_stored, build_error, parse_error

lines = KeyValueLines(this._params.size)
File = Struct("size" / Count(u8, lambda at: len(KeyValueLines.encode(at.metadata))), "metadata" / KeyValueLines(this.size))


def test_lines() -> None:
    assert_stored(File, "00", {"metadata": TextMetadata()})
    for stored, entries in (
        (b"b=2\na=", {"b": "2", "a": ""}),
        (b"a==b=c ", {"a": "=b=c "}),
        (b" a\r=\xc3\xbc\0\r", {" a\r": "ü\0\r"}),
    ):
        assert list(lines.parse(stored, size=len(stored)).items()) == list(entries.items())
        assert lines.build(entries) == stored
    assert File.build({"metadata": {"a": "ü"}}) == b"\4a=\xc3\xbc"


def test_a_newline_at_the_end_is_kept() -> None:
    parsed = lines.parse(b"a=1\nb=2\n", size=8)
    assert parsed.trailing_newline
    assert dict(parsed) == {"a": "1", "b": "2"}
    assert lines.build(parsed) == b"a=1\nb=2\n"
    assert lines.build(dict(parsed)) == b"a=1\nb=2"


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (b"=1", "metadata -> line 1: expected key=value, found b'=1' (at byte 1)"),
        (b"a=1\n\n", "metadata -> line 2: expected key=value, found b'' (at byte 5)"),
        (b"a=1\na=2", "metadata -> line 2: expected unique keys, found 'a' again (key 'a', at byte 5)"),
        (b"a=1\nb=x\xff", "metadata -> line 2: expected UTF-8, found b'\\xff' (key 'b', at byte 8)"),
        (b"\xff=1", "metadata -> line 1: expected UTF-8, found b'\\xff=1' (at byte 1)"),
    ],
)
def test_bad_lines(stored: bytes, message: str) -> None:
    error = parse_error(File, (bytes([len(stored)]) + stored).hex())
    assert (type(error), str(error)) == (FormatError, message)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"": "1"}, "expected a non-empty key without '=' or newline, found ''"),
        ({"a": "1\n"}, "expected a value without newlines for 'a', found '1\\n'"),
        ({"a": 1}, "expected text for key and value, found 'a': 1"),
        ({"a": "\udcff"}, "expected text that can be encoded as UTF-8, found 'a': '\\udcff'"),
        ([("a", "1")], "expected a mapping of text to text, found [('a', '1')]"),
    ],
)
def test_entries_that_would_not_read_back(entries: object, message: str) -> None:
    assert str(build_error(lines, entries)) == message
