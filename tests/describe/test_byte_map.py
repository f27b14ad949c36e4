"""Byte maps cover every byte of a file, and their values match the bytes."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable
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
from glft_schema import ClosedError, Container, File
from glft_schema.codec.numbers import u8, u16
from glft_schema.codec.structs import Struct
from glft_schema.codec.tables import Table
from glft_schema.describe.byte_map import ByteMap, byte_map, byte_map_of
from glft_schema.describe.byte_range import ByteRange
from glft_schema.describe.hex_view import HexView
from glft_schema.errors import OptionError
from glft_schema.files.byte_counts import byte_counts
from glft_schema.files.parsing import parse_source
from glft_schema.formats.format import Format
from glft_schema.formats.glft import GLFT
from glft_schema.formats.safetensors import SAFETENSORS
from glft_schema.storage.source import BytesSource
from tests.catalogue.gguf_cases import READ
from tests.formats.safetensors_files import file_of
from tests.golden import golden
from tests.oracles.gguf_reference import File as Written
from tests.oracles.gguf_reference import Info, write_set
from tests.tools import gguf_strategies
from tests.tools import glft_strategies as strategies
from tests.tools.depth import some

NUMBERS = "u8=B i8=b u16=H i16=h u32=I i32=i u64=Q i64=q f16=e f32=f f64=d"
LETTERS = dict(pair.split("=") for pair in NUMBERS.split())


def mapped(stored: bytes) -> ByteMap:
    return byte_map(Container.parse(stored))


def lines(byte_ranges: Iterable[ByteRange], line: str = "{0.path}: {0.type} = {0.value!r}") -> list[str]:
    """Returns a line for each byte range."""
    return [line.format(byte_range) for byte_range in byte_ranges]


def check_cover(byte_ranges: Any, start: int, end: int) -> None:
    """Asserts that non-empty ranges cover the bytes from `start` to `end` in order."""
    byte_ranges = list(byte_ranges)
    assert all(byte_range.start < byte_range.end for byte_range in byte_ranges)
    assert all(one.end == other.start for one, other in pairwise(byte_ranges))
    assert (byte_ranges[0].start, byte_ranges[-1].end) == (start, end)


def check_number(byte_range: ByteRange, stored: bytes, big: bool) -> None:
    """Asserts that the value of a number is that of its bytes, by Python's own `struct`."""
    if letter := LETTERS.get(byte_range.type):
        (expected,) = struct.unpack((">" if big else "<") + letter, stored[byte_range.start : byte_range.end])
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
        if region == "data" and byte_range.tensor is None:
            gaps += byte_range.nbytes
            continue
        if region == "data":
            region = f"{file.tensors[byte_range.tensor].type} {byte_range.name if byte_range.node else 'bytes'}"
        counts[region] += byte_range.nbytes
    return dict(counts) | {"gaps": gaps}


GOLDEN = Path(__file__).parents[1] / "golden"
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


@pytest.mark.parametrize("name", ["gguf_little", "gguf_big"])
def test_the_lines_of_a_golden_file_are_its_byte_ranges(name: str) -> None:
    """Golden files have a line for each number and two for a text. Each is a range or a part."""
    found = mapped(golden(name))
    padding = next(byte_range for byte_range in found if byte_range.path == "padding")
    places, pending, at = set(), list(found), 0
    while pending:
        byte_range = pending.pop()
        places.add((byte_range.start, byte_range.end))
        pending.extend(found.inside(byte_range))
    for line in (GOLDEN / f"{name}.hex").read_text("utf-8").splitlines():
        stored, _, comment = line.partition("#")
        start, at = at, at + len(bytes.fromhex(stored))
        if not start < at <= padding.start:
            continue
        assert (start, at) in places or "," in comment, line
        if "length u64 = " in comment:
            (length,) = found.leaves(start, at)
            assert (length.name, length.type, length.value) == ("length", "u64", int(comment.rpartition("= ")[2]))


