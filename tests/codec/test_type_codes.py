"""Tables of types, and fields that hold the code of a type."""

from __future__ import annotations

import pickle
from functools import cache
from threading import Thread

import pytest

from glft_schema.codec.numbers import u8, u16
from glft_schema.codec.structs import Struct
from glft_schema.codec.type_codes import TypeCode, TypeTable
from glft_schema.codec.typed_values import ValueType
from tests.codec.assertions import assert_stored, build_error, parse_error

BYTE, WORD, OTHER = ValueType("BYTE", 1, u8), ValueType("WORD", 7, u16), ValueType("OTHER", 9, u8)
TYPES = TypeTable("test", BYTE, WORD)


@cache
def unknown(code: int) -> ValueType:
    return ValueType(f"TYPE_{code}", code, u8)


OPEN = TypeTable("open test", ValueType("KNOWN", 2, u8), unknown=unknown)


def test_types_by_code_name_and_themselves() -> None:
    for key in (7, "WORD", "word", WORD):
        assert TYPES[key] is WORD
    for key in (0, -1, "Word", True, None, [1], OTHER):
        assert key not in TYPES
    assert list(TYPES) == [BYTE, WORD]


def test_a_code_or_name_that_is_taken() -> None:
    for name, code, taken in (("NEW", 7, "7"), ("BYTE", 9, "'BYTE'"), ("Byte", 9, "'byte'")):
        problem = f"expected an unused code and an unused name, found {taken}, used by (BYTE|WORD)"
        with pytest.raises(ValueError, match=f"^{problem}$"):
            TYPES.add(ValueType(name, code, u8))
    assert list(TYPES) == [BYTE, WORD]


def test_a_table_that_makes_types_of_unknown_codes() -> None:
    assert OPEN[9] is OPEN[unknown(9)] is unknown(9)
    for key in (-1, True, "TYPE_9", OTHER):
        assert key not in OPEN
    assert [type_.name for type_ in OPEN] == ["KNOWN"]


def test_types_that_are_added_at_the_first_miss() -> None:
    late, found = ValueType("LATE", 9, u8), list[ValueType]()
    other = Thread(target=lambda: found.append(table["LATE"]))

    def add() -> None:
        assert 9 not in table  # not yet, and not by another call
        other.start()
        other.join(0.1)  # it waits
        table.add(late)

    table = TypeTable("late test", BYTE, more=add)
    assert table[1] is BYTE
    assert table.more is add
    found.append(table[9])
    assert "LONG" not in table
    other.join()
    assert found == [late, late]


def test_a_field_that_holds_a_code() -> None:
    assert_stored(TypeCode(u8, TYPES), "07", WORD, size=1)
    assert_stored(TypeCode(u16, TYPES), "00 07", WORD, size=2, byte_order="big")
    assert_stored(TypeCode(u8, OPEN), "09", unknown(9), size=1)
    for key in (7, "WORD", "word"):
        assert TypeCode(u8, TYPES).build(key) == b"\x07"


def test_a_code_or_name_of_no_type() -> None:
    row = Struct("n" / u8, "type" / TypeCode(u8, TYPES))
    assert str(parse_error(row, "00 02")) == "type: expected a test type (1 BYTE, 7 WORD), found 2"
    assert str(build_error(row, {"n": 0, "type": "LONG"})) == "type: expected a test type (1 BYTE, 7 WORD), found 'LONG'"


def test_pickles_are_the_same_types_again() -> None:
    for type_ in (WORD, TYPES, OPEN):
        assert pickle.loads(pickle.dumps(type_)) is type_
    with pytest.raises(TypeError, match=r"^cannot pickle the type OTHER: it is not in any table of types$"):
        pickle.dumps(OTHER)
