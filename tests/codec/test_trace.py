"""The bytes of each field."""

from __future__ import annotations

from typing import Any

import pytest
from construct import len_, this

from glft_schema import TruncatedError
from glft_schema.codec.numbers import u8, u16
from glft_schema.codec.structs import Count, Struct
from glft_schema.codec.tables import Table
from glft_schema.codec.text import Text
from glft_schema.codec.trace import FieldSpan, Trace, without_root
from tests.codec.assertions import cursor

Row = Struct("name" / Text(u8), "rank" / u16)
Sheet = Struct("n" / Count(u8, len_(this.rows)), "rows" / Table(this.n, Row), "end" / u8)
STORED = "02  0161 0100  026263 0200  07"  # rows at bytes 1 and 5


def parse(trace: Trace | None, stored: str = STORED, **params: Any) -> None:
    Sheet.parse_stream(cursor(stored), trace=trace, **params)


def test_every_field() -> None:
    trace = Trace()
    parse(trace)
    assert [(span.path, span.start, span.end, span.has_parts) for span in trace.spans] == [
        ("n", 0, 1, False),
        ("rows -> 0 -> name", 1, 3, False),
        ("rows -> 0 -> rank", 3, 5, False),
        ("rows -> 1 -> name", 5, 8, False),
        ("rows -> 1 -> rank", 8, 10, False),
        ("rows", 1, 10, True),
        ("end", 10, 11, False),
    ]
    assert [span.value for span in trace.spans if not span.has_parts] == [2, "a", 1, "bc", 2, 7]


def test_one_field_and_the_name_of_its_row() -> None:
    trace = Trace("rows -> 1 -> rank")
    parse(trace)
    assert trace.find("rows -> 1 -> rank") == FieldSpan("rows -> 1 -> rank", 8, 10, 2)
    assert trace.label("name", "rows -> 1 -> rank") == "bc"
    assert trace.find("rows -> 0 -> rank") is None


def test_the_field_that_is_cut_off() -> None:
    trace = Trace()
    with pytest.raises(TruncatedError):
        parse(trace, "02  0161 0100  026263 02")
    assert [(span.path, span.start, span.end) for span in trace.open] == [("rows", 1, None), ("rows -> 1 -> rank", 8, None)]
    assert trace.label("name", "rows -> 1 -> rank") == "bc"


def test_where_some_fields_begin() -> None:
    trace = Trace("end", "rows -> 1 -> rank", "rows -> 7 -> rank")
    parse(trace)
    assert [span and span.start for span in map(trace.find, trace.wanted)] == [10, 8, None]


def test_only_the_rows_that_are_looked_for_are_traced() -> None:
    trace = Trace("rows -> 1 -> rank")
    assert (list(trace.rows_in("rows", 2)), list(trace.rows_in("rows", 1)), list(trace.rows_in("row", 2))) == ([1], [], [])
    assert list(Trace().rows_in("rows", 2)) == [0, 1]


def test_paths_without_the_root_of_construct() -> None:
    paths = ("(parsing) -> rows -> 1", "(building) -> rows", "(sizeof)", "rows -> 1", None)
    assert [without_root(path) for path in paths] == ["rows -> 1", "rows", "", "rows -> 1", ""]
