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
from glft_schema.codec.trace import Trace
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


def test_the_field_that_is_cut_off() -> None:
    trace = Trace()
    with pytest.raises(TruncatedError):
        parse(trace, "02  0161 0100  026263 02")
    assert [(span.path, span.start, span.end) for span in trace.open] == [("rows", 1, None), ("rows -> 1 -> rank", 8, None)]
    assert trace.label("name", "rows -> 1 -> rank") == "bc"
