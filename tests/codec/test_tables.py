"""Tables, nested arrays, and unique names."""

from __future__ import annotations

from construct import len_, this

from glft_schema import TruncatedError
from glft_schema.codec.numbers import u8, u16
from glft_schema.codec.structs import Count, Struct
from glft_schema.codec.tables import NamesOnce, Nested, Table
from glft_schema.codec.text import Text
from tests.codec.assertions import assert_stored, build_error, parse_error

Row = Struct("name" / Text(u8), "rank" / u16)
Sheet = Struct("n" / Count(u8, len_(this.rows)), "rows" / Table(this.n, Row), NamesOnce("names-once", "rows"))
tree = Nested(lambda below: Struct("n" / Count(u8, len_(this.of)), "of" / Table(this.n, below)))
LEAF: dict[str, object] = {"of": []}


def test_a_table() -> None:
    rows = [{"name": "a", "rank": 1}, {"name": "bc", "rank": 2}]
    assert_stored(Sheet, "00", {"rows": []})
    assert_stored(Sheet, "02 0161 0100 026263 0200", {"rows": rows})
    assert_stored(Sheet, "02 0161 0001 026263 0002", {"rows": rows}, byte_order="big")


def test_errors_name_the_row() -> None:
    error = parse_error(Sheet, "02 0161 0100 0162 02")
    assert (type(error), str(error)) == (TruncatedError, "rows -> 1 -> rank: expected 2 bytes, found 1 (at byte 7)")
    error = build_error(Sheet, {"rows": [{"name": "a", "rank": 1}, {"name": "b", "rank": -1}]})
    assert str(error) == "rows -> 1 -> rank: expected an integer in the range of u16, found -1"


def test_a_count_that_is_too_large_for_the_bytes_left() -> None:
    """A row takes at least three bytes: an empty name and a rank."""
    error = parse_error(Sheet, "FF 0161 0100 0162 02")
    assert type(error) is TruncatedError
    assert str(error) == "n: expected at most 2 (bytes left: 7, at least 3 each), found 255"


def test_duplicate_names() -> None:
    message = "rows -> 2 -> name: expected each name once, found the name of row 0 again"
    rows = [{"name": "a", "rank": 1}, {"name": "b", "rank": 1}, {"name": "a", "rank": 2}]
    for error in (parse_error(Sheet, "03 0161 0100 0162 0100 0161 0200"), build_error(Sheet, {"rows": rows})):
        assert (error.rule, str(error)) == ("names-once", message)


def test_another_key_than_the_name() -> None:
    ranks = Struct("rows" / Table(2, Row), NamesOnce("ranks-once", "rows", key="rank"))
    error = parse_error(ranks, "0161 0100 0162 0100")
    assert str(error) == "rows -> 1 -> rank: expected each rank once, found the rank of row 0 again"


def test_nested_arrays() -> None:
    assert_stored(tree, "00", LEAF)
    assert_stored(tree, "02 00 01 00", {"of": [LEAF, {"of": [LEAF]}]})
    error = parse_error(tree, "02 00 02 00")
    assert str(error) == "of -> 1 -> n: expected at most 1 (bytes left: 1, at least 1 each), found 2"
