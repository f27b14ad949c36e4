"""Edits of metadata and names: everything else stays, and nothing is written after an error."""

from __future__ import annotations

import os
import re
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from construct import Const, this
from hypothesis import given, settings
from hypothesis import strategies as st

import glft_schema
from glft_schema import Container, FormatError, OptionError, Typed, check_rules, convert, edit, save_file, split
from glft_schema.codec.numbers import u8
from glft_schema.codec.structs import Count, Struct
from glft_schema.codec.tables import Table
from glft_schema.errors import SimilarKeyWarning
from glft_schema.files.file import File
from glft_schema.formats import registry
from glft_schema.formats.format import Format
from glft_schema.formats.glft import TYPES, Descriptor
from glft_schema.formats.registry import FORMATS
from glft_schema.tensors.region import TensorData
from glft_schema.testing import containers
from tests.golden import golden
from tests.oracles import glft_reference as reference
from tests.oracles import llama_cpp
from tests.oracles.glft_reference import F32, Q8, Row

TENSORS = {
    "blk.0.weight": torch.arange(256.0).reshape(4, 64),
    "norm": torch.ones(5),
    "none": torch.zeros(0, 4),
    "scale": torch.tensor(3.0),
}
METADATA = {
    "general.architecture": "toy",
    "general.name": "Toy",
    "toy.block_count": 2,
    "toy.u8": Typed(7, "uint8"),
    "toy.words": ["a", "b"],
    "toy.bytes": Typed([1, 2], "array[uint8]"),
    "toy.flag": True,
    "toy.nan": np.frombuffer(bytes.fromhex("0100a07f"), "<f4")[0],
}
SOURCES = ("gguf", "big", "v1", "gguf 64", "glft", "glft 64", "loose", "safetensors")


def write_source(path: Path, name: str) -> None:
    if name == "loose":
        path.write_bytes(golden("loose_layout"))
    elif name == "safetensors":
        safetensors.torch.save_file(TENSORS, path, {"general.name": "Toy"})
    elif name.startswith("glft"):
        save_file(TENSORS, path, {"general.name": "Toy", "note": "a=b"}, alignment=64 if "64" in name else None, format="glft")
    else:
        header = {"big": {"byte_order": "big"}, "v1": {"version": 1}}.get(name, {})
        save_file(TENSORS, path, METADATA, schemes={"blk.*": "f16"}, header=header, format="gguf",
                  alignment=64 if "64" in name else None, rules=())  # fmt: skip


@pytest.fixture(params=SOURCES)
def any_source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_source(tmp_path / "model", request.param)
    return tmp_path / "model"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    write_source(tmp_path / "model.gguf", "gguf")
    return tmp_path / "model.gguf"


def payloads(path: Path) -> list[object]:
    with glft_schema.open(path) as file:
        first, *others = file.tensors.values()
        is_aligned = first.position % file.regions.counts.get("alignment", 64) == 0
        return [is_aligned, *((bytes(t.raw), t.dims, t.type, t.offset - first.offset) for t in (first, *others))]


def stored(path: Path) -> dict[str, Any]:
    """Returns the metadata as stored, in order."""
    with glft_schema.open(path) as file:
        typed = hasattr(file.metadata, "stored_value")
        return {key: repr(file.metadata.stored_value(key)) if typed else file.metadata[key] for key in file.metadata}


@pytest.mark.posix("replaces an open file")
def test_everything_else_stays(any_source: Path, tmp_path: Path) -> None:
    """The file comes back, byte for byte, when the edits are taken back."""
    before, was, entries, out = any_source.read_bytes(), payloads(any_source), stored(any_source), tmp_path / "out"
    key = next(key for key in entries if key in ("general.name", "k"))
    first, *others = Container.parse_file(any_source).tensors
    old = Container.parse_file(any_source).metadata[key]
    edited = edit(any_source, out, set={key: "a longer text", "toy.new": "x"}, rename={first: first + "é" * 20})
    assert [change.action for change in edited.changes] == ["set", "add", "rename"]
    assert edited.nbytes == out.stat().st_size
    assert payloads(out) == was
    assert list(Container.parse_file(out).tensors) == [first + "é" * 20, *others]
    assert list(now := stored(out)) == [*entries, "toy.new"]
    assert [now[other] for other in entries if other != key] == [entries[other] for other in entries if other != key]
    edit(out, set={key: old}, remove=["toy.new"], rename={first + "é" * 20: first})
    assert out.read_bytes() == any_source.read_bytes() == before


