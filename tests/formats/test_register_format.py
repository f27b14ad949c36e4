"""Formats of one's own work everywhere, and mistakes in their declarations are told."""

from __future__ import annotations

import io
import json
import pickle
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import construct
import pytest
import safetensors.torch
import torch
from construct import Const, Default, Switch, this

import glft_schema as glft
from glft_schema import Container, FormatError, OptionError, byte_map, load_file, save_file
from glft_schema.codec import (
    Count,
    Derived,
    KeyValueLines,
    KeyValues,
    NamesOnce,
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
    f32,
    f64,
    i8,
    i64,
    spec,
    u8,
    u16,
    u32,
    u64,
)
from glft_schema.codec.metadata_lines import nbytes_of_lines
from glft_schema.codec.predicates import equals, meets
from glft_schema.describe import schema_of, write
from glft_schema.errors import MetadataWarning
from glft_schema.formats import FORMATS, Format, TensorData, TensorFits, nbytes_of_payload, register_format
from glft_schema.formats.format import ShardIndex, ShardKeys
from glft_schema.formats.trial import first_fault
from glft_schema.testing import fuzz
from glft_schema.types import Reserved, block_type
from tests.formats.own_formats import BARE, F32, LINES, LINES_TYPES, LONG, LONG_MAGIC, OWN, TYPED, Row, registered
from tests.tools.command_line import in_this_process
from tests.tools.depth import FULL

STATE = {"w": torch.arange(128, dtype=torch.float32).reshape(2, 64), "b": torch.ones(3)}
NAMES = [format.name for format in OWN]


@pytest.fixture(autouse=True)
def _own_formats() -> Iterator[None]:
    with registered(*OWN):
        yield


@pytest.fixture(params=OWN, ids=NAMES)
def format(request: pytest.FixtureRequest) -> Format:
    return request.param


@pytest.fixture
def path(format: Format, tmp_path: Path) -> Path:
    """Returns a file of each format, chosen by its ending."""
    path = tmp_path / f"model.{format.name}"
    save_file(STATE, path, {"author": "me"} if format.metadata else None, schemes={"w": "f16"})
    return path


def test_bytes_of_a_format_that_are_written_by_hand() -> None:
    header = b"LINES" + bytes.fromhex("01000000 0300") + b"k=v"
    row = b"\1w" + bytes.fromhex("01 02000000 01 0000000000000000")
    stored = header + row + bytes.fromhex("0000803F 00000040")
    file = Container.parse(stored)
    assert (file.format, file.metadata, file.get_tensor("w").tolist()) == (LINES, {"k": "v"}, [1.0, 2.0])
    regions = {"rows": [{"name": "w", "dims": [2], "dtype": "F32"}], "data": {"w": stored[-8:]}}
    assert Container.build({"format": "lines", "metadata": {"k": "v"}, **regions}) == stored


def test_opened_loaded_and_rebuilt(format: Format, path: Path) -> None:
    with glft.open(path) as file:
        assert file.format is format
        assert [tensor.type.name for tensor in file.tensors.values()] == ["F16", "F32"]
        assert Container.build(file) == path.read_bytes()
        assert pickle.loads(pickle.dumps(file)) == file
        assert all(f"{format.name}, " in text for text in (str(file), file._repr_html_(), repr(file)))
        if format is TYPED:
            assert [tensor.position % 64 for tensor in file.tensors.values()] == [0, 0]
    torch.testing.assert_close(load_file(path, dtype=torch.float32), STATE, rtol=0, atol=0)
    assert Container.parse_stream(io.BytesIO(path.read_bytes())).format is format


def test_the_codes_are_those_of_the_format(format: Format, path: Path) -> None:
    code = 7 if format is TYPED else 1
    *_, dtype = (byte_range for byte_range in byte_map(glft.open(path)) if byte_range.name == "dtype")
    assert path.read_bytes()[dtype.start : dtype.end] == code.to_bytes(dtype.nbytes, "big" if format is TYPED else "little")
    assert f"= {code}, F32" in in_this_process("explain", path).stdout


