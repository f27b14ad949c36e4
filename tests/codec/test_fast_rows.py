"""The fast path for table rows: equal to the full parse, and really taken."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import construct
import numpy as np
import pytest
from construct import Default, GreedyBytes, Int8sb, Int8ul, Int16ub, Int16ul, Int32sb, PascalString, Switch, len_, this
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from glft_schema import Container, FormatError, Limits
from glft_schema.codec.columns import Rows
from glft_schema.codec.context import BIG, LITTLE, ByteOrder, new_context
from glft_schema.codec.fast_rows import READERS, row_reader
from glft_schema.codec.json_table import JsonField
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.numbers import Number, Picked, Sizes, f16, f32, f64, i8, i16, i64, u8, u16, u32, u64
from glft_schema.codec.predicates import differs_from, meets, multiple_of
from glft_schema.codec.records import Record
from glft_schema.codec.rules import Check, Rule
from glft_schema.codec.structs import Count, Derived, Struct
from glft_schema.codec.tables import Table
from glft_schema.codec.text import Text
from glft_schema.codec.type_codes import TypeCode
from glft_schema.codec.typed_values import Array
from glft_schema.files.parsing import starts_of
from glft_schema.formats.gguf import GGUF, VALUE_TYPES
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.source import BytesSource
from glft_schema.tensors.region import TensorMap
from glft_schema.testing import from_construct
from glft_schema.testing.damage import damaged
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
        return [(key, exactly(value.stored_value(key).type), exactly(value.stored_value(key).value)) for key in value]
    if isinstance(value, Array):
        return "array", exactly(value.type), [exactly(element) for element in value.values]
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
        with patch("glft_schema.codec.tables.row_reader", return_value=None):
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
@given(files.flatmap(damaged), st.one_of(st.just({}), LIMITS))
def test_damaged_files(stored: bytes, limits: dict[str, int]) -> None:
    assert_files_agree(stored, limits)


@pytest.mark.parametrize("name", ["four_types", "loose_layout", "gguf_little", "gguf_big"])
def test_every_truncation(name: str) -> None:
    whole = golden(name)
    for end in some(range(len(whole) + 1), 3):
        assert_files_agree(whole[:end])


# The fast path is taken


def full_rows(parse: Callable[[], Any]) -> list[str]:
    """Returns the paths of the rows of regions that are parsed in full."""
    paths: list[str] = []
    full_parse = Struct._parse

    def noted(self: Struct, stream: Any, context: Any, path: str) -> Any:
        _, *names = path.split(" -> ")
        if len(names) == 2 and names[1].isdecimal():
            paths.append(" -> ".join(names))
        return full_parse(self, stream, context, path)

    with patch.object(Struct, "_parse", noted):
        parse()
    return paths


@pytest.mark.parametrize("name", ["four_types", "loose_layout", "gguf_little", "gguf_big"])
def test_rows_of_the_formats_take_the_fast_path(name: str) -> None:
    file = Container.parse(golden(name))
    values = [file.metadata.stored_value(key).value for key in file.metadata] if file.format is GGUF else []
    arrays = [f"metadata -> {i}" for i, value in enumerate(values) if isinstance(value, Array)]
    assert len(file.regions[file.format.table]) > 1
    assert full_rows(lambda: Container.parse(golden(name))) == arrays


def long_table(format: str, count: int) -> bytes:
    if format == "glft":
        return reference.back_to_back(b"", [Row(f"t{i}", [1], reference.F32, bytes(4)) for i in range(count)])
    return File([], [Info(b"t%d" % i, [1], 24, b"a") for i in range(count)], None, 3, format).bytes()


@pytest.mark.parametrize("format", ["glft", "<", in_full(">")])
def test_only_rows_at_the_edges_of_windows_are_parsed_in_full(format: str) -> None:
    count = 5000 if FULL else 3600
    stored = long_table(format, count)
    file = Container.parse(stored)
    edges = file.data.start // Cursor.WINDOW
    assert edges
    assert len(full_rows(lambda: Container.parse(stored))) == edges
    assert [row.name for row in file.regions[file.format.table]] == [f"t{i}" for i in range(count)]
    assert_files_agree(stored)


@pytest.mark.parametrize("format", ["glft", "<", ">"])
def test_a_bad_file_has_one_more_full_row(format: str) -> None:
    stored = long_table(format, 500).replace(b"t300", b"t299")

    def refuse() -> None:
        with pytest.raises(FormatError, match="-> 300 -> name: expected each name once"):
            Container.parse(stored)

    (row,) = full_rows(refuse)
    assert row.endswith(" -> 300")
    assert_files_agree(stored)


# Custom tables

number = Picked(this._root.is_wide == 1, u8, u32)


class Doubled(Number):
    def _parse(self, stream: Any, context: Any, path: str) -> int:
        return 2 * int(super()._parse(stream, context, path))


class Strict(Check):
    def _parse(self, stream: Any, context: Any, path: str) -> None:
        if context.a > 9:
            raise FormatError(f"expected at most 9, found {context.a}", path)

    def check(self, context: Any, path: str) -> None:
        """Finds nothing."""


Everything = Struct(
    "narrow" / u8,
    "signed" / i16 * "of which only even ones",
    "wide" / u64,
    "negative" / i64,
    "half" / f16,
    "single" / f32,
    "double" / f64,
    "picked" / number,
    "text" / Text(number),
    "strict" / Text(u16, strict=True),
    "n_sizes" / Count(Int16ul, len_(this.sizes)),
    "sizes" / Sizes(u8, number, "dims"),
    "type" / TypeCode(u8, VALUE_TYPES),
    "default" / Default(Int32sb, 7),
    "twice" / Derived(this.narrow * 2),
    "inner"
    / Struct("x" / Int8ul, Rule("x", this.x, differs_from(200, "another number")), "sum" / Derived(this.x + this._.narrow)),
    "value" / Switch(this.narrow % 3, {0: u16, 1: Text(number), 2: Struct("pair" / Int16ul[2])}),
    Rule("even", this.signed, multiple_of(2)),
    Rule("function", this.text, meets(lambda at: len(at.text) < 9 and "inner" in at, "a short text")),
)
OTHERS = {
    "a class with its own parse": Struct("a" / u8, "b" / Doubled("doubled", "u2")),
    "a hook": Struct("a" / u8 * (lambda value, context: context._root.update(hooked=value))),
    "picked by the row": Struct("a" / u8, "b" / Picked(this.a > 9, u8, u16)),
    "picked by a function": Struct("a" / u8, "b" / Picked(lambda at: at.get("a", 100) > 9, u8, u16)),
    "looks at the stream": Struct("a" / u8, "b" / Derived(lambda at: at._io.tell())),
    "looks at the field after": Struct("a" / Derived(lambda at: at.get("b", 0)), "b" / u8),
    "a length below zero": Struct("a" / PascalString(Int8sb, "utf8"), "b" / Int8ul),
    "a length that counts itself": construct.StringEncoded(construct.Prefixed(Int8ul, GreedyBytes, includelength=True), "utf8"),
    "a length of something else": construct.StringEncoded(construct.Prefixed(Int8ul, construct.Bytes(1)), "utf8"),
    "a count below zero": Struct("a" / Sizes(i8, u16, "dims")),
    "signed sizes": Struct("a" / Sizes(u8, i16, "dims")),
    "an array": Struct("a" / u8[2]),
    "three bytes": Struct("a" / construct.Int24ul, construct.Padding(1)),
    "a check with its own parse": Struct("a" / u8, Strict("strict", "a")),
    "without a name": Struct("a" / u8, construct.If(this.a > 9, Int8ul), Derived(this.a)),
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


def edits(stored: bytes) -> st.SearchStrategy[bytes]:
    """Changes a byte, and cuts off the end."""
    changed = st.tuples(st.integers(0, len(stored)), st.binary(max_size=1), st.integers(0, len(stored)))
    return changed.map(lambda edit: (stored[: edit[0]] + edit[1] + stored[edit[0] + len(edit[1]) :])[: len(stored) - edit[2]])


@pytest.mark.fuzz
@settings(max_examples=max(settings.default.max_examples // 16, 3), suppress_health_check=list(HealthCheck))
@given(st.data(), ORDERS)
def test_every_reader(data: st.DataObject, order: ByteOrder) -> None:
    declared, stream = sheet(Everything), io.BytesIO()
    value = data.draw(from_construct(declared))
    declared._build(value, stream, new_context(False, byte_order=order), "(building)")
    stored = stream.getvalue()
    assert assert_paths_agree(partial(parse, declared, stored, order))[0] == "record"
    full = full_rows(partial(parse, declared, stored, order))
    assert full == [f"rows -> {i}" for i, row in enumerate(value["rows"]) if row["narrow"] % 3 == 2]
    for _ in range(4):
        assert_paths_agree(partial(parse, declared, data.draw(edits(stored)), order))


def subclasses(kind: type) -> Iterator[type]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


def test_every_reader_is_tried() -> None:
    ours = {
        kind for kind in subclasses(construct.Construct) if "_fast_reader" in vars(kind) and not issubclass(kind, JsonField)
    }
    assert len(ours) == 8
    assert ours | READERS.keys() <= {type(part) for part in parts(sheet(Everything))}
    assert row_reader(
        Everything, {"_root": {"is_wide": 1}, "_params": {}, "_parsing": True, "_building": False, "_sizing": False}
    )


def parts(declared: Any) -> Iterator[construct.Construct]:
    """Yields a declaration and its parts."""
    yield declared
    for name in ("subcon", "subcons", "cases", "length", "size", "count"):
        inner = getattr(declared, name, ())
        for part in inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else [inner]:
            if isinstance(part, construct.Construct):
                yield from parts(part)


@pytest.mark.parametrize("row", OTHERS.values(), ids=OTHERS.keys())
@settings(max_examples=max(settings.default.max_examples // 10, 10))
@given(stored=st.lists(st.sampled_from(BYTES), max_size=24).map(bytes), is_wide=st.sampled_from([0, 1]), order=ORDERS)
@example(stored=b"\xff" + bytes(20), is_wide=0, order=LITTLE)  # a count of -1
def test_rows_of_other_kinds(row: construct.Construct, stored: bytes, is_wide: int, order: ByteOrder) -> None:
    for count in (1, 3):
        assert_paths_agree(partial(parse, sheet(row), bytes([is_wide, count]) + stored, order))


def test_tables_by_themselves() -> None:
    row = Struct("a" / u8, "is_root" / Derived(lambda at: at._root is at))
    for stream in (io.BytesIO(b"\1\2"), Cursor(BytesSource(b"\1\2"))):
        assert [(made.a, made.is_root) for made in Table(2, row).parse_stream(stream)] == [(1, True), (2, True)]
    assert sheet(Struct("a" / u8)).parse(b"\0\2\1\2").rows == [{"a": 1}, {"a": 2}]