def test_golden_glft() -> None:
    found = mapped(golden("four_types"))
    rows = [s for s in found if s.start >= 114 or s.start < 16]
    expected = """0 header -> magic: u32 = 1196181076
4 header -> version: u32 = 1
8 header -> n_tensors: u32 = 4
12 header -> metadata_len: u32 = 22
114 data -> 'a' -> weights: f32[dims] = None
118 data -> 'b' -> weights: f16[dims] = None
124 data -> 'fc1' -> scales: f16[out] = None
128 data -> 'fc1' -> codes: i8[out, in] = None
134 data -> 'fc2' -> scales: f16[out, in // 64] = None
136 data -> 'fc2' -> nibbles: u8[out, in // 2] = None"""
    assert lines(rows, "{0.start} {0.path}: {0.type} = {0.value}") == expected.splitlines()
    assert found.at(4).doc == "1; a file with another number is another format"
    assert lines(found.inside(found.at(16))) == [
        r"metadata -> line 1: line key=value = 'arch=toy\n'",
        "metadata -> line 2: line key=value = 'note=a=b üß'",
    ]
    codes = lines(found.inside(found.at(128), 130, 132), "{0.path} = {0.value}")
    assert codes == ["data -> 'fc1' -> codes -> 0 -> 2 = -128", "data -> 'fc1' -> codes -> 1 -> 0 = 127"]
    name, dims = found.at(93), found.at(98)
    assert lines([name, dims], "{0.path}: {0.type} = {0.value!r} of {0.tensor}") == [
        "descriptors -> 3 -> name: text after u16 = 'fc2' of fc2",
        "descriptors -> 3 -> dims: u32[] after u8 = [1, 64] of fc2",
    ]
    assert lines(found.inside(name), "{0.name} = {0.value}, {0.nbytes}") == ["length = 3, 2", "text = fc2, 3"]


def test_golden_glft_loose() -> None:
    """A gap before, between and after; two names of one payload."""
    found = mapped(golden("loose_layout"))
    expected = """2 data gap ()
4 data -> 'y' -> weights field ('y',)
1 data gap ()
4 data -> 'x' -> weights field ('x', 'z')
2 data gap ()"""
    assert lines(found, "{0.nbytes} {0.path} {0.kind} {0.tensors}")[-5:] == expected.splitlines()
    assert found.tensors["z"][-1] == found.tensors["x"][-1] == found[-2]
    assert [s.name for s in found.tensors["z"]] == ["name", "dims", "dtype", "offset", "weights"]


def test_padding_after_payloads_is_told_from_gaps() -> None:
    infos = [Info(b"a", [3], 24, b"abc"), Info(b"b", [1], 24, b"d"), Info(b"c", [2], 24, b"ef")]
    infos[1].offset, infos[2].offset = 24, 28
    data = b"abc" + bytes(21) + b"d" + bytes(3) + b"ef" + bytes(2)
    stored = Written([(b"general.alignment", 4, 8)], infos, data, alignment=8).bytes()
    found, start = mapped(stored), Container.parse(stored).tensors.start
    expected = ["3 field", "5 padding", "16 gap", "1 field", "3 gap", "2 field", "2 padding"]  # 28 is no multiple of 8
    assert lines(found, "{0.nbytes} {0.kind}")[-7:] == expected
    assert found.at(start + 3).type == "padding to 8"
    before = found.at(start - 1)
    assert (before.path, before.kind, before.end, before.value) == ("padding", "padding", start, None)


def test_blocks_and_their_fields() -> None:
    payload = struct.pack("<e", 0.5) + bytes(range(16)) + struct.pack("<e", -2.0) + bytes(16)
    found = mapped(Written([], [Info(b"w", [32, 2], 2, payload)]).bytes())
    blocks = list(found.inside(found.tensors["w"][-1]))
    assert lines(blocks, "{0.path}: {0.type}, {0.nbytes}") == [
        "data -> 'w' -> blocks -> 0 -> 0: q4_0, 18",
        "data -> 'w' -> blocks -> 1 -> 0: q4_0, 18",
    ]
    (scale, codes), (second, _) = map(found.inside, blocks)
    assert (scale.doc, scale.value, second.value, codes.value) == ("scale", 0.5, -2.0, list(range(16)))
    assert [s.value for s in found.inside(codes, codes.start + 3, codes.start + 5)] == [3, 4]


