"""Kaitai Struct: readers compiled from our ``.ksy`` files read the same as this package."""

from __future__ import annotations

import dataclasses
import io
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch as safetensors
import torch
from construct import Bytes, If, IfThenElse, len_, this

from glft_schema import Container
from glft_schema.codec.numbers import Picked, Sizes, f16, u8, u16, u32, u64
from glft_schema.codec.predicates import differs_from, meets
from glft_schema.codec.rules import Rule
from glft_schema.codec.structs import Derived, Struct
from glft_schema.codec.tables import Table
from glft_schema.codec.text import Text
from glft_schema.codec.type_codes import TypeCode, TypeTable
from glft_schema.describe.kaitai.as_kaitai import as_kaitai
from glft_schema.describe.schema import schema_of
from glft_schema.formats.format import Format
from glft_schema.formats.safetensors import SAFETENSORS
from glft_schema.tensor_types.blocks import block_type
from tests.corpus import corpus
from tests.golden import golden
from tests.oracles import gguf_reference
from tests.oracles.gguf_reference import ARRAY, STRING, File, Info
from tests.oracles.kaitai_readers import (
    FORMATS,
    SCHEMAS,
    Ours,
    Theirs,
    compiled,
    installed,
    javascript,
    node,
    ours,
    python_reader,
)
from tests.tools.depth import some

TYPES = [type_ for name in FORMATS for type_ in FORMATS[name].types]
GOLDEN = {"GLFT": ["four_types", "loose_layout"], "GGUF": ["gguf_little", "gguf_big"]}


# The text, without the compiler


def test_a_json_text_is_not_described() -> None:
    spec = json.loads(as_kaitai(schema_of(SAFETENSORS)))
    assert [attr["id"] for attr in spec["seq"]] == ["header", "tensor_infos", "data"]
    assert spec["seq"][1]["doc"].endswith("\nJSON text. Its entries are not described here.")
    assert spec["types"].keys().isdisjoint({"tensor_info", "metadata_entry"})
    described = {type_["doc"].splitlines()[0] for type_ in spec["types"].values() if "params" in type_ and "doc" in type_}
    assert described >= {"F4: 2 weights in 1 byte, 4 bits or 0.5 bytes each.", "C64: 8 bytes a weight, 64 bits."}


# The compiled readers


@pytest.fixture(scope="module")
def cache(request: pytest.FixtureRequest) -> Path:
    return installed(request)


