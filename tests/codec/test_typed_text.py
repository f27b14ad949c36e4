"""Typed values as lines of text."""

from __future__ import annotations

import pytest

from glft_schema import FormatError, Typed
from glft_schema.codec.typed_text import from_text, from_value_text, to_text
from glft_schema.codec.typed_values import exact
from glft_schema.formats.gguf import VALUE_TYPES


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Typed(-(1 << 63), "int64"), "int64 -9223372036854775808"),
        (True, "bool true"),
        ('a "b" \n ü', 'string "a \\"b\\" \\n \\u00fc"'),
        ("a\udcff", 'string "a\\udcff"'),
        (Typed([], "array[string]"), "array[string] []"),
        ([False, True], "array[bool] [false, true]"),
        ([[1], ["a", "b"]], 'array[array[int32],array[string]] [[1], ["a", "b"]]'),
    ],
)
def test_values_as_text(value: object, text: str) -> None:
    stored = exact(value, VALUE_TYPES, "k")
    assert to_text(stored) == text
    assert from_text(text, VALUE_TYPES, "k") == stored


@pytest.mark.parametrize(
    ("type_", "stored", "text"),
    [
        ("float32", "0100A07F", 'float32 "0x7fa00001"'),
        ("float32", "0000C07F", "float32 NaN"),
        ("float64", "010000000000F47F", 'float64 "0x7ff4000000000001"'),
        ("float32", "00000080", "float32 -0.0"),
        ("float32", "CDCCCC3D", "float32 0.10000000149011612"),
        ("bool", "02", "bool 2"),
    ],
)
def test_every_bit_is_kept(type_: str, stored: str, text: str) -> None:
    field = VALUE_TYPES[type_].field
    assert to_text(Typed(field.parse(bytes.fromhex(stored)), type_)) == text
    assert field.build(from_text(text, VALUE_TYPES, "k").value) == bytes.fromhex(stored)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("uint8", "expected a type and its value, such as uint32 5, found 'uint8'"),
        ("string a", "expected a type and its value, such as uint32 5, found 'string a'"),
        ("uint8 256", "expected an integer in the range of u8, found 256"),
        ('float32 "0x7fa0"', "expected a float32, a number or its bits in hex, found '0x7fa0'"),
        (f"array[int8] {'[' * 100_000}", "expected a type and its value, such as uint32 5, found 'array[int8] [[["),
    ],
)
def test_other_text_is_refused(text: str, problem: str) -> None:
    with pytest.raises(FormatError) as caught:
        from_text(text, VALUE_TYPES, "k")
    assert str(caught.value).startswith(f"k: {problem}")


def test_text_of_a_known_type() -> None:
    for text, type_, value in (("8", "uint8", 8), ('"8"', "string", '"8"'), ("1", "float32", 1), ("[1]", "array[int8]", [1])):
        stored = from_value_text(text, type_, VALUE_TYPES, "k")
        assert (stored.plain(), stored.type) == (value, type_)


@pytest.mark.parametrize(
    ("text", "type_", "expected"),
    [("256", "uint8", "a uint8"), ("x", "int8", "an int8"), ("1", "array[int8]", "an array[int8]"), ("2.5", "bool", "a bool")],
)
def test_text_that_is_no_value_of_the_type(text: str, type_: str, expected: str) -> None:
    with pytest.raises(FormatError) as caught:
        from_value_text(text, type_, VALUE_TYPES, "k")
    assert str(caught.value) == f"k: expected {expected}, found {text!r}"
