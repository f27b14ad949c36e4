"""Tables, nested arrays, and unique names."""

from __future__ import annotations

from construct import len_, this

from glft_schema import LimitError, Limits, TruncatedError
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
    assert str(error) == "rows -> 1 -> rank: expected a number in the range of u16, found -1"


def test_a_count_that_is_too_large_for_the_bytes_left() -> None:
    """A row takes at least three bytes: an empty name and a rank."""
    error = parse_error(Sheet, "FF 0161 0100 0162 02")
    assert type(error) is TruncatedError
    assert str(error) == "n: expected at most 2 (bytes left: 7, at least 3 each), found 255"


def test_the_limit_on_objects() -> None:
    """The limit counts the rows of all tables of a container."""
    two = Struct("first" / Sheet, "second" / Sheet)
    value = {"first": {"rows": [{"name": "a", "rank": 1}]}, "second": {"rows": [{"name": "b", "rank": 2}]}}
    stored = "01 0161 0100 01 0162 0200"
    assert_stored(two, stored, value, limits=Limits(objects=2))
    for error in (parse_error(two, stored, limits=Limits(objects=1)), build_error(two, value, limits=Limits(objects=1))):
        assert type(error) is LimitError
        problem = "expected at most 1 tensors, entries and arrays (a limit of glft_schema), found 2"
        assert str(error) == f"second -> rows: {problem} (limit objects)"


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


def test_nesting_over_the_limit() -> None:
    assert_stored(tree, "01 00", {"of": [LEAF]}, limits=Limits(nesting=2))
    problem = "of -> 0 -> of -> 0: expected at most 2 levels of arrays (a limit of glft_schema), found 3"
    error = parse_error(tree, "01 01 00", limits=Limits(nesting=2))
    assert (type(error), str(error)) == (LimitError, f"{problem} (limit nesting, at byte 2)")
    error = build_error(tree, {"of": [{"of": [LEAF]}]}, limits=Limits(nesting=2))
    assert (type(error), str(error)) == (LimitError, f"{problem} (limit nesting)")