def test_commands(path: Path, format: Format, tmp_path: Path) -> None:
    page, copied = tmp_path / "page.html", tmp_path / "out.lines"
    for command, *options in (
        ("inspect", path),
        ("verify", path),
        ("verify", path, "--values"),
        ("explain", path),
        ("hash", path),
        ("view", path, "-o", page),
        ("get-tensor", path, "w", tmp_path / "w.npy"),
        ("edit", path, "--rename", "w=v", "-o", tmp_path / "edited"),
        ("convert", path, copied, "--scheme", "w=f32"),
        ("fuzz", path, "--examples", "10"),
        ("fuzz", format.name, "--examples", "10"),
        ("schema", format.name, "--as", "c"),
    ):
        done = in_this_process(command, *options)
        assert (done.returncode, done.stderr) == (0, ""), (command, options)
    assert json.loads(in_this_process("inspect", path, "--json").stdout)["format"] == format.name
    assert format.name in page.read_text("utf-8")
    assert list(load_file(tmp_path / "edited")) == ["v", "b"]
    assert torch.equal(load_file(copied)["w"], STATE["w"])


@pytest.mark.parametrize("language", ["markdown", "json", "c", "kaitai"])
def test_schema_in_every_language(format: Format, language: str) -> None:
    text = write(schema_of(format), language)
    assert format.name in text.lower()
    code = {"json": '"code": 7', "c": "F32 = 7", "kaitai": "7: ", "markdown": "F32, code 7"}[language]
    assert (code in text) == (format is TYPED)


@pytest.mark.parametrize("target", [*NAMES, "gguf", "glft", "safetensors"])
def test_converted_to_every_format_and_back(path: Path, format: Format, target: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetadataWarning)
        glft.convert(path, tmp_path / "there", format=target)
        glft.convert(tmp_path / "there", tmp_path / "back", format=format.name)
    back = glft.open(tmp_path / "back")
    torch.testing.assert_close(load_file(tmp_path / "back", dtype=torch.float32), STATE, rtol=0, atol=0)
    if format.metadata and target not in ("bare", "long") and (format is TYPED or target not in ("typed", "gguf")):
        assert back.metadata["author"] == "me"


def test_typed_values_become_those_of_the_target(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "in.gguf", {"general.architecture": "x", "x": glft.Typed(5, "uint32")})
    glft.convert(tmp_path / "in.gguf", tmp_path / "out.typed")
    with glft.open(tmp_path / "out.typed") as file:
        metadata = file.metadata
    assert (dict(metadata), metadata.type_of("x")) == ({"general.architecture": "x", "x": 5}, "uint32")
    for value, text in ((glft.Typed(5, "int8"), "int8 5"), ([1], "array[int32] [1]")):
        save_file(STATE, tmp_path / "in.gguf", {"general.architecture": "x", "x": value, "y": 0.5})
        glft.convert(tmp_path / "in.gguf", tmp_path / "in.lines")
        for source in ("in.gguf", "in.lines"):
            glft.convert(tmp_path / source, tmp_path / "out.typed")
            with glft.open(tmp_path / "out.typed") as file:
                metadata = file.metadata
            assert (metadata["x"], metadata.type_of("y")) == (text, "float32")


def test_values_without_a_type_of_the_table(tmp_path: Path) -> None:
    types = [ValueType("int8", 1, i8), ValueType("int64", 2, i64), ValueType("half", 3, f16), ValueType("double", 4, f64)]
    values, path = TypeTable("own value", *types), tmp_path / "m.values"
    with registered(declared(endings=(".values",), **typed(values, type=TypeCode(u8, values)))):
        save_file(STATE, path, {"small": 3, "large": 1 << 40, "half": 0.5, "double": 1e300})
        metadata = glft.open(path).metadata
        assert [metadata.type_of(key) for key in metadata] == ["int8", "int64", "half", "double"]
        expected = r"metadata -> k: expected one of int8, int64, half, double, found"
        for value, found in ((glft.Typed(300, "int32"), "int32"), (1 << 63, "uint64"), (True, "bool")):
            with pytest.raises(FormatError, match=f"{expected} '{found}'$"):
                save_file(STATE, path, {"k": value})
        save_file(STATE, tmp_path / "in.gguf", {"k": glft.Typed(5, "uint8")}, rules=())
        with pytest.raises(FormatError, match=f"{expected} 'uint8'"):
            glft.convert(tmp_path / "in.gguf", path)


