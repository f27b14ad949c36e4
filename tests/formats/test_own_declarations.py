"""Formats without tensors as a user declares them: what is refused, drawn and written of each."""

from __future__ import annotations

import json
import re
import struct
from random import Random
from typing import Any

import numpy as np
import pytest
from construct import Bytes, Const, Default, If, IfThenElse, Int32ub, Pass, PrefixedArray, Switch, len_, this
from hypothesis import given
from hypothesis import strategies as st

import glft_schema as glft
from glft_schema.codec import (
    ByteOrderOf,
    Count,
    Numbers,
    Picked,
    Rule,
    Sizes,
    Strings,
    Struct,
    Table,
    Text,
    TypeCode,
    TypeTable,
    ValueType,
    f16,
    i8,
    i32,
    u8,
    u16,
    u32,
)
from glft_schema.codec.context import BIG
from glft_schema.codec.predicates import at_least, at_most, equals, meets, one_of, pattern
from glft_schema.describe import as_data, schema_of, write
from glft_schema.formats import Format
from glft_schema.testing import containers, corruptions, fuzz, rule_ids
from tests.formats.own_formats import registered
from tests.fuzz.mutator import drawn


def declared(*fields: Any) -> Format:
    return Format("own", (b"OWN",), TypeTable("own", {}), Struct("magic" / Const(b"OWN"), *fields), endings=(".own",))


CELL = Struct("a" / u8, "b" / u8)
CELLS = "n" / Count(u8, this.cells), "cells" / Table(this.n, CELL)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (("n" / Count(u8, this.rowz), CELLS[1]), "n: expected the name of a field, found 'rowz'"),
        (CELLS[::-1], "cells: expected its place after n"),
        (("x" / Default(If(this.w >= 2, u8), None), "w" / Default(u8, 1)), "x: expected its place after w"),
        (("n" / Count(u8, this.cell), CELLS[1]), "n: expected the name of a field, found 'cell'; did you mean 'cells'\\?"),
        ((CELLS[0], "cells" / Table(this.x, CELL)), "cells: expected the name of a field, found 'x'"),
        ((*CELLS, Rule("own-x", this.b, equals(0))), "rule 'own-x': expected the name of a field, found 'b'"),
        ((*CELLS, Rule("own-x", this.n, equals(0), when=this.v == 1)), "rule 'own-x': expected the name of a field, found 'v'"),
        (
            (CELLS[0], "cells" / Table(this.n, Struct("a" / u8, Rule("own-x", this.a, meets(this.a < this._.x, "less"))))),
            "cells -> rule 'own-x': expected the name of a field, found 'x'",
        ),
        (
            ("head" / Struct("k" / u8), "v" / Switch(this.head.key, {0: u8}, u16)),
            "v: expected the name of a field, found 'key'",
        ),
        (
            ("n" / u8, Rule("own-x", this.n, at_most(1)), Rule("own-x", this.n, at_least(1))),
            "rule 'own-x': expected another id, which no other rule of the format has",
        ),
        (
            ("n" / u8, "name" / Text(u16), "order" / ByteOrderOf(BIG), "m" / u32),
            "order: expected its place before name, the first number of several bytes",
        ),
        (
            ("head" / Struct("v" / Picked(this._.magic == b"", u8, u32)), "order" / ByteOrderOf(u32), "m" / u32),
            "order: expected its place before head -> v, the first number of several bytes",
        ),
    ],
)
def test_declarations_that_cannot_work_are_refused(fields: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=f"^own: {problem}$"), registered(declared(*fields)):
        pass