def test_at_and_between() -> None:
    found = mapped(golden("four_types"))
    assert [found.at(s.start) for s in found] == [found.at(s.end - 1) for s in found] == list(found)
    for start, end, part in ((5, 9, slice(1, 3)), (4, 8, slice(1, 2)), (4, 4, slice(0))):
        assert list(found.between(start, end)) == list(found[part])
    for offset in (-1, found.nbytes):
        with pytest.raises(IndexError, match=f"byte {offset} is out of range: <bytes> has {found.nbytes} bytes"):
            found.at(offset)


def test_metadata_has_its_key() -> None:
    found = mapped(golden("gguf_little"))
    elements = [s for s in found if s.key == "g.nested" and s.name == "elements"]
    assert lines(elements, "{0.path}: {0.type}") == [
        "metadata -> 3 -> value -> elements -> 0 -> elements: u8[2]",
        "metadata -> 3 -> value -> elements -> 1 -> elements: (text after u64)[1]",
    ]


def test_an_unknown_type() -> None:
    found = mapped(READ["a type of a fork, 200"].stored)
    opaque = next(s for s in found if s.doc == "of an unknown type")
    assert (opaque.kind, opaque.type, opaque.value, list(found.inside(opaque))) == ("field", "bytes", None, [])


EMPTY = struct.pack("<IIII", 0x474C4654, 1, 0, 0)


@pytest.fixture
def extended(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ByteMap]:
    """Returns a function that maps an empty GLFT file with more fields before its data."""

    def mapped_with(stored: bytes, *fields: construct.Construct) -> ByteMap:
        *before, data = GLFT.struct.subcons
        format = Format("made up", GLFT.magics, GLFT.types, Struct(*before, *fields, data))
        monkeypatch.setattr("glft_schema.formats.registry.FORMATS", (format,))
        return byte_map(parse_source(BytesSource(EMPTY + stored)))

    return mapped_with


def test_fields_that_are_added_to_a_format_are_found(extended: Callable[..., ByteMap]) -> None:
    pair = Struct("low" / u8 * "the low one", "high" / u16 * "the high one", title="pair")
    inner = construct.Struct("n" / Int8ul * "a count", "rest" / construct.Bytes(this.n) * "so many bytes")
    found = extended(
        b"\x02\x01a\x02bc" + b"\x01\x05\x06\x07" + b"\x02\x01\x00x\x02\x00yz" + b"\x02ab",
        "n_tags" / u8 * "how many tags",
        "tags" / Table(this.n_tags, Struct("tag" / PascalString(Int8ul, "utf8") * "a word")) * "words",
        "pairs" / PrefixedArray(Int8ul, pair) * "numbers, two by two",
        "words" / PrefixedArray(Int8ul, PascalString(Int16ul, "utf8")) * "texts of any length",
        "extra" / inner * "of construct's own",
    )
    assert found.unclaimed == []
    *_, pairs, words, extra = found
    expected = """n_tags: u8 = 2, how many tags
tags -> 0 -> tag: text after u8 = 'a', a word
tags -> 1 -> tag: text after u8 = 'bc', a word
pairs: pair[] after u8 = None, numbers, two by two
words: (text after u16)[] after u8 = ['x', 'yz'], texts of any length"""
    assert lines(found, "{0.path}: {0.type} = {0.value!r}, {0.doc}")[-6:-1] == expected.splitlines()
    opened = [f"{words.start} words -> count = 2", f"{words.start + 1} words -> 0 = x", f"{words.start + 4} words -> 1 = yz"]
    assert lines(found.inside(words), "{0.start} {0.path} = {0.value}") == opened
    assert list(found.inside(words, words.start + 4)) == list(found.inside(words))[2:]
    assert lines(found.inside(pairs)) == ["pairs -> count: u8 = 1", "pairs -> 0: pair = None"]
    parts = [*found.leaves(pairs.start + 1, pairs.end), *found.inside(extra)]
    assert lines(parts, "{0.path} = {0.value}, {0.doc}") == [
        "pairs -> 0 -> low = 5, the low one",
        "pairs -> 0 -> high = 1798, the high one",
        "extra -> n = 2, a count",
        "extra -> rest = b'ab', so many bytes",
    ]


