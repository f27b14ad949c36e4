"""Rows by column: equal to rows parsed in full, whatever the bytes, and really read by column."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import construct
import numpy as np
import pytest
from construct import Const, Default, GreedyBytes, Int8sb, Int8ul, Int16ub, Int16ul, PascalString, Switch, len_, this
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glft_schema import Container, FormatError, Limits
from glft_schema.codec.columns import Rows, column
from glft_schema.codec.context import BIG, LITTLE, ByteOrder, new_context
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.numbers import Number, Picked, Sizes, f32, i8, i16, u8, u16, u32
from glft_schema.codec.predicates import at_most, differs_from, meets
from glft_schema.codec.records import Record
from glft_schema.codec.rules import Check, Rule
from glft_schema.codec.structs import Count, Derived, Struct
from glft_schema.codec.tables import Table
from glft_schema.codec.text import Text
from glft_schema.codec.type_codes import TypeCode
from glft_schema.codec.typed_values import Typed
from glft_schema.files.parsing import starts_of
from glft_schema.formats.gguf import VALUE_TYPES
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.source import BytesSource
from glft_schema.tensors.region import TensorMap
from glft_schema.testing.fuzzing import damaged_files
from tests.golden import golden
from tests.oracles import glft_reference as reference
from tests.oracles.gguf_reference import File, Info
from tests.oracles.glft_reference import Row
from tests.tools import gguf_strategies
from tests.tools import glft_strategies as strategies
from tests.tools.depth import FULL, in_full, some

BYTES = [0, 1, 2, 3, 9, 10, 97, 200, 255]
ORDERS: st.SearchStrategy[ByteOrder] = st.sampled_from([LITTLE, BIG])
LIMITS = st.fixed_dictionaries({}, optional={name: st.integers(0, 9) for name in ("dims", "text", "strings", "objects")})


def exactly(value: Any) -> Any:
    """Returns a parsed value in a form that is equal only if types and bits are equal."""
    if isinstance(value, Record):
        return "record", exactly(dict(value)), exactly(dict(value.counts))
    if isinstance(value, dict):
        return [(name, exactly(part)) for name, part in value.items() if name != "_io"]
    if isinstance(value, TypedMetadata):
        return [(key, exactly(value.stored_value(key))) for key in value]
    if isinstance(value, Typed):
        is_array = value.is_array
        return value.type, [exactly(element) for element in value.value] if is_array else exactly(value.value)
    if isinstance(value, (list, tuple, Rows)):
        return list if isinstance(value, Rows) else type(value), [exactly(part) for part in value]
    if isinstance(value, TensorMap):
        return [exactly(vars(tensor)["_source"].size) for tensor in value.values()], value.places(), value.gaps, value.order
    if isinstance(value, np.generic):
        return value.dtype.str, value.tobytes()
    return type(value), repr(value)


def outcome(parse: Callable[[], Any]) -> Any:
    try:
        return exactly(parse())
    except Exception as error:  # of any class: some declarations below are wrong
        return type(error), str(error), vars(error)


def assert_paths_agree(parse: Callable[[], Any]) -> Any:
    """Asserts that the full parse alone has the same outcome, and returns this."""
    fast = outcome(parse)
    with patch("glft_schema.codec.tables.column_reader", return_value=None):
        assert fast == outcome(parse)
    return fast


def assert_files_agree(stored: bytes, limits: dict[str, int] | None = None) -> None:
    def parse() -> Any:
        with Limits(**limits or {}):
            file = Container.parse(stored)
        return dict(file.regions), starts_of(file, file.format.regions)

    assert_paths_agree(parse)


files = st.one_of(
    strategies.files().map(lambda made: made[0]),
    gguf_strategies.files().map(lambda file: file.bytes()),
    gguf_strategies.loose_files(),
)


@pytest.mark.fuzz
@settings(max_examples=settings.default.max_examples // 4)
@given(files, st.one_of(st.just({}), LIMITS))
def test_whole_files(stored: bytes, limits: dict[str, int]) -> None:
    assert_files_agree(stored, limits)


@pytest.mark.fuzz
@settings(max_examples=settings.default.max_examples // 2)
@given(files.flatmap(damaged_files), st.one_of(st.just({}), LIMITS))
def test_damaged_files(case: Any, limits: dict[str, int]) -> None:
    assert_files_agree(case.stored, limits)


@pytest.mark.parametrize("name", ["four_types", "loose_layout", "gguf_little", "gguf_big"])
def test_every_truncation(name: str) -> None:
    whole = golden(name)
    for end in some(range(len(whole) + 1), 3):
        assert_files_agree(whole[:end])


# The fast path is taken


def long_table(format: str, count: int) -> bytes:
    if format == "glft":
        return reference.back_to_back(b"", [Row(f"t{i}", [1], reference.F32, bytes(4)) for i in range(count)])
    return File([], [Info(b"t%d" % i, [1], 24, b"a") for i in range(count)], None, 3, format).bytes()


@pytest.mark.parametrize("format", ["glft", "<", in_full(">")])
def test_a_table_in_several_windows_is_read_by_column(format: str) -> None:
    count = 5000 if FULL else 3600
    file = Container.parse(stored := long_table(format, count))
    rows = file.regions[file.format.table]
    assert file.data.start > Cursor.WINDOW
    assert (type(rows), [*column(rows, "name")]) == (Rows, [f"t{i}" for i in range(count)])
    assert_files_agree(stored)


def test_a_bug_in_a_reader_is_raised() -> None:
    with (
        patch("glft_schema.codec.columns._text_reader", lambda text, context: lambda stored, at: 1 // 0),
        pytest.raises(ZeroDivisionError),
    ):
        Container.parse(golden("four_types"))


# Custom tables


class Doubled(Number):
    def _parse(self, stream: Any, context: Any, path: str) -> int:
        return 2 * int(super()._parse(stream, context, path))


class Strict(Check):
    def _parse(self, stream: Any, context: Any, path: str) -> None:
        if context.a > 9:
            raise FormatError(f"expected at most 9, found {context.a}", path)

    def check(self, context: Any, path: str) -> None:
        """Finds nothing."""


A, SIZES = "a" / u8, "sizes" / Sizes(u8, u8, "dims")
OTHERS = {
    "a class with its own parse": Struct(A, "b" / Doubled("doubled", "u2")),
    "a hook": Struct("a" / u8 * (lambda value, context: context._root.update(hooked=value))),
    "picked by the row": Struct(A, "b" / Picked(this.a > 9, u8, u16)),
    "picked by a function": Struct(A, "b" / Picked(lambda at: at.get("a", 100) > 9, u8, u16)),
    "looks at the stream": Struct(A, "b" / Derived(lambda at: at._io.tell())),
    "looks at the field after": Struct("a" / Derived(lambda at: at.get("b", 0)), "b" / u8),
    "a length below zero": Struct("a" / PascalString(Int8sb, "utf8"), "b" / Int8ul),
    "a length that counts itself": construct.StringEncoded(construct.Prefixed(Int8ul, GreedyBytes, includelength=True), "utf8"),
    "a length of something else": construct.StringEncoded(construct.Prefixed(Int8ul, construct.Bytes(1)), "utf8"),
    "a count below zero": Struct("a" / Sizes(i8, u16, "dims")),
    "signed sizes": Struct("a" / Sizes(u8, i16, "dims")),
    "an array": Struct("a" / u8[2]),
    "three bytes": Struct("a" / construct.Int24ul, construct.Padding(1)),
    "a check with its own parse": Struct(A, Strict("strict", "a")),
    "without a name": Struct(A, construct.If(this.a > 9, Int8ul), Derived(this.a)),
    "a default case": Struct("a" / Switch(this._root.is_wide, {0: u8}, default=Int16ub)),
    "construct's Struct": construct.Struct("a" / Int8ul, "b" / Int16ul),
    "no Struct": PascalString(Int8ul, "utf8"),
    "a name": "named" / Text(u8),
    "no bytes": Struct(),
}


def sheet(row: construct.Construct) -> Struct:
    return Struct("is_wide" / u8, "count" / Count(u8, len_(this.rows)), "rows" / Table(this.count, row), "rest" / GreedyBytes)


def parse(declared: Struct, stored: bytes, order: ByteOrder) -> Any:
    return declared._parse(Cursor(BytesSource(stored)), new_context(True, byte_order=order), "(parsing)")


wide = Picked(this._root.is_wide == 1, u16, u8)
COLUMNS = {
    "repeated fields between others": Struct(
        "name" / Text(u8),
        "sizes" / Sizes(u8, wide, "dims"),
        "reversed" / Derived(len_(this.sizes) + this._root.is_wide),
        "type" / TypeCode(u8, VALUE_TYPES),
        "number" / i16,
        Rule("sizes", len_(this.sizes), at_most(2, "sizes")),
        Rule("name", len_(this.name), at_most(3, "characters")),
    ),
    "repeated fields alone": Struct("type" / TypeCode(u8, VALUE_TYPES)),
    "codes of two widths": Struct(SIZES, "type" / TypeCode(wide, VALUE_TYPES)),
    "a constant": Struct(SIZES, "five" / Derived(5), "big" / u16),
    "a count": Struct("n" / Count(u8, len_(this.sizes)), SIZES),
    "a rule on the file": Struct(SIZES, Rule("x", this._root.is_wide, differs_from(1, "0"), field="sizes")),
}
ROWS = {
    "repeated fields apart": Struct(SIZES, "number" / Default(i8, 1), "more" / Sizes(u8, u8, "dims")),
    "a constant without a name": Struct(SIZES, Const(b"\0")),
    "a number without a name": Struct(SIZES, Int16ub),
    "no repeated field": Struct("name" / Text(u8)),
    "a float": Struct(SIZES, "ratio" / f32),
    "a number of construct": Struct(SIZES, "big" / Int16ub),
    "a rule on both kinds": Struct(A, SIZES, Rule("x", len_(this.sizes) + this.a, at_most(9))),
    "a value of both kinds": Struct(A, SIZES, "sum" / Derived(len_(this.sizes) + this.a)),
    "a value of another kind": Struct(A, SIZES, "twice" / Derived(this.a * 2)),
    "a function": Struct(SIZES, Rule("x", this.sizes, meets(lambda at: len(at.sizes) < 3, "short"))),
    "a switch by the row": Struct("is_wide" / u8, SIZES, "value" / Switch(this.is_wide, {0: u8, 1: u16})),
    "a switch by a function": Struct(A, SIZES, "value" / Switch(lambda at: at.get("a", 0), {0: u8, 1: u16})),
    "codes of a switch": Struct(
        "a" / u8, "type" / TypeCode(Switch(lambda at: at.get("a", 0), {0: u8}, default=u16), VALUE_TYPES)
    ),
    "a part": Struct(SIZES, "part" / Struct("a" / u8)),
}


TABLES = {**COLUMNS, **ROWS, **OTHERS}


@pytest.mark.fuzz
@pytest.mark.parametrize("row", TABLES)
@settings(max_examples=max(settings.default.max_examples // 5, 10))
@given(stored=st.lists(st.sampled_from(BYTES), max_size=40).map(bytes), is_wide=st.sampled_from([0, 1]), order=ORDERS)
@example(stored=b"\xff" + bytes(20), is_wide=0, order=LITTLE)  # a count of -1
def test_columns_are_the_rows(row: str, stored: bytes, is_wide: int, order: ByteOrder) -> None:
    for count in (1, 3):
        assert_paths_agree(partial(parse, sheet(TABLES[row]), bytes([is_wide, count]) + stored, order))


@pytest.mark.parametrize("row", [*COLUMNS, *ROWS])
def test_columns_are_taken_of_independent_fields(row: str) -> None:
    parsed = parse(sheet(TABLES[row]), bytes([0, 2]) + bytes(40), "little")
    assert type(parsed.rows) is (Rows if row in COLUMNS else list)


def test_a_long_table_with_few_kinds() -> None:
    """Rows that end in two windows are parsed in full, in between the others."""
    row = Struct("name" / Text(u8), "sizes" / Sizes(u8, u32, "dims"), "at" / u32)
    declared = Struct("count" / Count(u16, len_(this.rows)), "rows" / Table(this.count, row))
    rows = [{"name": f"row {i}" * (1 + i % 3), "sizes": [i % 2] * (i % 4), "at": i} for i in range(10_000 if FULL else 5_000)]
    stored = declared.build({"rows": rows})
    assert_paths_agree(partial(parse, declared, stored, "little"))
    found = parse(declared, stored, "little").rows
    assert (found, len(found.kinds) < 20) == (rows, True)


@pytest.fixture
def table() -> Rows:
    table = Container.parse(golden("four_types")).descriptors
    assert isinstance(table, Rows)
    return table


def test_rows_are_a_sequence(table: Rows) -> None:
    rows = list(table)
    assert [row.name for row in rows] == list(column(table, "name")) == list(column(rows, "name"))
    assert (table[0], table[1:], table[::-2]) == (rows[0], rows[1:], rows[::-2])
    assert rows[1:] != table == rows
    assert repr(table) == f"<Rows: {len(rows)} rows>"
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
