"""The context of a field: other fields, parameters, limits and the byte order."""

from __future__ import annotations

import construct
from construct import this

from glft_schema.codec.context import new_context
from glft_schema.codec.numbers import u8, u16
from glft_schema.codec.structs import Derived, Struct
from tests.codec.assertions import cursor

Inner = Struct("b" / u8, "seen" / Derived(lambda at: [at._.a, at._root.a, at.b, at["b"], at._params.given]))
Outer = Struct("a" / u8, "inner" / Inner)


def test_fields_see_each_other_and_the_parameters() -> None:
    for record in (Outer.parse(b"\x01\x02", given=9), Outer._parse(cursor("01 02"), new_context(True, given=9), "(parsing)")):
        assert record == {"a": 1, "inner": {"b": 2}}
        assert record.inner.seen == [1, 1, 2, 2, 9]
    assert Outer.build({"a": 1, "inner": {"b": 2}}, given=9) == b"\x01\x02"


def test_fields_in_a_struct_of_construct() -> None:
    theirs = construct.Struct("a" / u16, "inner" / Inner, "c" / construct.Computed(this.inner.b))
    parsed = theirs.parse(b"\x00\x01\x02", byte_order="big", given=9)
    assert (parsed.a, parsed.inner, parsed.inner.seen, parsed.c) == (1, {"b": 2}, [1, 1, 2, 2, 9], 2)
    assert theirs.build({"a": 1, "inner": {"b": 2}}, given=9) == b"\x01\x00\x02"