def test_bytes_without_a_name_are_unclaimed(extended: Callable[..., ByteMap]) -> None:
    found = extended(b"???", construct.Bytes(3))
    (byte_range,) = found.unclaimed
    assert (byte_range.start, byte_range.end, byte_range.path) == (len(EMPTY), len(EMPTY) + 3, "")
    *_, first, _, _, last = HexView(found).whole()
    assert (first, last) == ("unclaimed: bytes, 3 bytes", "3 bytes are not covered by any declared field")


def test_sets_have_a_map_for_each_file(tmp_path: Path) -> None:
    with glft_schema.open(write_set(tmp_path)) as file:
        with pytest.raises(OptionError, match=r"expected one file, found a set of 2: call byte_map on each of file\.shards"):
            byte_map(file)
        assert sum(byte_map(shard).nbytes for shard in file.shards) == file.nbytes


def test_closed_files() -> None:
    file = Container.parse(golden("four_types"))
    found = byte_map(file)
    file.close()
    assert found.at(4).value == 1
    for access in (lambda: list(found.inside(found.at(128))), lambda: byte_map(file)):
        with pytest.raises(ClosedError):
            access()


class Watched(BytesSource):
    """Records the start and size of each view."""

    def __init__(self, stored: bytes) -> None:
        super().__init__(stored)
        self.asked: list[tuple[int, int]] = []

    def _view(self, start: int, nbytes: int) -> memoryview:
        self.asked.append((start, nbytes))
        return super()._view(start, nbytes)


def test_only_the_range_asked_for_is_read() -> None:
    """An array of numbers and a payload are opened without a look at what lies before or after."""
    stored = Written([(b"k", 9, (5, list(range(5000))))], [Info(b"w", [32, 4000], 2, bytes(18 * 4000))]).bytes()
    found = byte_map(parse_source(source := Watched(stored)))
    for byte_range in (max((s for s in found if s.key), key=lambda s: s.nbytes), found.tensors["w"][-1]):
        source.asked.clear()
        middle = (byte_range.start + byte_range.end) // 2
        assert len(list(found.inside(byte_range, middle, middle + 40))) in (10, 11, 3, 4)
        assert list(found.leaves(middle, middle + 40))
        assert all(middle - 18 <= start and start + nbytes <= middle + 58 for start, nbytes in source.asked)
    assert source.asked  # for blocks; long arrays are views


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
        check_cover(found, 0, cut)
        claimed = [byte_range for byte_range in found if byte_range.kind != "unclaimed"]
        assert list(found) == claimed + found.unclaimed
        assert error.offset is not None
        if cut > payloads:
            assert list(found) == [
                replace(byte_range, end=min(byte_range.end, cut)) for byte_range in whole if byte_range.start < cut
            ]
            continue
        assert claimed == whole[: len(claimed)]
        # the error may be at an earlier count or offset if rows or a payload are missing as a whole
        assert claimed[-1].end <= error.offset or error.path.endswith((" -> n", " -> n_tensors", " -> n_kv", " -> offset"))


def test_of_a_whole_file_it_is_the_map() -> None:
    found, error = byte_map_of(BytesSource(golden("gguf_big")))
    assert (list(found), error, found.byte_order) == (list(mapped(golden("gguf_big"))), None, "big")