def test_dry_run(gguf: Path) -> None:
    before, status = gguf.read_bytes(), gguf.stat()
    planned = edit(gguf, set={"general.name": "A longer name"}, dry_run=True)
    assert (gguf.read_bytes(), gguf.stat(), os.listdir(gguf.parent)) == (before, status, [gguf.name])
    with glft_schema.open(gguf) as file:
        assert planned.copied == file.tensors.size
    assert edit(gguf, set={"general.name": "A longer name"}) == planned


@settings(max_examples=max(settings.default.max_examples // 10, 10))
@given(st.data())
@pytest.mark.parametrize("format", ["gguf", "glft"])
def test_any_file(tmp_path_factory: pytest.TempPathFactory, format: str, data: st.DataObject) -> None:
    source = data.draw(containers(format))
    file = Container.parse(source)
    if not file.tensors:
        return
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(source)
    old, new = data.draw(st.sampled_from([*file.tensors])), data.draw(st.text("ab_", min_size=1, max_size=40))
    if new in file.tensors:
        return
    edit(path, rename={old: new})
    with glft_schema.open(path, mmap=False) as edited:
        assert list(edited.tensors) == [new if name == old else name for name in file.tensors]
        assert [bytes(tensor.raw) for tensor in edited.tensors.values()] == [bytes(t.raw) for t in file.tensors.values()]
        has_text = any(file.regions.get("padding") or b"")
    try:
        edit(path, rename={new: old})
    except FormatError:
        assert check_rules(file, file.format.rule_sets)  # the first name broke a rule, and the new one does not
        return
    assert path.read_bytes() == source or has_text  # padding other than zeros is lost if its length changes


def test_against_bytes_written_by_hand(path: Path) -> None:
    """The file after an edit is what another writer makes of the edited parts."""
    rows = [Row("a", [2], F32, struct.pack("<2f", 1, 2)), Row("b", [1, 2], Q8, b"\x00\x3c\x05\xfb")]
    path.write_bytes(reference.back_to_back(b"k=v\nlast=1\n", rows))
    edit(path, set={"k": "=longer", "new": ""}, remove="last", rename={"a": "b", "b": "a"})
    rows[0].name, rows[1].name = "b", "a"
    assert path.read_bytes() == reference.back_to_back(b"k==longer\nnew=\n", rows)


A, B = (f'{{"dtype": "U8" , "shape":[1],\t"data_offsets":[{i},{i + 1}]}}' for i in range(2))
EDITS: list[tuple[str, dict[str, Any], str]] = [  # JSON before, what is edited, JSON after
    (f'{{"b": {B}, "a":{A}}}', {"rename": {"a": 'c"é'}}, f'{{"b":{B},"c\\"é":{A}}}'),
    (f'{{"a":{A} , "\\u0062":{B}}}', {"rename": {"a": "b", "b": "a"}}, f'{{"b":{A},"a":{B}}}'),
    (f'{{"a":{A},"__metadata__":{{"i": "1", "k" :"\\u0076"}},"b":{B}}}\n', {"set": {"l": "3"}, "remove": "i"},
     f'{{"__metadata__":{{"k":"v","l":"3"}},"a":{A},"b":{B}}}'),
    (f'{{"a":["U8",[1],[0,1]],"b":{B},"__metadata__": {{"k":"v"}} }}', {"remove": "k"}, f'{{"a":{A},"b":{B}}}'),
]  # fmt: skip


@pytest.mark.parametrize(("before", "edits", "after"), EDITS)
def test_json_is_written_anew(path: Path, before: str, edits: dict[str, Any], after: str) -> None:
    """In the order of the rows and keys before, without spaces but those that pad the text."""

    def file(text: str) -> bytes:
        return struct.pack("<Q", len(text.encode())) + text.encode() + b"\x01\x02"

    path.write_bytes(file(before))
    edit(path, **edits)
    after = after.replace('": ', '":').replace('" ,', '",').replace(" ", "").replace("\t", "")
    assert path.read_bytes() == file(after + " " * (-len(after.encode()) % 8))


def test_against_the_safetensors_library(tmp_path: Path) -> None:
    """The edited file is the one that the library writes, and a renamed tensor is what it reads."""
    path, expected = tmp_path / "model.safetensors", tmp_path / "expected.safetensors"
    for before, edits, after in (
        (None, {"set": {"format": "pt"}}, {"format": "pt"}),
        ({"format": "pt"}, {"set": {"format": 'é"\n'}}, {"format": 'é"\n'}),
        ({"format": "pt"}, {"remove": "format"}, None),
    ):
        safetensors.torch.save_file(TENSORS, path, before)
        safetensors.torch.save_file(TENSORS, expected, after)
        edit(path, **edits)
        assert path.read_bytes() == expected.read_bytes()
    edit(path, rename={"norm": "ü"})
    assert torch.equal(safetensors.torch.load_file(path)["ü"], TENSORS["norm"])


def test_llama_cpp_sees_only_the_edit(gguf: Path) -> None:
    before = llama_cpp.contents(gguf.read_bytes())
    edit(gguf, set={"toy.block_count": 3, "general.name": "Other"}, remove=["toy.words"], rename={"norm": "n"})
    after = llama_cpp.contents(gguf.read_bytes())
    assert before is not None
    assert after is not None
    changed = {b"toy.block_count": struct.pack("<I", 3), b"general.name": b"Other"}
    entries = [(key, code, changed.get(key, value)) for key, code, value in before[0] if key != b"toy.words"]
    assert after == (entries, [(b"n" if name == b"norm" else name, *rest) for name, *rest in before[1]])


@pytest.mark.parametrize(
    ("key", "value", "expected", "type_"),
    [
        ("toy.block_count", "3", 3, "uint32"),
        ("toy.block_count", "[3, 4]", None, "metadata -> toy.block_count: expected a uint32, found '[3, 4]'"),
        ("toy.block_count", Typed([3, 4], "array[int32]"), [3, 4], "array[int32]"),  # a number for each layer
        ("toy.u8", "255", 255, "uint8"),
        ("toy.u8", 256, None, "expected an integer in the range of u8, found 256"),
        ("toy.words", '["c"]', ["c"], "array[string]"),
        ("toy.bytes", "[3]", [3], "array[uint8]"),
        ("toy.bytes", "[300]", None, "expected an array[uint8], found '[300]'"),
        ("toy.flag", "false", False, "bool"),
        ("general.name", "5", "5", "string"),
        ("toy.u8", Typed(5, "int64"), 5, "int64"),
        ("toy.context_length", "5", 5, "uint32"),  # well known
        ("tokenizer.ggml.scores", "[0.5]", [0.5], "array[float32]"),
        ("toy.new", "5", "5", "string"),
        ("toy.new", 5, 5, "uint32"),
    ],
)
def test_types(gguf: Path, key: str, value: Any, expected: Any, type_: str) -> None:
    if expected is None:
        with pytest.raises(FormatError, match=re.escape(type_)):
            edit(gguf, set={key: value})
        return
    (change,) = edit(gguf, set={key: value}).changes
    with glft_schema.open(gguf) as file:
        assert (file.metadata[key], file.metadata.type_of(key)) == (expected, type_)
        assert change.after == Typed(expected, type_)


def test_typed_values_in_text(gguf: Path, tmp_path: Path) -> None:
    """GLFT files made of GGUF files have types in their text; they are kept."""
    convert(gguf, tmp_path / "model.glft")
    before = stored(tmp_path / "model.glft")
    edited = edit(tmp_path / "model.glft", set={"toy.block_count": "3", "toy.new": Typed(1, "uint8")}, remove="toy.u8")
    assert [str(change) for change in edited.changes] == [
        "set 'toy.block_count': 'uint32 2' -> 'uint32 3'",
        "add 'toy.new': 'uint8 1'",
        "remove 'toy.u8': 'uint8 7'",
    ]
    after = before | {"toy.block_count": "uint32 3", "toy.new": "uint8 1"}
    del after["toy.u8"]
    assert stored(tmp_path / "model.glft") == after


def test_lines_of_the_report(gguf: Path) -> None:
    set_ = {"toy.words": '["c"]', "toy.new": "text " * 40, "toy.u8": Typed(1, "int8")}
    edited = edit(gguf, set=set_, remove=["toy.flag"], rename={"norm": "n\n"}, dry_run=True)
    assert [str(change) for change in edited.changes] == [
        "set 'toy.words': array[string] of 2: ['a', 'b'] -> array[string] of 1: ['c']",
        "add 'toy.new': string 'text text text text text text text text text tex'... (200 in all)",
        "set 'toy.u8': uint8 7 -> int8 1",
        "remove 'toy.flag': bool True",
        "rename 'norm' -> 'n\\n'",
    ]


def test_a_long_value_is_reported_from_its_first_difference(gguf: Path) -> None:
    text, words = "".join(f"{i} " for i in range(300)), [f"word {i}" for i in range(2000)]
    edit(gguf, set={"toy.text": text, "toy.words": words})
    changed = edit(gguf, set={"toy.text": text.replace(" 150 ", " OTHER "), "toy.words": [*words[:1500], "x"]}, dry_run=True)
    start = text.index("150") - 12
    assert [str(change) for change in changed.changes] == [
        f"set 'toy.text': string of {len(text):,}, from {start}: {text[start : start + 48]!r} -> "
        f"string of {len(text) + 2:,}, from {start}: {text[start : start + 12] + 'OTHER' + text[start + 15 : start + 46]!r}",
        "set 'toy.words': array[string] of 2,000, from 1,500: ['word 1500', 'word 1501', 'word 1502', 'word 1503', 'wor... -> "
        "array[string] of 1,501, from 1,500: ['x']",
    ]


def test_a_check_sees_both_files_and_can_refuse(gguf: Path) -> None:
    before, seen = gguf.read_bytes(), []

    def check(file: File, edited: File) -> None:
        seen.extend((file.metadata["general.name"], edited.metadata["general.name"], list(edited.tensors)))
        raise OptionError("refused")

    with pytest.raises(OptionError, match=r"^refused$"):
        edit(gguf, set={"general.name": "B"}, rename={"norm": "n"}, check=check)
    assert (seen, gguf.read_bytes()) == (["Toy", "B", ["blk.0.weight", "n", "none", "scale"]], before)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "expected at least one change, found none to set, remove or rename"),
    ({"remove": ["toy.gone"]}, "expected an existing metadata key to remove, found 'toy.gone'"),
    ({"remove": "blk.0.weight"}, "expected an existing metadata key to remove, found 'blk.0.weight', which is a tensor: "
     "use glft convert --exclude"),
    ({"rename": {"gone": "x"}}, "expected an existing tensor to rename, found 'gone'"),
    ({"rename": {"blk.0.wieght": "x"}},
     "expected an existing tensor to rename, found 'blk.0.wieght'; did you mean 'blk.0.weight'?"),
    ({"rename": {"blk.*": "x"}}, "expected an existing tensor to rename, found 'blk.*': patterns are not supported"),
    ({"rename": {"general.name": "x"}}, "expected an existing tensor to rename, found 'general.name', which is a metadata key"),
    ({"rename": {"norm": "scale"}}, "expected a new name for tensor 'norm', found 'scale', which is taken"),
    ({"rename": {"norm": "x", "scale": "x"}}, "found 'x', which is taken"),
    ({"set": {"toy.u8": 1}, "remove": ["toy.u8"]}, "expected each key to be set or removed, found both for 'toy.u8'"),
    ({"set": {"general.alignment": 64}}, "found 'general.alignment', which describes the file's layout"),
    ({"set": {"split.count": 1}}, "found 'split.count', which describes the file's layout"),
    ({"set": {"toy.block_count": Typed("x", "string")}}, "expected an integer or an array of integers for toy.block_count"),
    ({"set": {"toy.new": []}}, "expected at least one element, found none: give the type"),
    ({"remove": ["general.architecture"]}, "expected the key general.architecture, found 7 other keys"),
    ({"set": {"General.Name": "x"}}, "expected lower_snake_case segments joined by dots, found 'General.Name'"),
    ({"rename": {"norm": "n" * 64}}, "tensor_infos -> 1 -> name: expected at most 63 bytes, found 'nnn"),
]  # fmt: skip


