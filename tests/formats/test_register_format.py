"""Formats of one's own work everywhere, and mistakes in their declarations are told."""

from __future__ import annotations

import io
import json
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import construct
import pytest
import safetensors.torch
import torch
from construct import Const, Default, Switch, this
from hypothesis import HealthCheck, Phase, given, settings

import glft_schema as glft
from glft_schema import Container, FormatError, OptionError, byte_map, load_file, save_file
from glft_schema.codec import (
    ByteOrderOf,
    Count,
    Derived,
    KeyValueLines,
    KeyValues,
    NamesOnce,
    Numbers,
    Padding,
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
from glft_schema.codec.context import BIG
from glft_schema.codec.metadata_lines import nbytes_of_lines
from glft_schema.codec.predicates import equals, meets
from glft_schema.describe import schema_of, write
from glft_schema.errors import MetadataWarning
from glft_schema.formats import FORMATS, Format, TensorData, TensorFits, nbytes_of_payload, register_format
from glft_schema.formats.format import ShardIndex, ShardKeys
from glft_schema.formats.mistakes import first_mistake
from glft_schema.testing import containers, fuzz
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
    assert (file.format, file.metadata["k"], file.get_tensor("w").tolist()) == (LINES, "v", [1.0, 2.0])
    rows = [{"name": "w", "dims": [2], "dtype": "F32"}]
    parts = {"format": "lines", "metadata": {"k": "v"}, "rows": rows, "data": {"w": stored[-8:]}}
    assert Container.build(parts) == stored


def test_opened_loaded_and_rebuilt(format: Format, path: Path) -> None:
    with glft.open(path) as file:
        assert file.format is format
        assert [tensor.type.name for tensor in file.tensors.values()] == ["F16", "F32"]
        assert Container.build(file) == path.read_bytes()
        assert pickle.loads(pickle.dumps(file)) == file
        assert all(f"{format.name}, " in text for text in (str(file), file._repr_html_(), repr(file)))
        if format is TYPED:
            assert [tensor.position % 64 for tensor in file.tensors.values()] == [0, 0]
    assert all(torch.equal(tensor, STATE[name]) for name, tensor in load_file(path, dtype=torch.float32).items())
    assert Container.parse_stream(io.BytesIO(path.read_bytes())).format is format


def test_the_codes_are_those_of_the_format(format: Format, path: Path) -> None:
    codes = {
        byte_range.path.rpartition(" -> ")[2]: byte_range
        for byte_range in byte_map(glft.open(path))
        if "dtype" in byte_range.path
    }
    at, size = codes["dtype"].start, codes["dtype"].end - codes["dtype"].start
    assert path.read_bytes()[at : at + size] == (7 if format is TYPED else 1).to_bytes(size, "little")
    assert f"= {7 if format is TYPED else 1}, F32" in in_this_process("explain", path).stdout


@pytest.mark.parametrize("verb", ["inspect", "inspect --json", "verify", "verify --values", "explain", "hash"])
def test_verbs(path: Path, format: Format, verb: str) -> None:
    name, *options = verb.split()
    done = in_this_process(name, path, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["format"] == format.name if "--json" in verb else f"{path}" in done.stdout


def test_verbs_that_write(path: Path, format: Format, tmp_path: Path) -> None:
    page, values, copied = tmp_path / "page.html", tmp_path / "w.npy", tmp_path / "out.lines"
    for arguments in (
        ("view", path, "-o", page),
        ("get-tensor", path, "w", values),
        ("edit", path, "--rename", "w=v", "-o", tmp_path / "edited"),
        ("convert", path, copied, "--scheme", "w=f32"),
        ("fuzz", path, "--examples", "10"),
        ("fuzz", format.name, "--examples", "10"),
        ("schema", format.name, "--as", "c"),
    ):
        done = in_this_process(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), arguments
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
    assert all(torch.equal(load_file(tmp_path / "back")[name].float(), numbers) for name, numbers in STATE.items())
    if format.metadata and target not in ("bare", "long") and (format is TYPED or target not in ("typed", "gguf")):
        assert back.metadata["author"] == "me"


def test_typed_values_become_those_of_the_target(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "in.gguf", {"general.architecture": "x", "x": glft.Typed(5, "uint32")})
    glft.convert(tmp_path / "in.gguf", tmp_path / "out.typed")
    metadata = glft.open(tmp_path / "out.typed").metadata
    assert (dict(metadata), metadata.type_of("x")) == ({"general.architecture": "x", "x": 5}, "uint32")
    for value, text in ((glft.Typed(5, "int8"), "int8 5"), ([1], "array[int32] [1]")):
        save_file(STATE, tmp_path / "in.gguf", {"general.architecture": "x", "x": value, "y": 0.5})
        glft.convert(tmp_path / "in.gguf", tmp_path / "in.lines")
        for source in ("in.gguf", "in.lines"):
            glft.convert(tmp_path / source, tmp_path / "out.typed")
            metadata = glft.open(tmp_path / "out.typed").metadata
            assert (metadata["x"], metadata.type_of("y")) == (text, "float32")


def test_values_without_a_type_of_the_table(tmp_path: Path) -> None:
    types = [ValueType("int8", 1, i8), ValueType("int64", 2, i64), ValueType("half", 3, f16), ValueType("double", 4, f64)]
    values = TypeTable("own value", *types)
    own = declared(name="values", endings=(".values",), regions=typed(values, type=TypeCode(u8, values)))
    with registered(own):
        path = tmp_path / "m.values"
        save_file(STATE, path, {"small": 3, "large": 1 << 40, "half": 0.5, "double": 1e300})
        metadata = glft.open(path).metadata
        assert [metadata.type_of(key) for key in metadata] == ["int8", "int64", "half", "double"]
        expected = r"metadata -> k: expected one of int8, int64, half, double, found"
        for value, found in (
            (glft.Typed(300, "int32"), r"'int32': write Typed\(300, 'int64'\)"),
            (1 << 63, r"'uint64': write Typed\(9223372036854775808, 'double'\)"),
            (True, "'bool'$"),
        ):
            with pytest.raises(FormatError, match=f"{expected} {found}"):
                save_file(STATE, path, {"k": value})
        save_file(STATE, tmp_path / "in.gguf", {"k": glft.Typed(5, "uint8")}, rules=())
        with pytest.raises(FormatError, match=f"{expected} 'uint8'"):
            glft.convert(tmp_path / "in.gguf", path)
    with registered(declared(name="texts", endings=(".texts",), regions=typed())):
        save_file(STATE, tmp_path / "m.texts", {"n": 3})
        assert glft.open(tmp_path / "m.texts").metadata.type_of("n") == "int64"
        with pytest.raises(FormatError, match=r"found 'float32': write Typed\('0.5', 'string'\)"):
            save_file(STATE, tmp_path / "m.texts", {"k": 0.5})


def test_metadata_for_a_format_without(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "in.lines", {"a": "b", "c": "d"})
    with pytest.warns(MetadataWarning, match=r"^bare files have no metadata: 2 entries are left out$"):
        glft.convert(tmp_path / "in.lines", tmp_path / "out.bare")
    safetensors.torch.save_file(STATE, tmp_path / "in.safetensors", {"format": "pt"})
    glft.convert(tmp_path / "in.safetensors", tmp_path / "out.bare")  # this entry is in all files: no warning
    with pytest.raises(OptionError, match=r"^bare files have no metadata, found {'a': 'b'}$"):
        save_file(STATE, tmp_path / "out.bare", {"a": "b"})


def test_random_files(format: Format) -> None:
    seen = set()

    @settings(
        max_examples=15, database=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(containers(format.name))
    def look(stored: bytes) -> None:
        file = Container.parse(stored)
        assert (file.format, Container.build(file)) == (format, stored)
        seen.update(row.dtype.name for row in file.regions[format.table])

    look()
    assert len(seen) > 1


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
        assert [entry.nbytes for entry in file.rows] == [12, 10]
        assert "nbytes" not in file.rows[0]
        assert Container.build(file) == stored
        at = stored.index((12).to_bytes(8, "little"))
        with pytest.raises(FormatError, match=r"^rows -> 0 -> nbytes: expected nbytes_of_payload\(this\), found 13 "):
            Container.parse(stored[:at] + b"\x0d" + stored[at + 1 :])


def test_shards_have_the_ending_of_their_format(tmp_path: Path) -> None:
    format, path = replace(TYPED, shards=ShardKeys("s.no", "s.count", "s.all")), tmp_path / "model.typed"
    FORMATS[FORMATS.index(TYPED)] = format
    entries = {key: glft.Typed(number, "uint32") for key, number in (("s.no", 0), ("s.count", 3), ("s.all", 1))}
    save_file({"w": torch.zeros(2)}, path, entries, format="typed")
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
        assert {name: tensor.tolist() for name, tensor in load_file(read).items()} == {n: t.tolist() for n, t in STATE.items()}
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
    with pytest.raises(ValueError, match=f"^expected a name, file extensions and magics that no format has, found {taken}$"):
        register_format(declared(**{"name": "own", "magics": (b"OWN",), "endings": (".own",), **changes}))
    assert before == FORMATS


def test_registered_twice() -> None:
    assert register_format(LINES) is LINES
    assert FORMATS.count(LINES) == 1


# Slips


def row(**changes: Any) -> Struct:
    fields = {"name": Text(u16), "dims": Sizes(u8, u32, "dims"), "shape": Derived(this.dims)}
    fields |= {"dtype": TypeCode(u8, LINES_TYPES), "offset": u32, **changes}
    return Struct(*(name / field for name, field in fields.items() if field is not None), TensorFits("own-dims", "dims"))


def declared(
    *,
    name: str = "own",
    magics: Any = (b"OWN",),
    types: Any = LINES_TYPES,
    header: Any = None,
    row: Any = Row,
    metadata: Any = None,
    table: Callable[..., Any] = Table,
    regions: Any = None,
    **options: Any,
) -> Format:
    """Returns a declaration, complete but for what is given."""
    header = header or Struct("magic" / Const(b"OWN"), "n" / Count(u32, this._.rows))
    metadata = ["metadata" / metadata] if metadata else []
    regions = regions or ["header" / header, *metadata, "rows" / table(this.header.n, row), "data" / TensorData("rows")]
    return Format(name, magics, types, Struct(*regions), **options)


COUNT = "n" / Count(u32, this._.rows)
REGIONS = "this.header, this.rows, this.data"
MISTAKES = [
    ({"magics": ()}, "give the first bytes of its files, magics=(b'TOY1',), or a function sniff that recognises them"),
    ({"magics": b"OWN"}, "write magics as a tuple such as (b'TOY1',), found b'OWN'"),
    ({"magics": (b"",)}, "write magics as a tuple such as (b'TOY1',), found (b'',)"),
    ({"endings": ".own"}, "write endings as a tuple such as ('.toy',), found '.own'"),
    ({"endings": ("own",)}, "write an ending in lower case with one dot, such as '.toy', found 'own'"),
    ({"types": {0: F32}}, "write types as TypeTable('toy', {0: F32}), with the code of each type, found {0: F32}"),
    (
        {"types": TypeTable("other", F32)},
        "rows -> dtype: write TypeCode with the format's own table, other, found lines",
    ),
    ({"row": row(name=None)}, 'rows: a row needs the field name: "name" / Text(u16)'),
    ({"row": row(dims=None, shape=None)}, 'rows: a row needs the field dims: "dims" / Sizes(u8, u64, "dims")'),
    (
        {"row": row(shape=None)},
        'rows: a row needs the field shape: "shape" / Derived(this.dims), or Derived(reverse_(this.dims)) if the contiguous '
        "dim comes first",
    ),
    ({"row": row(dtype=None)}, 'rows: a row needs the field dtype: "dtype" / TypeCode(u8, TYPES)'),
    ({"row": row(offset=None)}, 'rows: a row needs the field offset: "offset" / u64, counted from the start of data'),
    (
        {"row": row(shape=Sizes(u8, u32, "dims"))},
        'rows -> shape: torch\'s order is computed from dims: "shape" / Derived(this.dims), or Derived(reverse_(this.dims)) '
        "if the contiguous dim comes first",
    ),
    ({"row": row(dtype=u8)}, 'rows -> dtype: write "dtype" / TypeCode(u8, TYPES)'),
    (
        {"regions": ["header" / Struct("version" / u8)]},
        'declare the payloads as the last region: "data" / TensorData("tensors"), with the name of the table',
    ),
    (
        {"regions": ["header" / Struct("version" / u8), "data" / TensorData("tensors")]},
        "data: TensorData('tensors') needs the region \"tensors\" / Table(this.header.n_tensors, Row)",
    ),
    (
        {"table": construct.Array},
        "data: TensorData('rows') needs the region \"rows\" / Table(this.header.n_tensors, Row)",
    ),
    ({"header": construct.Struct("n" / u8)}, "header: write Struct(...) of glft_schema.codec, found <Struct>"),
    (
        {"header": Struct("items" / u8, COUNT)},
        "header -> items: choose another name, because items is a method of the Struct's value",
    ),
    ({"row": row(keys=u8)}, "rows -> keys: choose another name, because keys is a method of the Struct's value"),
    (
        {"header": Struct("_n" / u8, COUNT)},
        "header -> _n: choose a name of letters, digits and '_', which does not begin with '_' or a digit",
    ),
    ({"header": Struct("n" / u8, COUNT)}, "header -> n: choose another name, because another field has this one"),
    ({"header": Struct("n" / u8)}, 'this.header.n counts rows, so building must compute it: "n" / Count(u32, this._.rows)'),
    ({"header": Struct("m" / u8)}, f"rows: this.header.n is not a field; these are: {REGIONS}"),
    (
        {"header": Struct("n" / Count(u32, this._.tensors))},
        "header -> n: this._.tensors is not a field; these are: this.n, this._.header, this._.rows, this._.data",
    ),
    (
        {"header": Struct("n" / Count(u32, this._._.rows))},
        "header -> n: this._._.rows is not a field; these are: this.n, this._.header, this._.rows, this._.data",
    ),
    (
        {"header": Struct("n" / Count(u32, this._root.tensors))},
        "header -> n: this._root.tensors is not a field; these are: this.n, this._.header, this._.rows, this._.data",
    ),
    (
        {"header": Struct("n" / Count(u32, this._.data))},
        'this.header.n counts data, but rows is read by it: "n" / Count(u32, this._.rows)',
    ),
    (
        {"header": Struct("n" / Count(u32, this._.rows + 1))},
        'this.header.n is the number of rows of rows: "n" / Count(u32, this._.rows)',
    ),
    (
        {"header": Struct("n" / Count(u32, "rows"))},
        "header -> n: write the counted field as an expression, such as Count(u32, this._.tensors), found 'rows'",
    ),
    (
        {"header": Struct(COUNT, "size" / Count(u32, this._.metadata)), "metadata": KeyValueLines(this.header.size)},
        'this.header.size is the number of bytes of metadata: "size" / Count(u32, nbytes_of_lines(this._.metadata))',
    ),
    (
        {"magics": (b"ABC",), "header": Struct("magic" / Const(b"M03"), COUNT)},
        "header -> magic: files begin with b'M03', so write magics=(b'M03',), found (b'ABC',)",
    ),
    (
        {"header": Struct(COUNT), "metadata": KeyValueLines(u32)},
        "metadata: write KeyValueLines(this.header.n), with a Count in the header, found u32",
    ),
    (
        {"header": Struct(COUNT), "table": lambda count, row: Table(u32, row)},
        "rows: write Table(this.header.n, Row), with a Count in the header, found u32",
    ),
    (
        {"header": Struct(COUNT, Rule("own-version", this.version, equals(1)))},
        "header -> own-version: this.version is not a field; these are: this.n, this._.header, this._.rows, this._.data",
    ),
    (
        {"header": Struct(COUNT, "size" / u8), "metadata": KeyValueLines(this.header.size)},
        'this.header.size counts metadata, so building must compute it: "size" / Count(u32, nbytes_of_lines(this._.metadata))',
    ),
    (
        {
            "header": Struct(COUNT, "size" / Count(u8, nbytes_of_lines(this._.meta))),
            "metadata": KeyValueLines(this.header.size),
        },
        "header -> size: this._.meta is not a field; these are: this.n, this.size, this._.header, this._.metadata, "
        "this._.rows, this._.data",
    ),
]


VALUES = TypeTable("slip value", ValueType("int64", 1, i64), ValueType("string", 2, Text(u32)))
ALIGNMENT = 'alignment: write "alignment" / Derived(64), with a number above 0 or an expression, found '
VALUE = 'write "value" / Switch(this.type, {t: t.field for t in VALUES})'


def regions(**added: Any) -> list[Any]:
    """Returns regions, with others before the payloads."""
    counts = "n" / Count(u32, this._.rows), "n_kv" / Count(u32, this._.metadata)
    header = Struct("magic" / Const(b"OWN"), *counts)
    others = [name / field for name, field in added.items()]
    return ["header" / header, *others, "rows" / Table(this.header.n, Row), "data" / TensorData("rows")]


def typed(values: Any = VALUES, table: Any = None, **changes: Any) -> list[Any]:
    """Returns regions with typed metadata, complete but for what is given."""
    fields = {"key": Text(u32), "type": TypeCode(u8, VALUES), **changes}
    if "value" not in fields:
        fields["value"] = Switch(this.type, {type_: type_.field for type_ in values})
    entry = Struct(*(name / field for name, field in fields.items() if field is not None))
    return regions(metadata=KeyValues(table or Table(this.header.n_kv, entry), values, once="own-keys"))


MISTAKES += [
    ({"regions": [*regions(metadata=KeyValueLines(2)), NamesOnce("q2", "infos")]},
     "q2: infos is not a field; these are: header, metadata, rows, data"),
    ({"row": Struct(*row().subcons, TensorFits("q", "dim"))},
     "rows -> q: dim is not a field; these are: name, dims, shape, dtype, offset"),
    *(({"regions": regions(alignment=Derived(of))}, f"{ALIGNMENT}{of!r}") for of in (0, "64", True)),
    ({"regions": regions(alignment=u32)}, f"{ALIGNMENT}u32"),
    ({"row": row(flags=u16)}, 'rows -> flags: new files need a default of this field, such as "flags" / Default(u16, 0)'),
    ({"row": row(nbytes=u64)},
     'rows -> nbytes: new files need a default of this field, such as "nbytes" / Default(u64, 0), '
     'or for the bytes of the payload "nbytes" / Count(u64, nbytes_of_payload(this))'),
    ({"row": Struct(*(part for part in row().subcons if part.name))},
     'rows: a row needs the rule TensorFits("own-dims", "dims")'),
    ({"row": row(note=Text(u8))}, 'rows -> note: new files need a default of this field, such as "note" / Default(u32, 0)'),
    ({"row": row(dims=u32[4])}, 'rows -> dims: write "dims" / Sizes(u8, u64, "dims"), found u32[4]'),
    ({"regions": typed({1: F32}, value=i64)},
     "metadata: write the value types as TypeTable('toy value', ValueType('int64', 1, i64)), found {1: F32}"),
    ({"regions": typed(table=u8)},
     "metadata: write KeyValues(Table(this.header.n_kv, Entry), VALUES, once='toy-keys'), found u8"),
    ({"regions": typed(table=Table(this.header.n_kv, u8))},
     "metadata: write KeyValues(Table(this.header.n_kv, Entry), VALUES, once='toy-keys'), found <Table u8>"),
    ({"regions": typed(table=construct.Array(this.header.n_kv, Struct("key" / u8)))},
     "metadata: write KeyValues(Table(this.header.n_kv, Entry), VALUES, once='toy-keys'), found <Array <Struct>>"),
    ({"regions": typed(items=Default(u8, 0))},
     "metadata -> items: choose another name, because items is a method of the Struct's value"),
    ({"regions": typed(key=None)}, 'metadata: an entry needs the field key: "key" / Text(u32)'),
    ({"regions": typed(type=u8)},
     'metadata -> type: write "type" / TypeCode(u8, VALUES), with the table of KeyValues'),
    ({"regions": typed(value=Switch(this.type.name, {"int64": i64}))}, f"metadata -> value: {VALUE}"),
    ({"regions": typed(value=Switch(this.type, {"int64": i64}))}, f"metadata -> value: {VALUE}"),
    ({"regions": typed(value=i64)}, f"metadata -> value: {VALUE}"),
]  # fmt: skip


NO_TYPES = TypeTable("none")
BIG_VALUES = TypeTable("big value", ValueType("int64", 1, construct.Int64ub))


def header(*fields: Any) -> dict[str, Any]:
    return {"header": Struct("magic" / Const(b"OWN"), *fields, COUNT)}


def _raises(*values: Any) -> Any:
    raise LookupError("nothing here")


NUMBER = "a number of glft_schema.codec, such as u32, found"
MISTAKES += [
    ({"row": row(name=Text(construct.Int16ub))}, f"rows -> name: write Text with {NUMBER} <FormatField>"),
    ({"row": row(name=Text(f32))}, "rows -> name: write Text with an integer, such as u32, found f32"),
    ({"row": row(dims=Sizes(construct.Int8ub, u32, "dims"))}, f"rows -> dims: write Sizes with {NUMBER} <FormatField>"),
    ({"row": row(dims=Sizes(u8, 4, "dims"))}, f"rows -> dims: write Sizes with {NUMBER} 4"),
    ({"row": row(dtype=TypeCode(f32, LINES_TYPES))}, "rows -> dtype: write TypeCode with an integer, such as u32, found f32"),
    ({"row": row(offset=Picked(this.dims, u32, construct.Int64ub))},
     f"rows -> offset: write Picked with {NUMBER} <FormatField>"),
    ({"row": row(offset=f64)}, 'rows -> offset: write "offset" / u64, counted from the start of data, found f64'),
    ({"row": u8}, "rows: write the rows as Struct(...) of glft_schema.codec, found u8"),
    (header("z" / Default(Strings(construct.Int8ub, 1), ["a"])), f"header -> z: write Strings with {NUMBER} <FormatField>"),
    (header("z" / Default(Numbers(Text(u8), 1), [1])), f"header -> z: write Numbers with {NUMBER} <Text>"),
    (header("z" / Count(f64, this._.rows)), "header -> z: write Count with an integer, such as u32, found f64"),
    (header("endian" / Derived("big")),
     'header -> endian: write "byte_order" / ByteOrderOf(BIG), which sets the order of what follows, found '
     "<Derived +nonbuild>"),
    (header("byte_order" / Derived("big")),
     'header -> byte_order: write "byte_order" / ByteOrderOf(BIG), which sets the order of what follows, found '
     "<Derived +nonbuild>"),
    (header("z" / Default(u16, 0), "order" / ByteOrderOf(BIG)),
     "header -> order: declare the byte order before all numbers, found it after header -> z"),
    ({"regions": regions(format=Default(u8, 0))},
     "format: choose another name, because Container.build takes the format's name under it"),
    ({"regions": typed(TypeTable("big", ValueType("int64", 1, construct.Int64ub)))}, "metadata -> type: write "
     '"type" / TypeCode(u8, VALUES), with the table of KeyValues'),
    ({"regions": typed(BIG_VALUES, type=TypeCode(u8, BIG_VALUES))},
     f"metadata -> value: write ValueType('int64', 1, ...) with {NUMBER} <FormatField>"),
    ({"regions": typed(extra=u16)},
     'metadata -> extra: new files need a default of this field, such as "extra" / Default(u16, 0)'),
    ({"name": ""}, "write the name as text, found ''"),
    ({"keeps_to": "spec"}, "write keeps_to as a tuple such as ('spec',), found 'spec'"),
    ({"unshared_by": ("all",)}, "keeps_to and unshared_by have rule sets, spec, ggml, rust or required, found 'all'"),
    ({"shards": ".json"}, "write shards as ShardKeys(...) or ShardIndex('.index.json'), found '.json'"),
    ({"entries": 5}, "write entries as a mapping of keys to texts, found 5"),
    ({"sniff": "OWN"}, "write sniff as a function, found 'OWN'"),
    # Found by the trial:
    ({"sniff": _raises}, "sniff: recognising a file raises LookupError: nothing here"),
    ({"order": _raises}, "order: sorting the rows raises LookupError: nothing here"),
    (header("z" / Count(u32, _raises)), "header -> z: building a file raises LookupError: nothing here"),
    (header("z" / Padding(0)), "header -> z: building a file raises ZeroDivisionError: integer modulo by zero"),
    (header("z" / Default(u32[this.q], 0)), "header -> z: building a file raises KeyError: 'q'"),
    ({"row": row(shape=Derived(_raises))}, "rows -> 0 -> shape: building a file raises LookupError: nothing here"),
    ({"table": lambda count, row: Table(_raises, row)}, "rows: reading a built file raises LookupError: nothing here"),
    ({"table": lambda count, row: Table(2, row)},
     "rows: reading a built file fails: expected at most 0 (bytes left: 0, at least 8 each), found 2"),
    (header("z" / Default(construct.GreedyBytes, b"")),
     "header -> n: reading a built file fails: expected 4 bytes, found 0"),
    ({"metadata": KeyValueLines(4)}, "metadata: reading a built file fails: expected 4 bytes, found 3"),
    ({"row": Struct(*row().subcons, spec("own-rule", this.name, meets(_raises, "a rule")))},
     "rows -> 0: checking the rules of a file raises LookupError: nothing here"),
    (header("z" / Default(construct.ExprAdapter(u8, lambda *_: "text", lambda number, _: number + 0), 1)),
     'header -> z: building a file that was read raises TypeError: can only concatenate str (not "int") to str'),
]  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        ["z" / u32],  # new files need a value
        ["z" / Default(u8, 300)],  # an error of each file, which names the field
        ["z" / Default(u8, 3), Rule("own-rule", this.z, equals(4))],
        ["z" / Default(construct.Array(2, construct.Int16ub), [1, 2])],
    ],
)
def test_values_that_the_trial_lacks_are_no_mistakes(fields: list[Any]) -> None:
    assert first_mistake(declared(**header(*fields))) is None
    assert first_mistake(declared(row=row(dims=construct.Array(4, u32)))) is None
    assert first_mistake(declared(types=NO_TYPES, row=row(dtype=TypeCode(u8, NO_TYPES)))) is None


def test_the_trial_has_limits_of_its_own() -> None:
    with glft.Limits(objects=0):
        assert first_mistake(declared()) is None


def test_mistakes_in_parts() -> None:
    with pytest.raises(TypeError, match=r"^own-rule: expected a predicate such as equals\(3\), found 3$"):
        Rule("own-rule", this.z, 3)
    with pytest.raises(ValueError, match=r"^expected the name of a limit, such as 'dims', found 'sizes'$"):
        Sizes(u8, u64, "sizes")
    with pytest.raises(TypeError, match=r"^expected the types as TypeTable\('toy', \{1: F32\}\), found \{1: F32\}$"):
        TypeCode(u8, {1: F32})


@pytest.mark.parametrize(("mistake", "sentence"), MISTAKES, ids=lambda value: value[:50] if isinstance(value, str) else "")
def test_mistakes(mistake: dict[str, Any], sentence: str) -> None:
    before = list(FORMATS)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        register_format(declared(**mistake))
    assert (str(caught.value), before) == (f"{mistake.get('name', 'own')}: {sentence}", FORMATS)


def test_no_mistakes() -> None:
    own = [declared(), declared(regions=typed()), declared(row=row(flags=construct.Default(u32, 0)))]
    assert [first_mistake(format) for format in (*own, *FORMATS)] == [None] * (3 + len(FORMATS))
    with pytest.raises(TypeError, match=r"^expected a Format, found <Struct>$"):
        register_format(Row)


def taken(w, d):
    w[0] = d[0]


@pytest.mark.parametrize(
    ("block", "weights", "sentence"),
    [
        (Struct("d" / f16), 1, "d: write an array of numbers with constant dims, such as f16[1], found f16"),
        (Struct("d" / f16[this.n]), 1, "d: write an array of numbers with constant dims, such as u8[16], found f16[this['n']]"),
        (Struct("d" / construct.Bytes(2)), 1, "d: write an array of numbers with constant dims, such as u8[16], found <Bytes>"),
        (Struct(f16[1]), 1, 'give each field of the block a name, such as "d" / f16[1], found f16[1] without one'),
        (["d" / f16[1]], 1, 'write the block as Struct("d" / f16[1], ...) of glft_schema.codec, found [<Renamed d f16[1]>]'),
        (Struct("w" / f32[1]), 1, "w: choose another name, because functions have a parameter of this name"),
        (Struct("d" / f16[1]), 0, "expected at least one weight per block, found 0"),
        (Struct("d" / f16[1]), True, "expected at least one weight per block, found True"),
        (Struct(), 1, 'expected at least one field, such as "d" / f16[1], found none'),
        (Struct("d" / f16[0]), 1, "d: write an array of numbers with constant dims, such as u8[16], found f16[0]"),
        (Struct("d" / f16[1], "d" / u8[1]), 1, "d: choose another name, because another field has this one"),
        (Struct("d-1" / f16[1]), 1, "d-1: choose a name of letters, digits and '_'"),
    ],
)
def test_mistakes_in_blocks(block: Any, weights: int, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        block_type("SLIP", 9, weights, block, dequantize=taken)
    assert str(caught.value).startswith(f"SLIP: {sentence}")


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ({"dequantize": "d"}, "write the formula as a function of (w, d), found 'd'"),
        ({"quantize": "q"}, "write the encoder as a function of (w, d), found 'q'"),
        ({"scales": ["d"]}, "write scales as a mapping of fields to functions, found ['d']"),
        ({"scales": {"e": taken}}, "expected a field of the block, d, in scales and reserved, found 'e'"),
        ({"reserved": ["d"]}, "write reserved as a list of Reserved(field, text, function), found 'd'"),
        ({"reserved": 5}, "write reserved as a list of Reserved(field, text, function), found 5"),
        ({"reserved": [Reserved("e", "code 3", taken)]}, "expected a field of the block, d, in scales and reserved, found 'e'"),
    ],
)
def test_mistakes_beside_a_block(declared: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^SLIP: {re.escape(sentence)}$"):
        block_type("SLIP", 9, 1, Struct("d" / f16[1]), **{"dequantize": taken, **declared})
    with pytest.raises(ValueError, match=r"^5: write the name as text, found 5$"):
        block_type(5, 9, 1, Struct("d" / f16[1]), dequantize=taken)


def test_constructs_without_a_description(tmp_path: Path) -> None:
    """Files are read and written; what needs a description says which field has none."""
    own = declared(**header("z" / Default(construct.Prefixed(u8, construct.GreedyBytes), b"")), endings=(".own",))
    with registered(own):
        path, page = tmp_path / "m.own", tmp_path / "page.html"
        save_file(STATE, path)
        assert torch.equal(load_file(path)["w"], STATE["w"])
        with pytest.raises(NotImplementedError, match=r"^header -> z: Prefixed has no node: register a function with @"):
            byte_map(glft.open(path))
        assert in_this_process("inspect", path).returncode == 0
        for arguments in (("explain", path), ("view", path, "-o", page), ("schema", "own"), ("fuzz", "own")):
            done = in_this_process(*arguments)
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.startswith("glft: header -> z: Prefixed has no node")
