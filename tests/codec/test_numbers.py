"""Numbers, tensors of numbers, and byte order."""

from __future__ import annotations

from typing import Any

import construct
import pytest

from glft_schema import TruncatedError
from glft_schema.codec.context import BIG, LITTLE
from glft_schema.codec.numbers import ByteOrderOf, Number, Sizes, bf16, f16, f32, f64, i8, i16, i64, u8, u16, u32
from glft_schema.codec.structs import Struct
from glft_schema.errors import quote
from glft_schema.tensor_types.conversions import float32_of
from tests.codec.assertions import assert_stored, build_error, cursor, parse_error

sizes = Sizes(u8, u32, "dims")


def test_numbers_in_both_byte_orders() -> None:
    for field, little, big, number in (
        (u16, "02 01", "01 02", 0x0102),
        (i16, "FE FF", "FF FE", -2),
        (i64, "00 00 00 00 00 00 00 80", "80 00 00 00 00 00 00 00", -(1 << 63)),
        (f16, "00 3C", "3C 00", 1.0),
        (f32, "00 00 20 C0", "C0 20 00 00", -2.5),
        (f64, "9A 99 99 99 99 99 B9 3F", "3F B9 99 99 99 99 99 9A", 0.1),
    ):
        assert_stored(field, little, number, size=field.itemsize)
        assert_stored(field, big, number, size=field.itemsize, byte_order="big")


@pytest.mark.parametrize(("field", "value"), [(u8, 256), (u8, -1), (i8, 128), (u16, 1.0), (u8, True), (f16, 65520)])
def test_a_number_that_does_not_fit(field: Number, value: object) -> None:
    assert f16.build(65519) == bytes.fromhex("FF7B")  # rounded to 65504, the largest
    message = f"a: expected {'a number' if field.is_float else 'an integer'} in the range of {field}, found {value}"
    assert str(build_error(Struct("a" / field), {"a": value})) == message


def test_tensors_in_both_byte_orders() -> None:
    for field, little, big, numbers in (
        (f16[2, 2], "003C 0040 0042 0044", "3C00 4000 4200 4400", [[1, 2], [3, 4]]),
        (bf16[1], "803F", "3F80", [1]),
        (i16[0], "", "", []),
        (i16[()], "FEFF", "FFFE", -2),
    ):
        for stored, order in ((little, "little"), (big, "big")):
            tensor = field.parse_stream(cursor(stored), byte_order=order)
            assert float32_of(tensor).tolist() == numbers
            assert field.build(tensor, byte_order=order) == bytes.fromhex(stored)


def test_the_byte_order_is_detected_and_holds_for_what_follows() -> None:
    header = Struct("order" / ByteOrderOf(u32), "version" / u32)
    assert_stored(header, "03 00 00 00", {"order": "little", "version": 3}, size=4)
    assert_stored(header, "00 00 00 03", {"order": "big", "version": 3}, size=4)


@pytest.mark.parametrize(
    ("declared", "value", "expected"), [(u32, "up", "'little' or 'big'"), (BIG, LITTLE, "'big'"), (LITTLE, BIG, "'little'")]
)
def test_another_byte_order(declared: Any, value: str, expected: str) -> None:
    error = build_error(Struct("order" / ByteOrderOf(declared), "version" / u32), {"order": value, "version": 3})
    assert str(error) == f"order: expected {expected}, found '{value}'"


@pytest.mark.parametrize("number", [u16, "middle", 4, construct.Int32ub])
def test_byte_orders_that_cannot_be_declared(number: Any) -> None:
    expected = "^expected BIG, LITTLE or the next number, of 4 or 8 bytes such as u32, found "
    with pytest.raises(TypeError, match=f"{expected}{quote(number)}$"):
        ByteOrderOf(number)


def test_sizes_after_their_count() -> None:
    assert_stored(sizes, "00", [])
    assert_stored(sizes, "02 03000000 05000000", [3, 5])
    assert_stored(sizes, "02 00000003 00000005", [3, 5], byte_order="big")
    assert type(parse_error(sizes, "03 03000000 0500")) is TruncatedError