def test_metadata_for_a_format_without(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "in.lines", {"a": "b", "c": "d"})
    with pytest.warns(MetadataWarning, match=r"^bare files have no metadata: 2 entries are left out$"):
        glft.convert(tmp_path / "in.lines", tmp_path / "out.bare")
    safetensors.torch.save_file(STATE, tmp_path / "in.safetensors", {"format": "pt"})
    glft.convert(tmp_path / "in.safetensors", tmp_path / "out.bare")  # this entry is in all files: no warning
    with pytest.raises(OptionError, match=r"^bare files have no metadata, found {'a': 'b'}$"):
        save_file(STATE, tmp_path / "out.bare", {"a": "b"})


def test_fuzzing(format: Format, path: Path) -> None:
    for source in (format, path.read_bytes()):
        fuzzed = fuzz(source, examples := 300 if FULL else 25)
        assert fuzzed.failure is None, fuzzed.failure
        assert fuzzed.counts["corrupted"] > examples // 30


def test_a_row_with_the_size_of_its_payload(tmp_path: Path) -> None:
    nbytes, same = Count(u64, nbytes_of_payload(this)), Rule("own-nbytes", this.nbytes, equals(nbytes_of_payload(this)))
    sized = Struct(*row(nbytes=nbytes).subcons, same)
    with registered(declared(row=sized)):
        save_file({"w": torch.ones(3), "v": torch.ones(5)}, tmp_path / "model", format="own", schemes={"v": "f16"})
        stored = (tmp_path / "model").read_bytes()
        file = Container.parse(stored)
        assert ([entry.nbytes for entry in file.rows], "nbytes" in file.rows[0]) == ([12, 10], False)
        assert Container.build(file) == stored
        at = stored.index((12).to_bytes(8, "little"))
        with pytest.raises(FormatError, match=r"^rows -> 0 -> nbytes: expected nbytes_of_payload\(this\), found 13 "):
            Container.parse(stored[:at] + b"\x0d" + stored[at + 1 :])


def test_shards_have_the_ending_of_their_format(tmp_path: Path) -> None:
    format, path = replace(TYPED, shards=ShardKeys("s.no", "s.count", "s.all")), tmp_path / "model.typed"
    FORMATS[FORMATS.index(TYPED)] = format
    save_file({"w": torch.zeros(2)}, path, {"s.no": 0, "s.count": 3, "s.all": 1}, format="typed")
    with pytest.raises(FormatError, match=r"expected file 1 of 3 to be named NAME-00001-of-00003\.typed"):
        glft.open(path)


@pytest.mark.parametrize("own", [LINES, BARE], ids=lambda own: own.name)
def test_sets_with_an_index(own: Format, tmp_path: Path) -> None:
    """Also of a format without metadata and header."""
    format, path = replace(own, shards=ShardIndex(f".{own.name}.json")), tmp_path / f"model.{own.name}"
    FORMATS[FORMATS.index(own)] = format
    save_file(STATE, path, {"a": "b"} if own.metadata else None)
    *shards, index = glft.split(path, tmp_path / "set", max_tensors=1)
    assert (len(shards), index) == (2, str(tmp_path / f"set.{own.name}.json"))
    glft.merge(index, merged := tmp_path / f"merged.{own.name}")
    for read in (index, merged):
        torch.testing.assert_close(load_file(read), STATE, rtol=0, atol=0)
    assert dict(glft.open(merged).metadata) == ({"a": "b"} if own.metadata else {})


def test_bytes_of_no_format() -> None:
    with pytest.raises(FormatError, match=r"or b'a magic of 22 bytes\.\.\.' \(long\), found b'a magic of 21 by'; formats of "):
        Container.parse(LONG_MAGIC.replace(b"22", b"21") + bytes(30))
    with pytest.raises(FormatError, match=r", a bare file or "):
        Container.parse(b"\5\1")
    for stored, found in ((LONG_MAGIC[:9], LONG), (LONG_MAGIC, LONG), (b"\xb7", TYPED), (b"\5\0", BARE)):
        with pytest.raises(glft.TruncatedError):
            Container.parse(stored)
        assert found.claims(stored)


