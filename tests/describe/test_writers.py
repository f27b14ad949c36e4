"""The writers of C and Kaitai Struct write every sentence and refuse what they lack."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from construct import Array, Bytes, IfThenElse, Switch, len_, this

from glft_schema.codec.expressions import Lookup, matches
from glft_schema.codec.metadata import KeyValues
from glft_schema.codec.numbers import ByteOrderOf, Picked, u8, u16, u32, u64
from glft_schema.codec.structs import Struct
from glft_schema.codec.tables import Table
from glft_schema.codec.text import Text
from glft_schema.codec.type_codes import TypeCode, TypeTable
from glft_schema.describe.kaitai.names import KaitaiNames
from glft_schema.describe.languages import write
from glft_schema.describe.schema import schema_of
from glft_schema.formats.format import Format
from glft_schema.formats.gguf import GGUF, VALUE_TYPES
from glft_schema.formats.glft import GLFT
from glft_schema.tensor_types.payload_layout import IN, OUT
from glft_schema.tensor_types.tensor_type import TensorType
from glft_schema.tensors.region import TensorData

TYPES = [type_ for format in (GLFT, GGUF) for type_ in format.types]


def prose_of(text: str, language: str) -> str:
    """Returns the sentences of a C header or of a ``.ksy`` file on one line."""
    docs = list[str]()
    if language == "kaitai":
        json.loads(text, object_hook=lambda part: docs.append(str(part.get("doc", ""))) or part)
    else:
        docs.append(re.sub(r"^\s*\* ", "", text, flags=re.MULTILINE))
    return " ".join(" ".join(docs).split())


@pytest.mark.parametrize("described", [GLFT, GGUF, *TYPES], ids=lambda described: described.name)
@pytest.mark.parametrize("language", ["c", "kaitai"])
def test_every_sentence_is_written(language: str, described: Format | TensorType) -> None:
    schema = schema_of(described)
    prose = prose_of(write(schema, language), language)
    whole = schema.format or language != "kaitai"  # of a type alone, Kaitai gets one struct
    structs = schema.structs if whole else [schema.types[0].block or schema.types[0].payload]
    for struct in map(schema.structs.__getitem__, structs):
        assert [part.name for part in struct.fields if part.doc not in prose] == []
        for rule in struct.rules:
            sets = "required" if rule.is_required else ", ".join(rule.sets)
            assert f"rule {rule.id}, {sets}: expected {rule.expected}" in prose


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dims", "dims"),
        ("in", "in_value"),
        ("class", "class_value"),
        ("u4", "u4_value"),
        ("IQ4_NL", "iq4_nl"),
        ("4 bits", "x4_bits"),
        ("", "x"),
        ("a\"\n'$(x)\u202e", "a_x"),
        ("Größe", "gr_e"),
    ],
)
def test_kaitai_names(name: str, expected: str) -> None:
    assert KaitaiNames().new(name) == expected


def test_kaitai_names_differ_in_camel_case_too() -> None:
    names = KaitaiNames("n_kv")
    assert [names.new("nkv"), names.new("n_kv"), names.new("N.KV")] == ["nkv_2", "n_kv_3", "n_kv_4"]


# Unsupported constructs

N = "n" / u8 * "a number"
PICKED = Picked(matches("a")(this.n), u8, u32)
CODE = TypeCode(Picked(this.n == 1, u8, u16), VALUE_TYPES)
ORDER = "order" / ByteOrderOf(u32) * "of the file"
VERSION = "version" / u32 * "small"
CUT = TensorType("CUT", 77, Struct("codes" / Bytes(OUT) * "made-up codes"))
CUTS = TypeTable[Any]("made up", CUT)
ONE_LESS = TensorType("ONE_LESS", 78, Struct("codes" / u8[OUT, IN - 1] * "made-up codes"))
ONE_NUMBER = "expected one number at a fixed offset to determine the byte order"


def format_of(*fields: Any, types: Any = GLFT.types) -> Format:
    return replace(GLFT, struct=Struct(*fields), types=types)


def fields(**declared: Any) -> list[Any]:
    return [name / field * name for name, field in declared.items()]


def tensors(**declared: Any) -> Format:
    """Returns a format with payloads. Some fields of the table's rows are replaced."""
    row = {"shape": Array(2, u32), "dtype": TypeCode(u8, GLFT.types), "offset": u64, **declared}
    return format_of(*fields(rows=Table(3, Struct(*fields(**row), title="row")), data=TensorData("rows")))


