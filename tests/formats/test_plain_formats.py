"""Formats whose files hold no tensors: documents, readers and test data from one Struct."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from construct import Const, Default, len_, this
from hypothesis import given
from hypothesis import strategies as st

import glft_schema as glft
from glft_schema.codec import (
    ByteOrderOf,
    Count,
    Flags,
    Numbers,
    Rule,
    Strings,
    Struct,
    Table,
    TypeTable,
    f16,
    u8,
    u16,
    u32,
)
from glft_schema.codec.context import BIG
from glft_schema.codec.predicates import equals, meets
from glft_schema.describe import schema_of, write
from glft_schema.formats import Format
from glft_schema.testing import containers, corruptions, fuzz
from tests.formats.own_formats import registered
from tests.oracles.kaitai_readers import compiled, installed, python_reader
from tests.tools.command_line import in_this_process

# fmt: off
Point = Struct(
    "name"     / u16                                        * "index of the name in the string table",
    "flags"    / Default(Flags(u8, visible=0, locked=1), 1) * "state",
    "position" / Numbers(f16, 3)                            * "x, y and z",
    Rule("scene-flags", this.flags & 0xFC, equals(0)),
    Rule("scene-name", this.name, meets(this.name < len_(this._.names), "an index of the string table"), when=this.flags & 1),
)
SCENE = Format("scene", (b"SCN1",), TypeTable("scene", {}), Struct(
    "magic"      / Const(b"SCN1")              * "'SCN1'",
    "byte_order" / ByteOrderOf(BIG)            * "big",
    "n_names"    / Count(u16, this.names)      * "number of names",
    "names"      / Strings(u8, this.n_names)   * "the string table",
    "n_points"   / Count(u32, this.points)     * "number of points",
    "points"     / Table(this.n_points, Point) * "one per point",
), endings=(".scn",))
# fmt: on
POINTS = [
    {"name": 0, "position": [0, 1, 0.5]},
    {"name": 1, "flags": ["visible", "locked"], "position": [2, 0, 0]},
    {"name": 9, "flags": 0, "position": [2, 0, 0]},
]
VALUES = {"format": "scene", "names": ["lamp", "door"], "points": POINTS}


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    with registered(SCENE):
        yield


@pytest.fixture(scope="module")
def stored() -> bytes:
    return glft.Container.build(VALUES)


def test_a_file_is_read_as_it_was_built(stored: bytes) -> None:
    file = glft.Container.parse(stored)
    lamp, door, _ = file.points
    assert (file.n_names, list(file.names), dict(file.tensors), file.nbytes) == (2, ["lamp", "door"], {}, len(stored))
    assert (repr(door.flags), door.flags & 2, lamp.flags == 1) == ("3 (visible, locked)", 2, True)
    assert pickle.loads(pickle.dumps(door.flags)).names == ["visible", "locked"]
    assert glft.Container.build(file) == stored
    assert [(part.start, part.path, part.value) for part in glft.byte_map(file)][3:6] == [
        (16, "n_points", 3),
        (20, "points -> 0 -> name", 0),
        (22, "points -> 0 -> flags", 1),
    ]


@pytest.mark.parametrize(
    ("at", "new", "problem"),
    [
        (29, b"\0\2", "points -> 1 -> name: expected an index of the string table, found 2"),
        (22, b"\x05", "points -> 0 -> flags: expected 0 for flags & 252, found 4"),
        (47, b"1234", "points: expected the end of the file, found 4 more bytes"),
    ],
)
def test_files_that_are_refused(stored: bytes, at: int, new: bytes, problem: str) -> None:
    with pytest.raises(glft.FormatError) as caught:
        glft.Container.parse(stored[:at] + new + stored[at + len(new) :])
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["hidden"], r"expected a number, or names of visible, locked, found \['hidden'\]"),
        (256, "expected a number in the range of u8, found 256"),
    ],
)
def test_flags_that_are_refused(flags: Any, problem: str) -> None:
    with pytest.raises(glft.FormatError, match=f"points -> 0 -> flags: {problem}"):
        glft.Container.build({**VALUES, "points": [{**POINTS[0], "flags": flags}]})


@pytest.mark.parametrize(("number", "bits"), [(f16, {"a": 0}), (u8, {}), (u8, {"a": 8}), (u8, {"a": 1, "b": 1})])
def test_bits_that_are_refused(number: Any, bits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"^expected (an unsigned number|names of different bits).* for Flags"):
        Flags(number, **bits)


@pytest.mark.parametrize(
    ("language", "line"),
    [
        ("markdown", "| 2 | 1 | `flags` | u8, bit 0: `visible`, bit 1: `locked` | state; `1` by default |"),
        ("markdown", "- `magic`: always `b'SCN1'` (required)"),
        ("markdown", "- `flags`: 0 for flags & 252 (`scene-flags`, required)"),
        ("markdown", "- `name`: an index of the string table, if flags & 1 (`scene-name`, required)"),
        ("c", "#define SCENE_POINTS_FLAGS_LOCKED (UINT64_C(1) << 1)"),
        ("json", '            "bits": {'),
    ],
)
def test_documents_name_bits_and_conditions(language: str, line: str) -> None:
    """A plain Struct gives the same document, without the command that makes it."""
    lines = write(schema_of(SCENE), language).splitlines()
    assert line in lines
    plain = write(schema_of(SCENE.struct, "scene"), language).splitlines()
    assert {*plain} - {*lines} <= {plain[0]}
    assert plain[-20:] == lines[-20:]


def test_fuzzing_finds_nothing() -> None:
    assert fuzz(SCENE, 50).failure is None


@pytest.mark.parametrize("command", ["inspect", "explain", "verify", "hash"])
def test_commands(command: str, tmp_path: Path, stored: bytes) -> None:
    (tmp_path / "room.scn").write_bytes(stored)
    done = in_this_process(command, tmp_path / "room.scn")
    assert (done.returncode, done.stderr) == (0, "")


def test_files_without_tensors_are_no_output(tmp_path: Path) -> None:
    with pytest.raises(glft.OptionError, match="expected a format that holds tensors, found scene"):
        glft.save_file({}, tmp_path / "room.scn")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Any:
    folder = compiled(installed(request), tmp_path_factory.mktemp("scene"), {"scene": schema_of(SCENE)})
    return python_reader(folder, "scene")


@given(data=st.data())
def test_the_generated_reader_has_the_same_verdict(reader: Any, data: st.DataObject) -> None:
    """Except for bytes after the last field, of which a Kaitai schema says nothing."""
    file = data.draw(containers("scene"))
    tried = data.draw(st.just(file) | corruptions(file).map(lambda corruption: corruption.stored))
    try:
        glft.Container.parse(tried)
        is_valid = True
    except glft.FormatError as error:
        is_valid = error.problem.startswith("expected the end of the file")
    try:
        read = reader.from_bytes(tried)
        bits = [(point.flags_visible, point.flags_locked) for point in read.points]
        is_read = True
    except Exception:  # of the library's many classes
        is_read = False
    assert is_read == is_valid
    if is_read:
        assert bits == [(bool(point.flags & 1), bool(point.flags & 2)) for point in glft.Container.parse(tried).points]