# What is taken


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({"name": "GGUF"}, "'GGUF' of GGUF"),
        ({"name": "Safetensors"}, "'Safetensors' of safetensors"),
        ({"endings": (".own", ".gguf")}, "'.gguf' of GGUF"),
        ({"magics": (b"OWN", b"GG")}, "b'GG' of GGUF"),
        ({"magics": (b"OWN", b"TFLG2")}, "b'TFLG2' of GLFT"),
        ({"name": "lines"}, "'lines' of lines"),
    ],
)
def test_what_another_format_has(changes: dict[str, Any], taken: str) -> None:
    before = list(FORMATS)
    assert register_format(LINES) is LINES  # again
    with pytest.raises(ValueError, match=f"^expected a name, file extensions and magics that no format has, found {taken}$"):
        register_format(declared(**{"endings": (".own",), **changes}))
    assert before == FORMATS


# Slips


# Each helper returns what a declaration changes.


def row(**changes: Any) -> Struct:
    fields = {"name": Text(u16), "dims": Sizes(u8, u32, "dims"), "shape": Derived(this.dims)}
    fields |= {"dtype": TypeCode(u8, LINES_TYPES), "offset": u32, **changes}
    return Struct(*(name / field for name, field in fields.items() if field is not None), TensorFits("own-dims", "dims"))


def rows(**changes: Any) -> dict[str, Any]:
    return {"row": row(**changes)}


def regions(*more: Any, **added: Any) -> dict[str, Any]:
    """Returns regions, with others before the payloads."""
    counts = ["n_kv" / Count(u32, this._.metadata)] if "metadata" in added else []
    header = Struct("magic" / Const(b"OWN"), "n" / Count(u32, this._.rows), *counts)
    others = [name / field for name, field in added.items()]
    parts = ["header" / header, *others, "rows" / Table(this.header.n, Row), "data" / TensorData("rows"), *more]
    return {"regions": parts}


VALUES = TypeTable("slip value", ValueType("int64", 1, i64), ValueType("string", 2, Text(u32)))


def typed(values: Any = VALUES, **changes: Any) -> dict[str, Any]:
    """Returns regions with typed metadata."""
    fields = {"key": Text(u32), "type": TypeCode(u8, VALUES), **changes}
    if "value" not in fields:
        fields["value"] = Switch(this.type, {type_: type_.field for type_ in values})
    entry = Struct(*(name / field for name, field in fields.items() if field is not None))
    return regions(metadata=KeyValues(Table(this.header.n_kv, entry), values, once="own-keys"))


def header(*fields: Any) -> dict[str, Any]:
    return {"header": Struct("magic" / Const(b"OWN"), *fields, "n" / Count(u32, this._.rows))}


def declared(
    *, name: str = "own", types: Any = LINES_TYPES, row: Any = Row, metadata: Any = None, table: Any = Table, **changes: Any
) -> Format:
    """Returns a declaration, complete except for what is given."""
    defaults = {"magics": (b"OWN",), **header(), **changes}
    metadata = ["metadata" / metadata] if metadata else []
    parts = ["header" / defaults.pop("header"), *metadata, "rows" / table(this.header.n, row), "data" / TensorData("rows")]
    return Format(name, defaults.pop("magics"), types, Struct(*defaults.pop("regions", parts)), **defaults)


NO_TYPES = TypeTable("none")


def _raises(*values: Any) -> Any:
    raise LookupError("nothing here")


AN_INTEGER = "expected an integer of glft_schema.codec, such as u32, found"
A_NAME = "expected the name of a field in letters, digits and '_', from a letter on, found"
A_TABLE = "expected Table(this.header.n_tensors, Row), with a Struct(...)"
FIELDS = 'own: rows: expected the fields "name", "dims", "shape" / Derived(this.dims), "dtype" and "offset"'
ALIGNMENT = "own: alignment: expected Derived(64), with a number above 0 or an expression"
COUNTED = "the number before it must be a Count of it"