@pytest.mark.parametrize(("edits", "text"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_refused(gguf: Path, edits: dict[str, Any], text: str) -> None:
    before = gguf.read_bytes()
    for options in ({}, {"dry_run": True}):
        with pytest.raises((OptionError, FormatError), match=re.escape(text)):
            edit(gguf, **edits, **options)
    assert (gguf.read_bytes(), os.listdir(gguf.parent)) == (before, [gguf.name])


def test_rules_that_the_source_breaks_are_not_enforced(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    save_file(TENSORS, path, {"No": 1}, format="gguf", rules=())
    edit(path, set={"Also no": "x"}, rename={"norm": "n" * 63})
    with pytest.raises(FormatError, match="expected at most 63 bytes") as caught:  # of llama.cpp, whose rules it keeps
        edit(path, rename={"scale": "n" * 64})
    assert caught.value.rule == "gguf-name-63"
    with pytest.raises(FormatError, match="expected an integer or an array of integers for toy"):
        edit(path, set={"toy.block_count": Typed("x", "string")})


def test_text_takes_no_types(path: Path) -> None:
    write_source(path, "glft")
    for value, text in ((5, "5"), (Typed(300, "uint8"), "uint8 300")):
        with pytest.raises(FormatError, match=f"k: expected text, the only type in GLFT, found {re.escape(text)}$"):
            edit(path, set={"k": value})
    with pytest.raises(FormatError, match="expected a value without newlines for 'k'"):
        edit(path, set={"k": "a\nb"})


def test_sets_of_shards(gguf: Path, tmp_path: Path) -> None:
    for number, path in enumerate(split(gguf, tmp_path / "part", max_tensors=2)):
        text = f"not part of a set, found file {number + 1} of 2 .part-00001-of-00002.gguf.: merge the set first"
        with pytest.raises(OptionError, match=text):
            edit(path, set={"general.name": "x"})


def test_sets_with_an_index(tmp_path: Path) -> None:
    write_source(tmp_path / "whole.safetensors", "safetensors")
    (tmp_path / "set").mkdir()
    part, *_, index = split(tmp_path / "whole.safetensors", tmp_path / "set" / "part", max_tensors=2)
    edit(tmp_path / "whole.safetensors", set={"k": "v"})
    of_an_index = r"found one of the files of an index \(part\.safetensors\.index\.json\): merge the set first"
    an_index = "expected a single file, found the index of a set: merge the set first"
    for path, problem in ((part, of_an_index), (index, an_index), (tmp_path / "set", an_index)):
        with pytest.raises(OptionError, match=problem):
            edit(path, set={"k": "v"})


def test_an_empty_output_does_not_mean_the_source(gguf: Path) -> None:
    before = gguf.read_bytes()
    with pytest.raises(FileNotFoundError):
        edit(gguf, "", set={"general.name": "x"})
    assert gguf.read_bytes() == before


def test_a_folder_with_one_file(tmp_path: Path) -> None:
    write_source(tmp_path / "whole.safetensors", "safetensors")
    edit(tmp_path, set={"k": "v"})
    assert stored(tmp_path / "whole.safetensors")["k"] == "v"


@pytest.mark.parametrize("name", ["out.safetensors", "out.GLFT"])
def test_the_format_is_kept(gguf: Path, tmp_path: Path, name: str) -> None:
    text = f"edit keeps the format, GGUF, found the output '{name}': write GGUF, then use glft convert"
    with pytest.raises(OptionError, match=re.escape(text)):
        edit(gguf, tmp_path / name, set={"general.name": "x"})
    edit(gguf, tmp_path / "out.bin", set={"general.name": "x"})
    assert sorted(os.listdir(tmp_path)) == ["model.gguf", "out.bin"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"__metadata__":{"k":"a","k":"b"}}',
         "'__metadata__' -> 'k': expected each key of the reserved entry once, found 'k' again"),
        ('{"__metadata__":{"k":"a"},"__metadata__":{"j":"b"}}',
         "'__metadata__': expected the reserved entry once, found '__metadata__' again"),
        (f'{{"a":{A},"a":{A}}}', "'a': expected each name once, found 'a' again"),
        (f'{{"a":{A[:-1]},"x":1}}}}', "'a' -> 'x': expected only known keys in an entry, found 'x'"),
        (f'{{"a":{A[:-1]},"shape":[1]}}}}', "'a' -> 'shape': expected each key of an entry once, found 'shape' again"),
    ],
)  # fmt: skip
def test_what_a_new_text_would_lose_is_refused(path: Path, text: str, problem: str) -> None:
    path.write_bytes(source := struct.pack("<Q", len(text)) + text.encode() + b"\1" * ("dtype" in text))
    with pytest.raises(FormatError, match=f"^tensor_infos -> {problem}: a change would lose it"):
        edit(path, set={"x": "3"})
    assert path.read_bytes() == source