@pytest.mark.parametrize(
    "fields",
    [
        ("n" / u8, "order" / ByteOrderOf(BIG), *CELLS[1:]),
        ("w" / u8, "h" / u8, "area" / Count(u16, this.w * this.h), "px" / Numbers(u8, this.area)),
        ("head" / Struct("n" / Count(u8, this._.cells)), "cells" / Table(this._root.head.n, CELL)),
        ("one" / CELL, "two" / CELL, "all" / PrefixedArray(u8, Struct("k" / u8, "v" / Bytes(this._._.one.a)))),
        ("kind" / u8, "v" / Switch(this.kind, {0: Struct("a" / u8, "b" / Bytes(this.a + this._.kind))})),
    ],
)
def test_declarations_with_other_paths_and_shared_parts_are_registered(fields: tuple[Any, ...]) -> None:
    with registered(declared(*fields)):
        pass


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
        (WIDE, {"w": 2, "h": 2, "px": [1, 2, 3]}, "px: expected 4 numbers, the value of w \\* h, found 3"),
        (WIDE, {"w": 2, "h": 2}, "px: expected 4 numbers, the value of w \\* h, found 0"),
        (NAMES, {"names": ["a"]}, "names: expected 2 strings, the value of w, found 1"),
        (ROWS, {"n": 5, "rows": [{"px": [1, 2]}]}, "rows: expected 5 rows, the value of n, found 1"),
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