# What a declaration changes, and the error: first of constructs, which raise it, then of `Format`
# and the trial.
# fmt: off
MISTAKES = [
    (lambda: rows(_n=u8), f"{A_NAME} '_n'"),
    (lambda: header("n" / u8), "expected each name of a field once, found 'n' twice"),
    (lambda: header("z" / Count(u32, "rows")),
     "expected the counted field as an expression, such as this._.tensors, found 'rows'"),
    (lambda: rows(name=Text(construct.Int16ub)), f"{AN_INTEGER} <FormatField>"),
    (lambda: rows(name=Text(f32)), f"{AN_INTEGER} f32"),
    (lambda: rows(dims=Sizes(u8, 4, "dims")), f"{AN_INTEGER} 4"),
    (lambda: rows(offset=Picked(this.dims, u32, construct.Int64ub)), f"{AN_INTEGER} <FormatField>"),
    (lambda: header("z" / Strings(construct.Int8ub, 1)), f"{AN_INTEGER} <FormatField>"),
    (lambda: typed({1: F32}, value=i64),
     "expected the types as TypeTable('toy value', ValueType('int64', 1, i64)), found {1: F32}"),

    *(({"magics": magics},
       f"own: magics: expected a tuple such as (b'TOY1',), or a function sniff, found {magics!r}")
      for magics in (b"OWN", (b"",), ())),
    *(({"endings": endings},
       f"own: endings: expected a tuple such as ('.toy',), in lower case with one dot, found {endings!r}")
      for endings in (".own", ("own",), (".Own",), (".o.n",))),
    ({"types": {0: F32}}, "own: types: expected TypeTable('toy', {0: F32}), found {0: F32}"),
    ({"keeps_to": "spec"}, "own: keeps_to: expected a tuple of spec, ggml, rust or required, found 'spec'"),
    ({"unshared_by": ("all",)}, "own: unshared_by: expected a tuple of spec, ggml, rust or required, found ('all',)"),
    ({"regions": ["header" / Struct("version" / u8)]},
     'own: data: expected a last region "data" / TensorData("tensors")'),
    (regions(format=Default(u8, 0)), "own: format: expected another name of a region"),
    ({"regions": ["header" / Struct("version" / u8), "data" / TensorData("tensors")]}, f"own: tensors: {A_TABLE}"),
    ({"table": construct.Array}, f"own: rows: {A_TABLE}"),
    ({"row": u8}, f"own: rows: {A_TABLE}"),
    (rows(name=None), FIELDS),
    (rows(shape=Sizes(u8, u32, "dims")), FIELDS),
    (rows(dtype=u8), 'own: rows: expected "dtype" / TypeCode(u8, TYPES), with the types lines'),
    ({"types": TypeTable("other", F32)},
     'own: rows: expected "dtype" / TypeCode(u8, TYPES), with the types other'),
    ({"row": Struct(*(part for part in row().subcons if part.name))},
     'own: rows: expected the rule TensorFits("toy-dims", "dims")'),
    (rows(flags=u16), "own: rows -> 0: a trial fails: expected a value for 'flags', found none"),
    *((regions(alignment=of), ALIGNMENT) for of in (Derived("64"), Derived(True), Derived(0), u32)),

    ({"sniff": _raises}, "own: a trial raises LookupError: nothing here"),
    ({"order": _raises}, "own: a trial raises LookupError: nothing here"),
    ({"magics": (b"ABC",)},
     "own: magics: a trial fails: expected the start of its files, b'OWN\\x00\\x00\\x00\\x00', found (b'ABC',)"),
    *(({"header": Struct("magic" / Const(b"OWN"), "n" / count)},
       f"own: rows: a trial fails: expected ['w'], as built, found []: {COUNTED}")
      for count in (u8, Count(u32, this._._.rows))),
    *(({"header": Struct("magic" / Const(b"OWN"), "n" / count)},
       "own: header -> n: expected the name of a field, found 'tensors'")
      for count in (Count(u32, this._.tensors), Count(u32, this._root.tensors))),
    ({"header": Struct("magic" / Const(b"OWN"), "m" / u8)}, "own: rows: expected the name of a field, found 'n'"),
    ({**header("size" / Count(u32, this._.metadata)), "metadata": KeyValueLines(this.header.size)},
     "own: metadata -> line 1: a trial fails: expected key=value, found b'k'"),
    ({**header("size" / u8), "metadata": KeyValueLines(this.header.size)},
     f"own: metadata: a trial fails: expected {{'k': 'v'}}, as built, found {{}}: {COUNTED}"),
    ({**header("size" / Count(u8, nbytes_of_lines(this._.meta))), "metadata": KeyValueLines(this.header.size)},
     "own: header -> size: expected the name of a field, found 'meta'; did you mean 'metadata'?"),
    (header(Rule("own-version", this.version, equals(1))),
     "own: header -> rule 'own-version': expected the name of a field, found 'version'"),
    (regions(NamesOnce("q2", "infos"), metadata=KeyValueLines(3)),
     "own: rule 'q2': expected the name of a field, found 'infos'"),
    (rows(dims=u32[4]),
     "own: rows -> 0 -> dims: a trial fails: expected a numpy array or torch tensor, found [1, 1]"),
    (rows(offset=f64),
     "own: a trial raises TypeError: "
     "slice indices must be integers or None or have an __index__ method"),
    (header("byte_order" / Derived("big")),
     "own: header -> byte_order: a trial fails: expected ByteOrderOf(BIG), which sets the order of what follows"),
    (typed(key=None),
     "own: metadata -> 0: a trial fails: expected the fields type, value, found 'key'"),
    (typed(type=u8),
     "own: metadata -> 0 -> type: a trial fails: expected an integer in the range of u8, found int64"),
    (typed(value=i64),
     "own: metadata -> 1 -> value: a trial fails: expected an integer in the range of i64, found 'v'"),
    (header("z" / u32), "own: header -> z: expected a default for new files, such as Default(u32, 0)"),
    (regions(extra=Struct("z" / u32)), "own: extra: expected a default for new files, such as Default(u32, 0)"),
    (header("z" / Count(u32, _raises)), "own: header -> z: a trial raises LookupError: nothing here"),
    (rows(shape=Derived(_raises)), "own: rows -> 0 -> shape: a trial raises LookupError: nothing here"),
    ({"table": lambda count, row: Table(_raises, row)},
     "own: rows: a trial raises LookupError: nothing here"),
    ({"table": lambda count, row: Table(2, row)},
     "own: rows: a trial fails: expected at most 0 (bytes left: 0, at least 8 each), found 2"),
    (header("z" / Default(construct.GreedyBytes, b"")),
     "own: header -> n: a trial fails: expected 4 bytes, found 0"),
    ({"row": Struct(*row().subcons, spec("own-rule", this.name, meets(_raises, "a rule")))},
     "own: rows -> 0: a trial raises LookupError: nothing here"),
    (header("z" / Default(construct.ExprAdapter(u8, lambda *_: "text", lambda number, _: number + 0), 1)),
     'own: header -> z: a trial raises TypeError: can only concatenate str (not "int") to str'),
    (header("z" / Default(u8, 300)),
     "own: header -> z: its default is refused: expected an integer in the range of u8, found 300"),
    (header("z" / Default(u8, 3), Rule("own-rule", this.z, equals(4))),
     "own: header -> z: its default is refused: expected 4, found 3"),
]
# fmt: on