BARE = Format("Bare", (b"BARE",), TYPES, Struct(
    "magic" / Const(b"BARE") * "the magic",
    "n" / Count(u8, this.rows) * "number of rows",
    "rows" / Table(this.n, Descriptor) * "a row for each tensor",
    "data" / TensorData("rows") * "payloads",
))  # fmt: skip


def test_a_format_without_metadata(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "FORMATS", [*FORMATS, BARE])
    save_file({"a": torch.ones(2)}, path, format="Bare")
    before = path.read_bytes()
    edit(path, rename={"a": "bcd"})
    assert path.read_bytes() == before.replace(b"\1\0a", b"\3\0bcd")
    with pytest.raises(OptionError, match="Bare files have no metadata, found 'k' to set"):
        edit(path, set={"k": "v"})


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("general.nmae", "general.name"),  # swapped
        ("general.nam", "general.name"),
        ("generalname", "general.name"),
        ("toy.bloc_count", "toy.block_count"),
        ("tby.block_count", "toy.block_count"),  # known for any architecture, but the file's is another
        ("tokenizer.ggml.bos_token_jd", "tokenizer.ggml.bos_token_id"),
        ("toy.u9", None),  # not well known
        ("toy.context_length", None),
        ("general.nmea", None),  # two typos
    ],
)
def test_typos(gguf: Path, key: str, known: str | None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        edit(gguf, set={key: Typed("x", "string") if known is None and "length" not in key else "1"})
        edit(gguf, set={key: "1"})  # not new any more
    expected = [(SimilarKeyWarning, f"the new key {key!r} resembles the well-known key {known!r}")] if known else []
    assert [(warning.category, str(warning.message)) for warning in caught] == expected


def test_a_file_without_tensors(tmp_path: Path) -> None:
    """The padding has its full length again, and stays missing if the file has none."""
    path = tmp_path / "vocabulary.gguf"
    Container.build_file({"format": "GGUF", "metadata": METADATA}, path)
    for source in (path.read_bytes(), path.read_bytes().rstrip(b"\0")):
        path.write_bytes(source)
        edit(path, set={"general.name": "A name of another length"})
        assert (path.stat().st_size % 32 == 0) is (source[-1:] == b"\0")
        edit(path, set={"general.name": "Toy"})
        assert path.read_bytes() == source
