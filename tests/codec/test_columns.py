"""Rows by column: equal to rows parsed one by one, whatever the bytes."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from construct import Const, Default, Int16ub, Switch, len_, this
from hypothesis import given, settings
from hypothesis import strategies as st

from glft_schema import Container
from glft_schema.codec.columns import Rows, column, kinds
from glft_schema.codec.context import ByteOrder
from glft_schema.codec.numbers import Picked, Sizes, f32, i8, u8, u16, u32
from glft_schema.codec.predicates import at_most, differs_from, meets
from glft_schema.codec.rules import Rule
from glft_schema.codec.structs import Count, Derived, Struct
from glft_schema.codec.tables import Table
from glft_schema.codec.text import Text
from glft_schema.codec.type_codes import TypeCode
from glft_schema.formats.gguf import VALUE_TYPES
from glft_schema.tensors.region import gaps_between
from tests.codec.test_fast_rows import BYTES, ORDERS, assert_paths_agree, parse, sheet
from tests.golden import golden
from tests.tools.depth import FULL

wide = Picked(this._root.is_wide == 1, u16, u8)
COLUMNS = {
    "repeated fields between others": Struct(
        "name" / Text(u8),
        "sizes" / Sizes(u8, wide, "dims"),
        "reversed" / Derived(len_(this.sizes) + this._root.is_wide),
        "type" / TypeCode(u8, VALUE_TYPES),
        "ratio" / f32,
        Rule("sizes", len_(this.sizes), at_most(2, "sizes")),
        Rule("name", len_(this.name), at_most(3, "characters")),
    ),
    "repeated fields alone": Struct("type" / TypeCode(u8, VALUE_TYPES)),
    "repeated fields apart": Struct("sizes" / Sizes(u8, u8, "dims"), "number" / Default(i8, 1), "more" / Sizes(u8, u8, "dims")),
    "a constant": Struct("sizes" / Sizes(u8, u8, "dims"), "five" / Derived(5), "big" / Int16ub),
    "a count": Struct("n" / Count(u8, len_(this.sizes)), "sizes" / Sizes(u8, u8, "dims")),
    "a rule on the file": Struct(
        "sizes" / Sizes(u8, u8, "dims"), Rule("x", this._root.is_wide, differs_from(1, "0"), field="sizes")
    ),
}
ROWS = {
    "a constant without a name": Struct("sizes" / Sizes(u8, u8, "dims"), Const(b"\0")),
    "a number without a name": Struct("sizes" / Sizes(u8, u8, "dims"), Int16ub),
    "no repeated field": Struct("name" / Text(u8)),
    "a rule on both kinds": Struct("a" / u8, "sizes" / Sizes(u8, u8, "dims"), Rule("x", len_(this.sizes) + this.a, at_most(9))),
    "a value of both kinds": Struct("a" / u8, "sizes" / Sizes(u8, u8, "dims"), "sum" / Derived(len_(this.sizes) + this.a)),
    "a value of another kind": Struct("a" / u8, "sizes" / Sizes(u8, u8, "dims"), "twice" / Derived(this.a * 2)),
    "a function": Struct("sizes" / Sizes(u8, u8, "dims"), Rule("x", this.sizes, meets(lambda at: len(at.sizes) < 3, "short"))),
    "a switch by the row": Struct(
        "is_wide" / u8, "sizes" / Sizes(u8, u8, "dims"), "value" / Switch(this.is_wide, {0: u8, 1: u16})
    ),
    "a switch by a function": Struct(
        "a" / u8, "sizes" / Sizes(u8, u8, "dims"), "value" / Switch(lambda at: at.get("a", 0), {0: u8, 1: u16})
    ),
    "codes of a switch": Struct(
        "a" / u8, "type" / TypeCode(Switch(lambda at: at.get("a", 0), {0: u8}, default=u16), VALUE_TYPES)
    ),
    "codes of two widths": Struct("sizes" / Sizes(u8, u8, "dims"), "type" / TypeCode(wide, VALUE_TYPES)),
    "a part": Struct("sizes" / Sizes(u8, u8, "dims"), "part" / Struct("a" / u8)),
}


@pytest.mark.fuzz
@pytest.mark.parametrize("row", [*COLUMNS.values(), *ROWS.values()], ids=[*COLUMNS, *ROWS])
@settings(max_examples=settings.default.max_examples // 5)
@given(stored=st.lists(st.sampled_from(BYTES), max_size=40).map(bytes), is_wide=st.sampled_from([0, 1]), order=ORDERS)
def test_columns_are_the_rows(row: Struct, stored: bytes, is_wide: int, order: ByteOrder) -> None:
    for count in (1, 4):
        assert_paths_agree(partial(parse, sheet(row), bytes([is_wide, count]) + stored, order))


@pytest.mark.parametrize("row", [*COLUMNS.values(), *ROWS.values()], ids=[*COLUMNS, *ROWS])
def test_columns_are_taken_of_independent_fields(row: Struct) -> None:
    parsed = parse(sheet(row), bytes([0, 2]) + bytes(40), "little")
    assert type(parsed.rows) is (Rows if row in COLUMNS.values() else list)


def test_a_long_table_with_few_kinds() -> None:
    """Rows that end in two windows are parsed in full, in between the others."""
    row = Struct("name" / Text(u8), "sizes" / Sizes(u8, u32, "dims"), "at" / u32)
    declared = Struct("count" / Count(u16, len_(this.rows)), "rows" / Table(this.count, row))
    count = 10_000 if FULL else 5_000
    rows = [{"name": f"row {i}" * (1 + i % 3), "sizes": [i % 2] * (i % 4), "at": i} for i in range(count)]
    parsed = Struct("inner" / declared).parse(Struct("inner" / declared).build({"inner": {"rows": rows}}))
    assert type(parsed.inner.rows) is list  # not from a file
    stored = declared.build({"rows": rows})
    assert_paths_agree(partial(parse, declared, stored, "little"))
    found = parse(declared, stored, "little").rows
    assert (found, len(found), len(found.kinds) < 20) == (rows, count, True)


@pytest.fixture
def table() -> Rows:
    table = Container.parse(golden("four_types")).descriptors
    assert isinstance(table, Rows)
    return table


def test_rows_are_a_sequence(table: Rows) -> None:
    rows = list(table)
    assert [row.name for row in rows] == list(column(table, "name")) == list(column(rows, "name"))
    assert (table[0], table[-1], table[1:], table[::-2]) == (rows[0], rows[-1], rows[1:], rows[::-2])
    assert table == rows == table
    assert table == table[:]
    assert table != rows[1:]
    assert table != "rows"
    assert repr(table) == f"<Rows: {len(rows)} rows>"
    assert rows[1] in table
    for at in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError):
            table[at]


def test_copies_of_rows_are_lists(table: Rows) -> None:
    for copied in (pickle.loads(pickle.dumps(table)), copy.deepcopy(table)):
        assert (type(copied), copied) == (list, list(table))


def test_a_changed_row_changes_no_other(table: Rows) -> None:
    before = [list(row.dims) for row in table]
    for row in table:
        row.dims.append(7)
    assert [row.dims for row in table] == before


@pytest.mark.parametrize("names", [("dtype", "shape"), ("offset",), ("name", "dtype")])
def test_kinds_are_the_values_of_rows(table: Rows, names: tuple[str, ...]) -> None:
    for rows in (table, list(table)):
        number, values = kinds(rows, *names)
        assert [values[kind] for kind in number] == [tuple(row[name] for name in names) for row in table]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), max_size=5), st.integers(0, 16))
def test_gaps_are_the_bytes_of_no_span(spans: list[tuple[int, int]], size: int) -> None:
    owners: list[Any] = [[i for i, (at, nbytes) in enumerate(spans) if at <= byte < at + nbytes] for byte in range(16)]
    whole = [at for at, nbytes in spans if nbytes]
    expected = whole == sorted(whole) and all(len(owner) <= 1 for owner in owners) and not any(owners[size:])
    gaps = gaps_between(spans, size)
    assert (gaps is not None) == expected
    if gaps is not None:
        assert [byte for at, nbytes in gaps for byte in range(at, at + nbytes)] == [i for i in range(size) if not owners[i]]
        assert all(nbytes > 0 for _, nbytes in gaps)
        assert all(one + nbytes < other for (one, nbytes), (other, _) in pairwise(gaps))
