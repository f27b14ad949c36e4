"""Formats without tensors as a user declares them: what is refused, drawn and written of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from construct import Bytes, Const, Default, this
from hypothesis import given
from hypothesis import strategies as st

import glft_schema as glft
from glft_schema.codec import Count, Numbers, Strings, Struct, Table, TypeTable, f16, i32, u8, u16
from glft_schema.describe import schema_of, write
from glft_schema.formats import Format
from glft_schema.testing import containers
from tests.formats.own_formats import registered


def declared(*fields: Any) -> Format:
    return Format("own", (b"OWN",), TypeTable("own", {}), Struct("magic" / Const(b"OWN"), *fields), endings=(".own",))


def built(format: Format, **values: Any) -> bytes:
    with registered(format):
        return glft.Container.build({"format": "own", **values})


PAIR = declared("px" / Default(Numbers(i32, 2), [0, 0]))
WIDE = declared("w" / Default(u8, 0), "h" / Default(u8, 0), "px" / Default(Numbers(u16, this.w * this.h), []))
NAMES = declared("w" / Default(u8, 2), "names" / Default(Strings(u8, this.w), ["a", "b"]), "b" / Default(Bytes(this.w), b"ab"))
ROWS = declared("n" / u8, "rows" / Table(this.n, Struct("px" / Numbers(f16, 2))))


@pytest.mark.parametrize(
    ("format", "values", "problem"),
    [
        (PAIR, {"px": [1]}, "px: expected 2 numbers, found 1"),
        (PAIR, {"px": np.zeros(3, np.int32)}, "px: expected 2 numbers, found 3"),
        (WIDE, {"w": 2, "h": 2, "px": [1, 2, 3]}, "px: expected 4 numbers, found 3"),
        (WIDE, {"w": 2, "h": 2}, "px: expected 4 numbers, found 0"),
        (NAMES, {"names": ["a"]}, "names: expected 2 strings, found 1"),
        (ROWS, {"n": 5, "rows": [{"px": [1, 2]}]}, "rows: expected 5 rows, found 1"),
        (ROWS, {"n": 1, "rows": [{"px": [1, 2, 3]}]}, "rows -> 0 -> px: expected 2 numbers, found 3"),
    ],
)
def test_as_many_elements_as_are_read_must_be_built(format: Format, values: dict[str, Any], problem: str) -> None:
    with pytest.raises(glft.FormatError, match=f"^{problem}$"):
        built(format, **values)


def test_arrays_of_any_shape_and_lists_with_a_count_are_built() -> None:
    assert built(WIDE, w=2, h=1, px=np.array([[1], [2]], np.uint16)) == b"OWN\2\1\1\0\2\0"
    counted = declared("n" / Count(u8, this.px), "px" / Numbers(u8, this.n), "m" / Count(u8, this.s), "s" / Strings(u8, this.m))
    assert built(counted, px=[5, 6], s=["a"]) == b"OWN\2\5\6\1\1a"


@pytest.mark.parametrize("format", [PAIR, WIDE, NAMES, ROWS])
@given(data=st.data())
def test_drawn_files_have_as_many_elements_as_their_counts(format: Format, data: st.DataObject) -> None:
    stored = data.draw(containers(format))
    with registered(format):
        assert glft.Container.build(glft.Container.parse(stored)) == stored


def test_numbers_of_a_constant_count_have_a_size() -> None:
    row = Struct("k" / u16 * "key", "raw" / Numbers(i32, 2) * "counters", "z" / u8 * "end")
    format = declared("n" / Count(u8, this.rows) * "count", "rows" / Table(this.n, row) * "rows")
    assert "## Rows, 11 bytes" in write(schema_of(format), "markdown")
    header = write(schema_of(format), "c")
    assert "    int32_t raw[2];\n" in header
    assert "sizeof(struct own_rows) == 11" in header
    with (
        registered(format),
        pytest.raises(glft.TruncatedError, match=r"n: expected at most 2 \(bytes left: 30, at least 11 each"),
    ):
        glft.Container.parse(b"OWN\3" + bytes(30))