# the path of a byte range, empty for syntax, and its token; the last token is " \n"
JSON_TOKENS = r"""# {
tensor_infos -> 'w'#"w": {"dtype":"F32", "shape":[], "data_offsets":[0,1]}
# , "__metadata__": {
metadata -> 0 -> key#"k"
#:
metadata -> 0 -> value#"v"
#,
metadata -> 1 -> key#"k"
#:
metadata -> 1 -> value#"\u00e4"
#},
tensor_infos -> 0 -> name#"w"
#:{"shape" :
tensor_infos -> 0 -> dims#[2]
#,
tensor_infos -> 0 -> 'x'#"x":{"y":[1]}
#,"data_offsets":[
tensor_infos -> 0 -> offset#0
#,
tensor_infos -> 0 -> end#2
#],
tensor_infos -> 0 -> 'dtype'#"dtype":"U8"
#,"dtype":
tensor_infos -> 0 -> dtype#{"I8":null}
#}}"""


def test_every_token_of_a_json_table() -> None:
    """Replaced entries and values, and unknown keys, are told from syntax; the last counts."""
    tokens = [line.split("#") for line in JSON_TOKENS.splitlines()] + [["tensor_infos", " \n"]]
    text = "".join(token for _, token in tokens)
    _, *found, data = map = mapped(file_of(text, b"\xff\x02"))
    paths = [byte_range.path if byte_range.doc != "JSON syntax and known keys" else "" for byte_range in found]
    assert [[path, text[s.start - 8 : s.end - 8]] for path, s in zip(paths, found, strict=True)] == tokens
    values = [byte_range.value for byte_range in found if byte_range.type == "JSON"]
    assert values == [token for path, token in tokens if not path or path.endswith("'")]
    by_path = {byte_range.path: byte_range for byte_range in found}
    assert by_path["tensor_infos"].kind == "padding"
    assert by_path["tensor_infos -> 0 -> 'x'"].tensors == by_path["tensor_infos -> 'w'"].tensors == ("w",)
    value = by_path["metadata -> 1 -> value"]
    assert (value.key, value.value) == ("k", "ä")
    assert [part.value for part in map.inside(data)] == [-1, 2]


def test_a_json_table_without_rows() -> None:
    found = mapped(file_of('{"__metadata__":null} '))
    expected = ["header -> length, 8 field", "tensor_infos, 21 field", "tensor_infos, 1 padding"]
    assert lines(found, "{0.path}, {0.nbytes} {0.kind}") == expected


def test_a_json_table_with_a_broken_row() -> None:
    rows = [f'"{name}":{{"dtype":"F4","shape":[4],"data_offsets":[0,{end}]}}' for name, end in (("a", 2), ("b", -2))]
    text = f"{{{','.join(rows)}}}"
    found, error = byte_map_of(BytesSource(file_of(text, b"12")))
    assert error is not None
    assert error.path == "tensor_infos -> 1 -> offset"
    paths = ["tensor_infos -> 1 -> dtype", "tensor_infos", "tensor_infos -> 1 -> dims", ""]
    assert [byte_range.path for byte_range in found][-4:] == paths
    assert found.unclaimed[0].start == 8 + text.rindex(',"data_offsets"')
    assert [byte_range.value for byte_range in found if byte_range.path.endswith("-> dims")] == [[2], [2]]


@pytest.mark.parametrize(("name", "stored", "value"), [
    ("F8_E4M3", b"\x38", 1.0), ("F8_E5M2", b"\x3c", 1.0), ("F8_E8M0", b"\x80", 2.0), ("F4", b"\x21", 0x21), ("BOOL", b"\1", 1),
    ("F8_E4M3FNUZ", b"\x40", 1.0), ("F8_E5M2FNUZ", b"\x40", 1.0), ("C64", bytes(4) + b"\0\0\x80\x3f", 1j),
])  # fmt: skip
def test_values_of_dtypes(name: str, stored: bytes, value: Any) -> None:
    shape = 2 if name == "F4" else 1
    text = f'{{"w":{{"dtype":"{name}","shape":[{shape}],"data_offsets":[0,{len(stored)}]}}}}'
    found = mapped(file_of(text, stored))
    assert [part.value for part in found.inside(found[-1])] == [value]
