"""Typed key-values as a mapping."""

from __future__ import annotations

import pytest
from construct import Switch, this

from glft_schema import FormatError
from glft_schema.codec.metadata import KeyValues, TypedMetadata
from glft_schema.codec.numbers import f32, u8, u32
from glft_schema.codec.structs import Count, Struct
from glft_schema.codec.tables import Table
from glft_schema.codec.text import Text
from glft_schema.codec.type_codes import TypeCode, TypeTable
from glft_schema.codec.typed_values import Typed, ValueType
from tests.codec.assertions import assert_stored, cursor, parse_error

NUMBERS = (ValueType("uint8", 0, u8), ValueType("uint32", 1, u32), ValueType("float32", 2, f32))
TYPES = TypeTable[ValueType]("value of test_metadata", *NUMBERS, ValueType("string", 3, Text(u8)))
Entry = Struct("key" / Text(u8), "type" / TypeCode(u8, TYPES), "value" / Switch(this.type, {t: t.field for t in TYPES}))
File = Struct("n" / Count(u8, lambda at: len(at.metadata)), "metadata" / KeyValues(Table(this.n, Entry), TYPES, once="once"))
STORED = "02 0161 00 07 0162 03 03 78C3BC"  # a is the uint8 7, b a string of three bytes


def parsed(stored: str = STORED) -> TypedMetadata:
    metadata: TypedMetadata = File.parse_stream(cursor(stored)).metadata
    return metadata


def typed(metadata: TypedMetadata) -> dict[str, tuple[object, str]]:
    return {key: (value, metadata.type_of(key)) for key, value in metadata.items()}


def test_key_values_in_both_byte_orders() -> None:
    assert_stored(File, "00", {"metadata": {}})
    assert_stored(File, "02 0161 01 05000000 0162 03 0178", {"metadata": {"a": 5, "b": "x"}})
    assert_stored(File, "01 0161 01 00000005", {"metadata": {"a": 5}}, byte_order="big")
    assert_stored(File, "01 01FF 03 02 61FE", {"metadata": {"\udcff": "a\udcfe"}})


def test_parsed_metadata_keep_types_and_order() -> None:
    assert list(typed(parsed()).items()) == [("a", (7, "uint8")), ("b", ("xü", "string"))]
    assert File.build({"metadata": parsed()}) == bytes.fromhex(STORED)


def test_a_duplicate_key() -> None:
    error = parse_error(File, "02 0161 00 07 0161 00 08")
    assert str(error) == "metadata -> 1 -> key: expected each key once, found the key of row 0 again"
    assert error.rule == "once"


def test_a_key_that_stays_keeps_its_type() -> None:
    changed = parsed() | {"a": 8, "c": 8}
    assert typed(changed) == {"a": (8, "uint8"), "b": ("xü", "string"), "c": (8, "uint32")}
    assert typed(parsed() | {"a": Typed(8, "float32")})["a"] == (8.0, "float32")
    with pytest.raises(FormatError, match=r"^metadata -> a: expected an integer in the range of u8, found 256$"):
        parsed() | {"a": 256}


def test_text_is_parsed_as_the_type_that_it_replaces() -> None:
    changed = parsed() | {"a": "8", "b": "8", "c": "8"}
    assert typed(changed) == {"a": (8, "uint8"), "b": ("8", "string"), "c": ("8", "string")}


def test_equality() -> None:
    assert parsed() == parsed("02 0162 03 03 78C3BC 0161 00 07") == {"b": "xü", "a": 7.0}
    for other in ({"a": 7}, {"a": 7, "b": "y"}, {"a": 7, "c": "xü"}, [("a", 7), ("b", "xü")]):
        assert parsed() != other


def test_numbers_of_float32_are_shown_with_the_fewest_digits() -> None:
    metadata = parsed("01 0161 02 ACC52737")
    assert metadata["a"] == 9.999999747378752e-06
    assert repr(metadata) == "<Metadata: 1 entry, a 1e-05>"