def keys(**declared: Any) -> Format:
    """Returns a format that looks up a key. Some fields of the table's rows are replaced."""
    number = Switch(this.type, {VALUE_TYPES["uint8"]: u8})
    row = {"key": Text(u8), "type": TypeCode(u8, VALUE_TYPES), "value": number, **declared}
    table = KeyValues(Table(3, Struct(*fields(**row), title="row")), VALUE_TYPES, once="keys-once")
    return format_of(*fields(metadata=table, x=Bytes(Lookup(this.metadata, "k", 3))))


def bytes_of(size: Any, *before: Any) -> Format:
    return format_of(*before, "x" / Bytes(size) * "as many")


# fmt: off
UNSUPPORTED: list[tuple[str, str, Format | TensorType]] = [
    ("c", "expected a payload field of numbers or blocks, found Bytes", CUT),
    ("c", "expected an expression on out, in and dims, found (in - 1)", ONE_LESS),
    ("c", 'cannot derive a name from the expression matches(n, "a")', format_of(N, "x" / PICKED * "a number")),
    ("kaitai", ONE_NUMBER, format_of("title" / Text(u8) * "x", ORDER, VERSION)),
    ("kaitai", ONE_NUMBER, format_of(ORDER, VERSION, "again" / ORDER)),
    ("kaitai", "there is no field nothing", bytes_of(this.nothing, N)),
    ("kaitai", 'Kaitai Struct cannot express matches(n, "a")', bytes_of(matches("a")(this.n), N)),
    ("kaitai", "Kaitai Struct cannot compare order", bytes_of(this.order + 1, ORDER, VERSION)),
    ("kaitai", "Kaitai Struct cannot compare x",
     format_of(ORDER, VERSION, "x" / IfThenElse(this.version > 1, u8, u16) * "a number", "y" / Bytes(this.x + 1) * "as many")),
    ("kaitai", "Kaitai Struct has no path to (n + 1)", bytes_of(len_(this.n + 1), N)),
    ("kaitai", "Kaitai Struct cannot express the length of n", bytes_of(len_(this.n), N)),
    ("kaitai", "n has no keys", bytes_of(Lookup(this.n, "k", 3), N)),
    ("kaitai", "a type code whose integer width varies cannot have an enum",
     format_of(N, "codes" / Array(3, CODE) * "three")),
    ("kaitai", "the rows of rows are not structs", format_of(*fields(rows=Array(3, u8), data=TensorData("rows")))),
    ("kaitai", "dtype is not the code of a type", tensors(dtype=u8)),
    ("kaitai", "Kaitai Struct cannot index shape", tensors(shape=Text(u8, strict=True))),
    ("kaitai", "Kaitai Struct cannot express the size of CUT codes", replace(tensors(dtype=TypeCode(u8, CUTS)), types=CUTS)),
    ("kaitai", "the keys of metadata are not strings", keys(key=u8)),
    ("kaitai", "value does not depend on an earlier field", keys(value=u8)),
    ("kaitai", "type is not the code of a type", keys(type=u8, value=Switch(this.type, {0: u8}))),
]
# fmt: on


@pytest.mark.parametrize(("language", "problem", "described"), UNSUPPORTED, ids=[f"{row[0]}: {row[1]}" for row in UNSUPPORTED])
def test_unsupported_constructs_are_refused(language: str, problem: str, described: Format | TensorType) -> None:
    with pytest.raises(NotImplementedError, match=re.escape(problem)):
        write(schema_of(described), language)


@pytest.mark.parametrize("described", [tensors(), keys()], ids=["tensors", "keys"])
def test_kaitai_supports_the_rest(described: Format) -> None:
    assert json.loads(write(schema_of(described), "kaitai"))
