"""Formats whose files hold no tensors: documents, readers and test data from one Struct."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from construct import Const, Default, GreedyBytes, len_, this
from hypothesis import given
from hypothesis import strategies as st

import glft_schema as glft
from glft_schema.codec import (
    ByteOrderOf,
    Count,
    Derived,
    Flags,
    NamesOnce,
    Numbers,
    Rule,
    Sizes,
    Strings,
    Struct,
    Table,
    Text,
    TypeCode,
    TypeTable,
    f16,
    f32,
    i32,
    u8,
    u16,
    u32,
)
from glft_schema.codec.context import BIG
from glft_schema.codec.predicates import equals, meets
from glft_schema.codec.typed_text import as_json_value
from glft_schema.describe import schema_of, write
from glft_schema.display import records_table
from glft_schema.errors import quote
from glft_schema.formats import Format, TensorData, TensorFits
from glft_schema.testing import corpus, fuzz
from glft_schema.testing.damage import truncated
from glft_schema.types import GGML_TYPES
from tests.formats.own_formats import registered
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
    "magic"      / Const(b"SCN1")                           * "'SCN1'",
    "byte_order" / ByteOrderOf(BIG)                         * "big",
    "n_names"    / Count(u16, this.names)                   * "number of names",
    "names"      / Default(Strings(u8, this.n_names), [])   * "the string table",
    "n_points"   / Count(u32, this.points)                  * "number of points",
    "points"     / Default(Table(this.n_points, Point), []) * "one per point",
), endings=(".scn",))
TYPES = TypeTable("textured", {1: GGML_TYPES["F16"], 2: GGML_TYPES["Q8_0"]})
Texture = Struct(
    "name"   / Text(u8)                             * "name of the texture",
    "dims"   / Sizes(u8, u32, "dims")               * "sizes in torch's order",
    "shape"  / Derived(this.dims)                   * "the same sizes",
    "dtype"  / TypeCode(u8, TYPES)                  * "how the payload is stored",
    "flags"  / Default(Flags(u8, transparent=0), 0) * "how it is drawn",
    "offset" / u32                                  * "first byte of the payload",
    TensorFits("textured-dims", "dims"),
)
TEXTURED = Format("textured", (b"SCN2",), TYPES, Struct(
    "magic"      / Const(b"SCN2")                  * "'SCN2'",
    *SCENE.struct.subcons[1:],
    "n_textures" / Count(u16, this.textures)       * "number of textures",
    "textures"   / Table(this.n_textures, Texture) * "one per texture",
    "data"       / TensorData("textures")          * "the payloads",
    NamesOnce("textured-names", "textures"),
), endings=(".scn2",))
# fmt: on
POINTS = [
    {"name": 0, "position": [0, 1, 0.5]},
    {"name": 1, "flags": ["visible", "locked"], "position": [2, 0, 0]},
    {"name": 9, "flags": 0, "position": [2, 0, 0]},
]
VALUES = {"format": "scene", "names": ["lamp", "door"], "points": POINTS}


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    with registered(SCENE, TEXTURED):
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


def test_names_of_bits_are_asked_for_and_misspelled_ones_are_errors(stored: bytes) -> None:
    lamp, door, _ = glft.Container.parse(stored).points
    assert ("locked" in door.flags, "visible" in lamp.flags, "locked" in lamp.flags) == (True, True, False)
    for name, problem in (("locket", "'locket'; did you mean 'locked'?"), (1, "1; keys are names, such as 'visible'")):
        with pytest.raises(KeyError) as caught:
            name in door.flags  # noqa: B015
        assert str(caught.value) == problem


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
        (256, "expected an integer in the range of u8, found 256"),
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


def test_a_declaration_is_written_as_its_schema() -> None:
    assert write(SCENE, "c") == write(schema_of(SCENE), "c")
    assert write(Point, "markdown") == write(schema_of(Point), "markdown")
    with pytest.raises(TypeError, match="expected a Format, a tensor type or a Struct, found 'c'"):
        write("c", SCENE)  # type: ignore[arg-type]
    with pytest.raises(glft.OptionError, match="expected one of markdown, json, kaitai, c, found <Format: scene"):
        write(SCENE, SCENE)  # type: ignore[arg-type]


def test_test_data_of_a_format_by_its_name() -> None:
    assert fuzz("scene", 5).hashes == fuzz(SCENE, 5).hashes
    assert [case.sha256 for case in corpus("Scene", 5)] == [case.sha256 for case in corpus(SCENE, 5)]
    for unknown in (lambda: fuzz("scenes", 5), lambda: corpus("scenes", 5)):
        with pytest.raises(glft.OptionError, match=r"found 'scenes'; did you mean 'scene'\?"):
            unknown()


@pytest.mark.parametrize("format", [SCENE, TEXTURED], ids=lambda declared: declared.name)
def test_fuzzing_finds_nothing(format: Format) -> None:
    assert fuzz(format, 50).failure is None


def test_the_same_fields_beside_tensors(tmp_path: Path) -> None:
    glft.save_file({"wood": np.ones((4, 32), np.float32)}, tmp_path / "wood.scn2", schemes={"*": "q8_0"})
    with glft.open(tmp_path / "wood.scn2") as file:
        assert (file.names, file.points, file.textures[0].flags) == ([], [], 0)
        stored = glft.Container.build({**file.regions, **VALUES, "format": "textured"})
    (tmp_path / "room.scn2").write_bytes(stored)
    glft.edit(tmp_path / "room.scn2", tmp_path / "edited.scn2", rename={"wood": "oak"})
    with glft.open(tmp_path / "edited.scn2") as file:
        assert (file.names, [point.flags for point in file.points]) == (["lamp", "door"], [1, 3, 0])
        assert np.allclose(file.tensors["oak"].numpy(), 1, atol=1e-3)


def test_floats_of_a_format_without_float32(tmp_path: Path) -> None:
    ways = "exclude the tensor, select a type by a scheme, or convert it to one of float16"
    with pytest.raises(glft.TensorError, match=f"textured has no type for float32: {ways}"):
        glft.save_file({"wood": np.ones((4, 32), np.float32)}, tmp_path / "wood.scn2")


@given(data=st.data())
def test_a_cut_within_a_magic_is_reported_by_the_first_format_that_begins_so(data: st.DataObject) -> None:
    """Both magics begin with the same letters."""
    file = glft.Container.parse(glft.Container.build({"format": "textured", "data": {}, "textures": []}))
    cut = data.draw(truncated(file))
    with pytest.raises(cut.error) as caught:
        glft.Container.parse(cut.stored)
    assert caught.value.path == cut.path


def test_a_magic_counts_before_the_looks_of_a_file() -> None:
    """The first bytes are also a length of a safetensors header and its brace."""
    stored = glft.Container.build({"format": "textured", "names": ["", "", "{" * 123], "textures": [], "data": {}})
    assert stored[:10] == b"SCN2\0\3\0\0{{"
    assert glft.Container.parse(stored).names[2] == "{" * 123


@pytest.mark.parametrize("command", ["inspect", "explain", "verify", "hash"])
def test_commands(command: str, tmp_path: Path, stored: bytes) -> None:
    (tmp_path / "room.scn").write_bytes(stored)
    done = in_this_process(command, tmp_path / "room.scn")
    assert (done.returncode, done.stderr, "# model" in done.stdout) == (0, "", False)


# fmt: off
Sample = Struct("low" / f16 * "smallest", "high" / Default(f32, 0.1) * "largest", "flags" / Flags(u8, valid=0) * "state")
LOG = Format("log", (b"LOG1",), TypeTable("log", {}), Struct(
    "magic"     / Const(b"LOG1")                               * "'LOG1'",
    "scale"     / Default(f32, 0.5)                            * "a number",
    "n_samples" / Count(u8, this.samples)                      * "number of samples",
    "samples"   / Default(Table(this.n_samples, Sample), [])   * "one per sample",
    "raw"       / Default(Numbers(i32, 12), list(range(12)))   * "counters",
    "rest"      / Default(GreedyBytes, b"\xff")                * "the rest",
), endings=(".log1",))
# fmt: on


def test_numbers_of_numpy_are_shown_as_numbers_and_regions_as_json(tmp_path: Path) -> None:
    """A half of 0.1 is 0.0999755859375, by `struct`."""
    (low,) = struct.unpack("<e", struct.pack("<e", 0.1))
    samples = [{"low": 0.1, "flags": 1}, {"low": -2, "flags": 0}]
    with registered(LOG):
        glft.Container.build_file({"format": "log", "samples": samples}, tmp_path / "a.log1")
        file = glft.open(tmp_path / "a.log1")
        assert repr(file.samples[0]) == "<Record: low 0.1, high 0.1, flags 1 (valid)>"
        assert (quote(np.float32(0.1)), quote([np.int64(3)]), records_table("", file.samples).rows) == (
            "0.1",
            "[3]",
            [("0.09998", "0.1", "1"), ("-2", "0.1", "0")],
        )
        texts = in_this_process("inspect", tmp_path / "a.log1").stdout
        assert "scale    0.5" in texts
        cut, full = (
            json.loads(in_this_process("inspect", "--json", *more, tmp_path / "a.log1").stdout)["regions"]
            for more in ([], ["--full"])
        )
    high = struct.unpack("<f", struct.pack("<f", 0.1))[0]
    rows = [{"low": low, "high": high, "flags": 1}, {"low": -2.0, "high": high, "flags": 0}]
    same = {"magic": "LOG1", "scale": 0.5, "samples": rows, "rest": "\\xff"}
    assert cut == {**same, "raw": {"length": 12, "first": [*range(8)]}}
    assert full == {**same, "raw": [*range(12)]}


def test_json_of_long_bytes_and_of_other_objects() -> None:
    assert as_json_value(bytes(1001), 8) == {"length": 1001, "first": bytes(1000).decode()}
    assert as_json_value([GGML_TYPES["F16"], None, True, np.float16("nan")], 8) == ["F16", None, True, "nan"]


def test_explain_shows_bits_as_records_do(tmp_path: Path, stored: bytes) -> None:
    (tmp_path / "room.scn").write_bytes(stored)
    assert "points -> 1 -> flags: u8 = 3 (visible, locked)\n" in in_this_process("explain", tmp_path / "room.scn").stdout


def test_files_without_tensors_are_no_output(tmp_path: Path) -> None:
    with pytest.raises(glft.OptionError, match="expected a format that holds tensors, found scene"):
        glft.save_file({}, tmp_path / "room.scn")