@pytest.fixture(scope="module")
def readers(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kaitai")
    schemas = {name.lower(): schema_of(format) for name, format in FORMATS.items()}
    return compiled(cache, folder, {**schemas, "safetensors": schema_of(SAFETENSORS)})


def as_javascript(seen: Any) -> Any:
    """Returns data as JavaScript reads it.

    Integers are floats, rounded from 2^53 on. Text is decoded with replacements and loses a byte
    order mark at its beginning.
    """
    if isinstance(seen, dict) and seen.keys() == {"bytes", "text"}:
        text = bytes.fromhex(seen["bytes"]).decode("utf-8", "replace")
        return {"bytes": seen["bytes"], "text": text.removeprefix("\ufeff")}
    if isinstance(seen, dict):
        return {key: as_javascript(value) for key, value in seen.items()}
    if isinstance(seen, list):
        return [as_javascript(value) for value in seen]
    if isinstance(seen, int):
        return str(int(float(seen) if seen >= -(1 << 31) else misread(seen)))
    return seen.removeprefix("\ufeff") if isinstance(seen, str) else seen


def misread(number: int) -> float:
    """Returns an i64 below -2^31 as the JavaScript runtime misreads it: both halves as signed."""
    halves = [half - (1 << 32) if half >= 1 << 31 else half for half in (~number & 0xFFFFFFFF, ~number >> 32)]
    return -(float(1 << 32) * halves[1] + halves[0]) - 1


@pytest.fixture
def check(cache: Path, readers: Path, tmp_path: Path) -> Callable[..., list[Any]]:
    """Returns a function that reads files in both languages and compares the content with ours."""

    def checked(format: str, *files: bytes) -> list[Any]:
        expected, reader = [ours(file) for file in files], python_reader(readers, format)
        assert [Theirs(SCHEMAS[format], reader.from_bytes(file)).file() for file in files] == expected
        paths = [tmp_path / f"{format}-{i}" for i in range(len(files))]
        for path, file in zip(paths, files, strict=True):
            path.write_bytes(file)
        assert javascript(cache, readers, paths) == as_javascript(expected)
        return expected

    return checked


@pytest.mark.network
@pytest.mark.parametrize("format", FORMATS)
def test_golden_files_and_the_corpus(format: str, check: Callable[..., list[Any]]) -> None:
    check(format, *map(golden, GOLDEN[format]), *(drawn.stored for drawn in corpus(format) if drawn.is_read))


@pytest.mark.network
def test_every_type_in_either_byte_order(check: Callable[..., list[Any]]) -> None:
    """A type that is unknown has no size."""
    generator, files = random.Random(0), []
    for order in "<>":
        infos = [Info(b"unknown", [3], 9999, bytes(32))]
        for code, (weights, _) in gguf_reference.BLOCKS.items():
            dims = [2 * weights, 3]
            infos.append(Info(b"%d" % code, dims, code, generator.randbytes(gguf_reference.nbytes(code, dims))))
        files.append(File([], infos, order=order).bytes())
    for content in check("GGUF", *files):
        unknown, *others = (row["payload"] for row in content["tensor_infos"])
        assert (unknown, len(others)) == (None, len(list(FORMATS["GGUF"].types)))


@pytest.mark.network
def test_length_text_and_data_of_safetensors(cache: Path, readers: Path) -> None:
    stored = safetensors.save({"ä": torch.arange(6.0), "none": torch.zeros(0)}, {"a": "b"})
    length = int.from_bytes(stored[:8], "little")
    read = python_reader(readers, "safetensors").from_bytes(stored)
    assert (read.header.length, read.data.start) == (length, 8 + length)
    assert (read.tensor_infos.encode(), read.data.bytes) == (stored[8 : 8 + length], stored[8 + length :])
    node(cache, "--check", readers / "Safetensors.js")


@pytest.mark.network
def test_alignment_among_many_keys(check: Callable[..., list[Any]]) -> None:
    files = []
    for at in some([5_000, 0, 1], 3):
        entries: list[Any] = [(b"k%d" % i, 4, i) for i in range(5_000)]
        entries.insert(at, (b"general.alignment", 4, 64))
        files.append(File(entries, [Info(b"w", [1], 0, b"abcd")], alignment=64).bytes())
    for content in check("GGUF", *files):
        assert (content["alignment"], len(content["metadata"]), content["data"]["start"] % 64) == (64, 5_001, 0)


@pytest.mark.network
def test_tensor_types_alone(cache: Path, tmp_path: Path) -> None:
    types = {type_.scheme: (type_, format) for format in FORMATS.values() for type_ in some(list(format.types), 4)}
    compiled(cache, tmp_path, {scheme: schema_of(type_) for scheme, (type_, _) in types.items()})
    kaitaistruct = pytest.importorskip("kaitaistruct")
    for scheme, (type_, format) in types.items():
        shape, schema = [1, type_.least_row], SCHEMAS[format.name]
        raw = random.Random(0).randbytes(type_.nbytes(shape))
        rows = [{"name": "w", "dims": format.dims_of(shape), "dtype": type_}]
        file = Container.parse(Container.build({"format": format.name, format.table: rows, "data": {"w": raw}}))
        (given,) = (known for known in schema["tensor_types"] if known["code"] == type_.code)
        expected = Ours(schema, file).fields(schema["structs"][given["payload"]], file.tensors["w"])
        if given["block"]:
            ((expected, *_),) = expected.values()
        sizes = () if given["block"] else shape
        read = python_reader(tmp_path, scheme)(*sizes, kaitaistruct.KaitaiStream(io.BytesIO(raw)))
        assert Theirs(schema, read).struct(schema["structs"][given["block"] or given["payload"]], read) == expected, scheme


@pytest.mark.network
def test_javascript_rounds_integers(cache: Path, readers: Path, tmp_path: Path) -> None:
    """A limit of the runtime, stated in docs/reference/kaitai.md. A failure means it is gone."""
    numbers = [(1 << 53) + 1, -(1 << 31), -(1 << 32) + 1, -(1 << 40) - 1]
    (tmp_path / "GGUF-1").write_bytes(File([(b"n", ARRAY, (11, numbers))]).bytes())
    (seen,) = javascript(cache, readers, [tmp_path / "GGUF-1"])
    assert seen["metadata"][0]["value"]["elements"] == [str(1 << 53), str(-(1 << 31)), "1", str(-(1 << 40) - 1)]


# Made-up declarations

# fmt: off
MADE_UP = block_type("MADE_UP", 77, 4, Struct(
    "scale"  / f16[1] * "a made-up scale",
    "words"  / u16[3] * "made-up words",
    "codes"  / u8[4]  * "made-up codes",
))
# fmt: on


HOSTILE = 'a made-up number \\N{x} */ """ \u202e </script> ${x} \'x\' #'


def extended() -> Format:
    """Returns GGUF with one more tensor type and more fields."""
    gguf = FORMATS["GGUF"]
    table = TypeTable[Any]("ggml", *gguf.types, MADE_UP, unknown=gguf.types.unknown)
    declared = {part.name: part for part in gguf.struct.subcons if part.name}
    row = declared["tensor_infos"].subcon.subcon
    parts = ["dtype" / TypeCode(u32, table) * "how" if part.name == "dtype" else part for part in row.subcons]
    index = [part.name for part in parts].index("offset")
    parts[index:index] = [
        "class" / u16 * "a made-up class",
        Rule("made-up-class", this["class"], differs_from(3, "other than 3")),
    ]
    # fmt: off
    whole = Struct(
        declared["header"],
        declared["metadata"],
        declared["alignment"],
        "tensor_infos" / Table(this.header.n_tensors, Struct(*parts, title="tensor_info")) * "rows",
        "checksum"     / u32                                         * HOSTILE,
        "length"       / Picked(this.header.version == 1, u32, u64)  * "a made-up length",
        "twice"        / Derived(this.length * 2)                    * "that length twice",
        "kind"         / TypeCode(u32, table)                        * "a made-up code",
        "sizes"        / Sizes(u32, Picked(this._root.header.version == 1, u32, u64), "dims") * "made-up sizes",
        "note"         / Text(u16)                                   * "a made-up note",
        "checked"      / u8[3]                                       * "three bytes",
        "blob"         / Bytes(this.length)                          * "so many bytes",
        "extra"        / If(this.header.version > 1, u32)            * "a number of some versions",
        "width"        / IfThenElse(this.header.version > 1, u16, u32) * "a number in a width of its version",
        Rule("made-up-blob", this.blob, meets(len_(this.blob) < this.twice, "shorter than twice")),
        declared["padding"],
        declared["data"],
    )
    # fmt: on
    return dataclasses.replace(gguf, struct=whole, types=table)


@pytest.fixture(scope="module")
def extended_reader(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = compiled(cache, tmp_path_factory.mktemp("extended"), {"gguf": schema_of(extended())})
    node(cache, "--check", folder / "Gguf.js")
    return folder


@pytest.mark.network
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("version", [1, 3])
def test_made_up_fields_and_types_are_read(version: int, order: str, extended_reader: Path) -> None:
    payload = bytes(range(2 * 12))
    entries = [(b"a", STRING, b"b"), (b"l", ARRAY, (STRING, [b"x"]))]
    file = File(entries, [Info(b"w", [8], 77, payload)], version=version, order=order)
    head = file.head()[:-8] + struct.pack(order + "HQ", 5, 0)  # the class before the offset
    head += struct.pack(order + "I", 0x01020304) + file.size(3) + struct.pack(order + "II", 77, 1) + file.size(6)
    head += struct.pack(order + "H", 2) + b"hi" + b"abc" + b"xyz"
    head += struct.pack(order + "IH", 0x01020304, 5) if version > 1 else struct.pack(order + "I", 6)
    read = python_reader(extended_reader, "GGUF").from_bytes(head + bytes(-len(head) % 32) + payload)
    assert (read.checksum, read.length, read.twice, read.kind.name) == (0x01020304, 3, 6, "made_up")
    assert (read.sizes, read.note.text, read.checked, read.blob) == ([6], "hi", b"abc", b"xyz")
    assert getattr(read, "extra", None) == (0x01020304 if version > 1 else None)
    assert read.width.value == (5 if version > 1 else 6)
    (row,) = read.tensor_infos
    assert (row.class_value, row.dtype.name, row.nbytes, row.payload_bytes) == (5, "made_up", 24, payload)
    letter = order + "H3H4B"
    assert [(b.scale, *b.words, *b.codes) for b in row.payload.blocks] == list(struct.iter_unpack(letter, payload))


def test_sentences_cannot_leave_their_comments() -> None:
    spec = json.loads(as_kaitai(schema_of(extended())))
    (checksum,) = [attr for attr in spec["seq"] if attr.get("id") == "checksum"]
    assert checksum["doc"] == "a made-up number \\\\N{x} * / ''' U+202E </script> ${x} 'x' #"