@pytest.mark.parametrize(
    "changes",
    [
        header("z" / Default(construct.Array(2, construct.Int16ub), [1, 2])),
        rows(dims=construct.Array(4, u32)),
        {"types": NO_TYPES, **rows(dtype=TypeCode(u8, NO_TYPES))},
        {},
        typed(),
        rows(flags=Default(u32, 0)),
    ],
)
def test_values_that_the_trial_lacks_are_no_mistakes(changes: dict[str, Any]) -> None:
    assert first_fault(declared(**changes)) is None


def test_the_trial_has_limits_of_its_own() -> None:
    with glft.Limits(objects=0):
        assert first_fault(declared()) is None


def test_mistakes_in_parts() -> None:
    with pytest.raises(TypeError, match=r"^own-rule: expected a predicate such as equals\(3\), found 3$"):
        Rule("own-rule", this.z, 3)
    with pytest.raises(ValueError, match=r"^expected the name of a limit, such as 'dims', found 'sizes'$"):
        Sizes(u8, u64, "sizes")
    with pytest.raises(TypeError, match=r"^expected the types as TypeTable\('toy', \{1: F32\}\), found \{1: F32\}$"):
        TypeCode(u8, {1: F32})


@pytest.mark.parametrize(("mistake", "sentence"), MISTAKES, ids=lambda value: value[:50] if isinstance(value, str) else "")
def test_mistakes(mistake: Any, sentence: str) -> None:
    before = list(FORMATS)
    with pytest.raises((TypeError, ValueError)) as caught:
        register_format(declared(**(mistake() if callable(mistake) else mistake)))
    assert (str(caught.value), before) == (sentence, FORMATS)