# fmt: off
Shelf = Struct(
    "label" / Text(u8),
    "width" / u8,
    "depth" / Default(i8, 0),
    "price" / Default(f16, 0),
    "spots" / Default(Numbers(i32, 2), [0, 0]),
)
SHOP = declared(
    "version" / Const(2, u8),
    "n"       / Count(u8, this.shelves),
    "shelves" / Table(this.n, Shelf),
    "n_names" / Count(u8, this.names),
    "names"   / Default(Strings(u8, this.n_names), []),
    "raw"     / Default(Bytes(3), b"abc"),
    "serial"  / Default(Int32ub, 0),
    "sizes"   / Default(Sizes(u8, u16, "dims"), []),
)
# fmt: on
SHELF = {"label": "a", "width": 1}
REGIONS = "magic, version, shelves, names, raw, serial, sizes"
FIELDS = "label, width, depth, price, spots"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"magic": b"OWL"}, "magic: expected b'OWN', found b'OWL'"),
        ({"version": 3}, "version: expected 2, found 3"),
        ({"n": 5}, "n: expected 1 (computed from the other fields), found 5"),
        ({"shelf": []}, f"expected the own regions {REGIONS}, found 'shelf'; did you mean 'shelves'?"),
        ({"zzz": 1}, f"expected the own regions {REGIONS}, found 'zzz'"),
        ({"shelves": 5}, "shelves: expected a list of rows, found 5"),
        ({"shelves": None}, "shelves: expected a list of rows, found None"),
        ({"shelves": "ab"}, "shelves: expected a list of rows, found 'ab'"),
        ({"shelves": {"label": "a"}}, "shelves: expected a list of rows, found {'label': 'a'}"),
        ({"shelves": [5]}, f"shelves -> 0: expected a mapping with {FIELDS}, found 5"),
        ({"names": "ab"}, "names: expected a list of strings, found 'ab'"),
        ({"names": ["a", 5]}, "names -> 1: expected text, found 5"),
        ({"names": ["a", "b" * 256]}, "names -> 1: expected at most 255 bytes, found 256"),
        ({"raw": "abc"}, "raw: expected bytes, found 'abc'"),
        ({"raw": b"ab"}, "raw: expected 3 bytes, found 2"),
        ({"serial": -1}, "serial: expected a number that fits the field, found -1"),
        ({"sizes": 5}, "sizes: expected a list of integers, found 5"),
    ],
)
def test_regions_that_cannot_be_built(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(glft.FormatError) as caught:
        built(SHOP, **{"shelves": [SHELF], **values})
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"label": "\xe9" * 128}, " -> label: expected at most 255 bytes, found 256"),
        ({"label": 5}, " -> label: expected text, found 5"),
        ({"width": "5"}, " -> width: expected an integer in the range of u8, found '5'"),
        ({"width": 1.0}, " -> width: expected an integer in the range of u8, found 1.0"),
        ({"width": -1}, " -> width: expected an integer in the range of u8, found -1"),
        ({"width": None}, " -> width: expected an integer in the range of u8, found None"),
        ({"depth": 128}, " -> depth: expected an integer in the range of i8, found 128"),
        ({"price": 1e9}, " -> price: expected a number in the range of f16, found 1000000000.0"),
        ({"spots": 5}, " -> spots: expected a list of numbers, found 5"),
        ({"spots": [1, 2.5]}, " -> spots -> 1: expected an integer in the range of i32, found 2.5"),
        ({"widht": 1}, f": expected the fields {FIELDS}, found 'widht'; did you mean 'width'?"),
    ],
)
def test_fields_of_a_row_that_cannot_be_built(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(glft.FormatError) as caught:
        built(SHOP, shelves=[SHELF, {**SHELF, **values}])
    assert str(caught.value) == f"shelves -> 1{problem}"


def test_a_missing_field_is_named() -> None:
    with pytest.raises(glft.FormatError, match=r"^shelves -> 0: expected a value for 'width', found none$"):
        built(SHOP, shelves=[{"label": "a"}])


def test_texts_as_long_as_their_prefix_allows_and_right_counts_are_built() -> None:
    stored = built(SHOP, n=1, shelves=[{**SHELF, "label": "a" * 255}], n_names=1, names=["b" * 255])
    assert stored[:6] == b"OWN\2\1\xff"
    assert stored[6 + 255 + 12 :][:2] == b"\1\xff"
    assert Struct("t" / Text(i8)).build({"t": "a" * 127})[0] == 127
    with pytest.raises(glft.FormatError, match=r"^t: expected at most 127 bytes, found 128$"):
        Struct("t" / Text(i8)).build({"t": "a" * 128})


def test_rules_on_the_length_of_a_table_show_it() -> None:
    counted = declared(*CELLS, Rule("few", len_(this.cells), at_most(1, "cells")))
    with pytest.raises(glft.FormatError, match=r"^cells: expected at most 1 cells, found 2$"):
        built(counted, cells=[{"a": 1, "b": 2}] * 2)


def test_another_constant_in_a_file_is_named() -> None:
    with registered(SHOP), pytest.raises(glft.FormatError, match=r"^version: expected 2, found 3 \(at byte 3\)$"):
        glft.Container.parse(b"OWN\3" + bytes(20))
    with pytest.raises(glft.FormatError, match=r"^magic: expected b'OWN', found b'OWL'"):
        SHOP.struct.parse(b"OWL" + bytes(20))


RANGE = Struct(
    "low" / Default(f16, 0), "high" / Default(f16, 0), "step" / Default(i32, 0),
    Rule("range", this.high, at_least(this.low)), Rule("step", this.step, meets(this.step <= this._.stop, "at most stop")),
)  # fmt: skip
RULED = declared(
    "version" / Default(u8, 1), Rule("version", this.version, one_of(1, 2)),
    "w" / Default(u8, 0), "h" / Default(u8, 0), Rule("area", this.w * this.h, meets(this.w * this.h <= 100, "at most 100")),
    "px" / Default(Numbers(u16, this.w * this.h), []),
    "start" / Default(i32, 0), "stop" / Default(i32, 0), Rule("stop", this.stop, at_least(this.start)),
    "same" / Default(i32, 0), Rule("same", this.same, equals(this.stop, "stop")),
    "name" / Default(Text(u8), "a"), Rule("name", this.name, pattern("[a-z]+", "small letters")),
    "n" / Count(u8, this.rows), Rule("few", this.n, at_most(3)), "rows" / Default(Table(this.n, RANGE), []),
    "m" / Count(u8, this.texts), "texts" / Default(Strings(u8, this.m), []), Rule("texts", len_(this.texts), at_most(2)),
)  # fmt: skip
IS_BROKEN = {  # by the id of each rule, of the values that `values_of_ruled` reads
    "version": lambda it: it["version"] not in (1, 2),
    "area": lambda it: it["w"] * it["h"] > 100,
    "stop": lambda it: it["stop"] < it["start"],
    "same": lambda it: it["same"] != it["stop"],
    "name": lambda it: not (it["name"].isascii() and it["name"].isalpha() and it["name"].islower()),
    "few": lambda it: it["n"] > 3,
    "range": lambda it: any(not high >= low for low, high, _ in it["rows"]),
    "step": lambda it: any(step > it["stop"] for _, _, step in it["rows"]),
    "texts": lambda it: it["m"] > 2,
}


def values_of_ruled(stored: bytes) -> dict[str, Any]:
    """Reads a file of `RULED` by `struct`."""
    version, w, h = stored[3:6]
    at = 6 + 2 * w * h
    start, stop, same, length = struct.unpack_from("<iiiB", stored, at)
    name, at = stored[at + 13 : at + 13 + length], at + 13 + length
    n, rows = stored[at], at + 1
    texts = rows + 8 * n
    read = {"version": version, "w": w, "h": h, "start": start, "stop": stop, "same": same, "n": n, "m": stored[texts]}
    return {**read, "name": name.decode("latin-1"), "rows": [*struct.iter_unpack("<eei", stored[rows:texts])]}


@pytest.mark.parametrize("values", [{}, {"w": 2, "h": 1, "px": [1, 2], "rows": [{"low": -70, "high": 9000}], "texts": ["a"]}])
def test_every_rule_is_broken_on_root_regions_and_between_two_fields(values: dict[str, Any]) -> None:
    """In most examples, alone, and as a reader of its own finds."""
    stored, random = built(RULED, **values), Random(0)
    with registered(RULED):
        assert rule_ids(RULED) == list(IS_BROKEN)
        for rule, is_broken in IS_BROKEN.items():
            made = [one for _ in range(10) if (one := drawn(corruptions(stored, rule), random))]
            assert len(made) > 5, rule
            for one in made:
                assert is_broken(values_of_ruled(one.stored)), rule
                assert (one.problem(), one.rule, one.reported) == (None, rule, rule)


def test_rules_between_fields_name_the_other_one_in_documents_and_errors() -> None:
    markdown = write(schema_of(RULED), "markdown")
    assert "- `stop`: at least start (`stop`, required)" in markdown
    assert "- `high`: at least low (`range`, required)" in markdown
    assert equals(len_(this.names)).text == "len(names)"
    assert equals(this.other).text == "other"
    with pytest.raises(glft.FormatError, match=r"^stop: expected at least start, found 4$"):
        built(RULED, start=5, stop=4)


@given(data=st.data())
def test_drawn_files_keep_rules_between_fields(data: st.DataObject) -> None:
    found = values_of_ruled(data.draw(containers(RULED)))
    assert not [rule for rule, is_broken in IS_BROKEN.items() if is_broken(found)]


@pytest.mark.parametrize(
    ("x", "size", "markdown"),
    [
        (Switch(this.v, {1: u16, 2: u32}), {1: 2, 2: 4}, "u16 if `v` is 1, u32 if `v` is 2, else no bytes"),
        (Default(Switch(this.v, {1: u16}, u8), 0), {0: 1, 1: 2, 2: 1, 3: 1}, "u16 if `v` is 1, else u8"),
        (Switch(this.v, {1: Pass, 2: CELL}), {2: 2}, "[x](#x) if `v` is 2, else no bytes"),
        (Switch(this.v, {1: Pass}, u8), {0: 1, 2: 1, 3: 1}, "no bytes if `v` is 1, else u8"),
        (Default(If(this.v == 2, u32), None), {2: 4}, "u32 if `v == 2`, else no bytes"),
        (If(this.v & 2, u8), {2: 1, 3: 1}, "u8 if `(v & 2) != 0`, else no bytes"),
        (IfThenElse(this.v > 3, u8, u32), {0: 4, 1: 4, 2: 4, 3: 4}, "u8 if `v > 3`, else u32"),
        (Switch(this.v < 2, {False: u8}), {2: 1, 3: 1}, "u8 if `v < 2` is False, else no bytes"),
    ],
)
def test_fields_that_depend_on_others(x: Any, size: dict[int, int], markdown: str) -> None:
    """`size` has the bytes of `x` for each of the versions up to 3; 0 by default."""
    format = declared("v" / u8 * "version", Rule("v", this.v, at_most(3)), "x" / x * "it", "end" / Const(b"E") * "end")
    for version in range(4):
        stored = b"OWN" + bytes([version, *bytes(size.get(version, 0))]) + b"E"
        with registered(format):
            assert glft.Container.build(glft.Container.parse(stored)) == stored
    seen = {stored[3]: len(stored) - 5 for stored in filter(None, (drawn(containers(format), Random(i)) for i in range(40)))}
    assert seen == {version: size.get(version, 0) for version in range(4)}
    with registered(format):
        assert fuzz(format, 20).failure is None
    assert f"| {markdown} | it" in write(schema_of(format), "markdown")
    in_c = re.sub(r"\bu(\d+)", r"uint\1_t", markdown.replace("[x](#x)", "the x").replace("`", ""))
    assert f"x: {in_c}. it" in write(schema_of(format), "c")
    assert json.loads(write(schema_of(format), "kaitai"))
    (node,) = (field["node"] for field in as_data(schema_of(format))["structs"]["file"]["fields"] if field["name"] == "x")
    assert (node["default"] is None) == ("no bytes" in markdown.rpartition(", ")[2])


def test_a_switch_on_types_refers_to_their_table() -> None:
    kinds = TypeTable("kind", ValueType("byte", 1, u8), ValueType("word", 2, u16))
    fields = "kind" / TypeCode(u8, kinds) * "which", "x" / Switch(this.kind, {kinds["word"]: u16}, u8) * "it"
    schema = schema_of(declared(*fields))
    assert "| depends on `kind`, u8 for other types | it" in write(schema, "markdown")
    assert "| 2 | `word` | u16 |" in write(schema, "markdown")
    assert "x: depends on kind, uint8_t for other types. it\n *         word: uint16_t" in write(schema, "c")


OWNER = Struct("name" / Text(u8), Rule("own-name", this.name, pattern("[a-z]+", "small letters")))
OTHER = Struct("a" / u8, Rule("own-a", this.a, at_most(9)))


@pytest.mark.parametrize(
    ("x", "rules", "stored"),
    [
        (If(this.v & 2, OWNER), {"own-name"}, b"\2\1a"),
        (IfThenElse(this.v > 3, OTHER, OWNER), {"own-name", "own-a"}, b"\4\0"),
        (Switch(this.v, {1: OTHER, 2: If(this.v, OWNER)}, u16), {"own-name", "own-a"}, b"\1\0"),
        (Switch(this.v, {1: Table(this.v, OWNER)}), {"own-name"}, b"\1\1a"),
    ],
)
def test_rules_of_a_part_that_depends_on_others_are_broken_where_it_is(x: Any, rules: set[str], stored: bytes) -> None:
    format, random = declared("v" / u8, "x" / x), Random(1)
    with registered(format):
        assert set(rule_ids(format)) == rules
        found = {rule: [one for _ in range(8) if (one := drawn(corruptions(b"OWN" + stored, rule), random))] for rule in rules}
        present = "own-name" if stored.endswith(b"a") else "own-a"
        assert {rule for rule, made in found.items() if made} == {present}
        for one in found[present]:
            assert (one.problem(), one.rule, one.reported) == (None, present, present)
            assert one.stored.startswith(b"OWN" + stored[:1])
            value = one.stored[4:]
            assert value[0] > 9 if present == "own-a" else not (value[1:].isalpha() and value[1:].islower())
        assert fuzz(format, 60).failure is None


def test_files_cut_off_in_a_table_within_rows_name_its_count() -> None:
    row = Struct("k" / Count(u8, this.cells), "cells" / Table(this.k, Struct("a" / u16)))
    format, random = declared("n" / Count(u8, this.rows), "rows" / Table(this.n, row)), Random(1)
    with registered(format):
        stored = built(format, rows=[{"cells": [{"a": 1}] * 3}] * 2)
        cut = [one for _ in range(60) if (one := drawn(corruptions(stored), random)) and len(one.stored) < len(stored)]
        assert {one.path for one in cut} >= {"rows -> 0 -> k", "rows -> 1 -> k"}
        assert [one.problem() for one in cut if one.problem()] == []


@pytest.mark.parametrize("v", [0, 1])
def test_files_cut_off_in_a_part_that_depends_on_others_name_its_counts(v: int) -> None:
    part = Struct("k" / Count(u8, this.rows), "rows" / Table(this.k, CELL), "n" / u8, "px" / Numbers(u16, this.n))
    format, random = declared("v" / u8, "x" / IfThenElse(this.v, part, Switch(this.v, {0: part}))), Random(3)
    with registered(format):
        stored = b"OWN" + bytes([v, 1, 8, 9, 2, 0, 1, 0, 2])
        made = [one for _ in range(30) if (one := drawn(corruptions(stored), random))]
        assert {len(one.stored) for one in made} >= {5, 6, 8}
        assert [one.problem() for one in made if one.problem()] == []
        assert fuzz(format, 100).failure is None


@pytest.mark.parametrize(
    ("fields", "stored", "rows", "is_broken"),
    [
        (("n" / u8, "rows" / Table(this.n, OTHER)), b"\0", lambda stored: stored[1:], True),
        (("n" / u8, "rows" / Table(this.n, OTHER)), b"\1\2", lambda stored: stored[1:], True),
        (("f" / u8, "rows" / Table(this.f >> 1 & 1, OTHER)), b"\0", lambda stored: stored[1:], False),
        (("f" / u8, "rows" / Table(this.f >> 1 & 1, OTHER)), b"\2\3", lambda stored: stored[1:], True),
        (("rows" / Default(Table(2, OTHER), [{"a": 1}] * 2),), b"\3\5", lambda stored: stored, True),
        (("n" / u8, "rows" / Table(this.n, OTHER), "all" / Table(this.n, CELL)), b"\0", None, False),
        (("n" / u8, "rows" / Table(this.n, OTHER), "all" / Table(this.n, CELL)), b"\1\2\3\4", lambda stored: stored[1:2], True),
    ],
)
def test_broken_files_have_as_many_rows_as_they_say(fields: Any, stored: bytes, rows: Any, is_broken: bool) -> None:
    """A row is added only if its count is a field of its own."""
    format, random = declared(*fields), Random(2)
    with registered(format):
        made = [one for _ in range(8) if (one := drawn(corruptions(b"OWN" + stored, "own-a"), random))]
        assert bool(made) == is_broken
        for one in made:
            assert (one.problem(), one.reported) == (None, "own-a")
            assert max(rows(one.stored[3:])) > 9
            if fields[0].name == "n" and len(fields) == 2:
                assert one.stored[3] == len(one.stored) - 4
            elif fields[0].name == "n" or len(fields) == 1:
                assert len(one.stored) == len(stored) + 3
        assert fuzz(format, 60).failure is None


@pytest.mark.parametrize(
    ("a", "equal", "values", "other"),
    [
        (Numbers(u8, 2), [1, 2], ([1, 2], (1, 2), np.array([1, 2], np.uint8), np.array([1, 2])), b"\1\3"),
        (Numbers(u8, 2), (1, 2), ([1, 2], np.array([1, 2], np.uint8)), b"\2\1"),
        (Numbers(u8, 2), np.array([1, 2]), ([1, 2], np.array([1, 2], np.uint8)), b"\1\1"),
        (Sizes(u8, u8, "dims"), [1, 2], ([1, 2], (1, 2), np.array([1, 2])), b"\1\2"),
        (Strings(u8, 2), ["a", "b"], (["a", "b"], ("a", "b")), b"\1a\1a"),
    ],
)
def test_arrays_and_lists_are_compared_by_value(a: Any, equal: Any, values: Any, other: bytes) -> None:
    format = declared("a" / a, "b" / a, Rule("own-a", this.a, equals(equal)), Rule("own-b", this.b, equals(this.a)))
    for value in values:
        stored = built(format, a=value, b=value)
        with registered(format):
            assert glft.Container.build(glft.Container.parse(stored)) == stored
            for rule in ("own-a", "own-b"):
                made = [one for i in range(8) if (one := drawn(corruptions(stored, rule), Random(i)))]
                assert {(one.problem(), one.reported) for one in made} == {(None, rule)}
    half = (len(stored) - 3) // 2
    with registered(format):
        with pytest.raises(glft.FormatError, match=r"^b: expected a, found .*at byte"):
            glft.Container.parse(stored[: 3 + half] + other)
        with pytest.raises(glft.FormatError, match=r"^a: expected .*, found .*at byte 3\)$"):
            glft.Container.parse(b"OWN" + other + stored[3 + half :])
        assert fuzz(format, 40).failure is None
    with pytest.raises(glft.FormatError, match=r"^a: expected "):
        built(format, a=[5, 6] if isinstance(values[0][0], int) else ["c", "d"], b=values[0])


BROKEN = Rule("own-x", this.x, at_most(9))
TABLE = Table(this.n, Struct("x" / Default(u8, 10), "y" / u8, BROKEN))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (("x" / Default(u8, 300),), "x: its default is refused: expected an integer in the range of u8, found 300"),
        (("k" / u8, "x" / Default(u8, "x")), "x: its default is refused: expected an integer in the range of u8, found 'x'"),
        (("x" / Default(Bytes(6), b"abc"),), "x: its default is refused: expected 6 bytes, found 3"),
        (("x" / Default(Numbers(u8, 2), [1]),), "x: its default is refused: expected 2 numbers, found 1"),
        (("k" / u8, "x" / Default(u8, 10), BROKEN), "x: its default is refused: expected at most 9, found 10"),
        (("n" / u8, "rows" / TABLE), "rows -> x: its default is refused: expected at most 9, found 10"),
        (
            ("x" / Struct("y" / Default(u8, -1)),),
            "x -> y: its default is refused: expected an integer in the range of u8, found -1",
        ),
        (
            ("w" / Default(u8, 1), "x" / Default(Numbers(u8, this.w), [])),
            "x: a trial fails: expected 1 numbers, the value of w, found 0",
        ),
        (
            ("w" / Default(u8, 1), "x" / Default(u8, 2), Rule("own-w", this.x, at_most(this.w))),
            "x: a trial fails: expected at most w, found 2",
        ),
        (("k" / u8, u8), 'struct: expected a name of each field, "x" / u8, found u8 after k'),
        (("x" / Struct(Default(u8, 1), "k" / u8),), 'x: expected a name of each field, "x" / u8, found .* after the start'),
    ],
)
def test_defaults_that_fields_refuse_and_nameless_fields_are_refused(fields: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=f"^own: {problem}$"), registered(declared(*fields)):
        pass


@pytest.mark.parametrize(
    "fields",
    [
        ("k" / u8, "x" / Default(Numbers(u8, this.k), [1, 2])),
        ("v" / u8, "x" / Default(Switch(this.v, {1: u8, 2: Text(u8)}), 0)),
        ("w" / Default(u8, 1), "x" / Default(u8, this.w)),
        ("x" / Numbers(u8, 2), "y" / Strings(u8, 2), "z" / Table(2, Struct("a" / u8, "b" / Strings(u8, 1)))),
        ("k" / u8, Const(b"E")),
    ],
)
def test_defaults_that_may_fit_and_lists_of_fixed_lengths_are_registered(fields: tuple[Any, ...]) -> None:
    with registered(declared(*fields)):
        pass