def test_no_mistakes() -> None:
    assert [first_fault(format) for format in FORMATS] == [None] * len(FORMATS)
    with pytest.raises(TypeError, match=r"^expected a Format, found <Struct>$"):
        register_format(Row)


def taken(w, d):
    w[0] = d[0]


D = Struct("d" / f16[1])
NUMBERS = "write an array of numbers with constant dims, such as"


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ({"block": Struct("d" / f16)}, f"d: {NUMBERS} f16[1], found f16"),
        ({"block": Struct("d" / f16[this.n])}, f"d: {NUMBERS} u8[16], found f16[n]"),
        ({"block": Struct("d" / construct.Bytes(2))}, f"d: {NUMBERS} u8[16], found <Bytes>"),
        ({"block": Struct("d" / f16[0])}, f"d: {NUMBERS} u8[16], found f16[0]"),
        ({"block": Struct(f16[1])}, 'give each field of the block a name, such as "d" / f16[1], found f16[1] without one'),
        (
            {"block": ["d" / f16[1]]},
            'write the block as Struct("d" / f16[1], ...) of glft_schema.codec, found [<Renamed d f16[1]>]',
        ),
        ({"block": Struct("w" / f32[1])}, "w: choose another name, because functions have a parameter of this name"),
        ({"block": Struct()}, 'expected at least one field, such as "d" / f16[1], found none'),
        ({"weights": 0}, "expected at least one weight per block, found 0"),
        ({"weights": True}, "expected at least one weight per block, found True"),
        ({"dequantize": "d"}, "write the formula as a function of (w, d), found 'd'"),
        ({"quantize": "q"}, "write the encoder as a function of (w, d), found 'q'"),
        ({"scales": ["d"]}, "write scales as a mapping of fields to functions, found ['d']"),
        ({"scales": {"e": taken}}, "expected a field of the block, d, in scales and reserved, found 'e'"),
        ({"reserved": ["d"]}, "write reserved as a list of Reserved(field, text, function), found 'd'"),
        ({"reserved": 5}, "write reserved as a list of Reserved(field, text, function), found 5"),
        ({"reserved": [Reserved("e", "code 3", taken)]}, "expected a field of the block, d, in scales and reserved, found 'e'"),
    ],
)
def test_mistakes_in_blocks(declared: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^SLIP: {re.escape(sentence)}$"):
        block_type("SLIP", 9, **{"weights": 1, "block": D, "dequantize": taken, **declared})


def test_a_name_of_a_block_that_is_no_text() -> None:
    with pytest.raises(ValueError, match=r"^5: write the name as text, found 5$"):
        block_type(5, 9, 1, D, dequantize=taken)


def test_constructs_without_a_description(tmp_path: Path) -> None:
    """Files are read and written; what needs a description says which field has none."""
    own = declared(**header("z" / Default(construct.Prefixed(u8, construct.GreedyBytes), b"")), endings=(".own",))
    with registered(own):
        path, page = tmp_path / "m.own", tmp_path / "page.html"
        save_file(STATE, path)
        with pytest.raises(NotImplementedError, match=r"^header -> z: Prefixed has no node: register a function with @"):
            byte_map(glft.open(path))
        assert in_this_process("inspect", path).returncode == 0
        for arguments in (("explain", path), ("view", path, "-o", page), ("schema", "own"), ("fuzz", "own")):
            done = in_this_process(*arguments)
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.startswith("glft: header -> z: Prefixed has no node")
