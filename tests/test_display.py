"""Files, tensors and metadata in notebooks and terminals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import glft_schema
from glft_schema import Container, Typed, save_file
from glft_schema.display import Listing, size_text
from glft_schema.formats.gguf import VALUE_TYPES
from glft_schema.nn import Unmatched
from glft_schema.quantizer.plan_picture import COLOURS
from glft_schema.weights import ColumnSums
from tests.golden import golden
from tests.oracles.gguf_reference import File as Written
from tests.oracles.gguf_reference import Info, write_set
from tests.tools import gguf_strategies
from tests.tools import glft_strategies as strategies
from tests.tools.command_line import in_this_process

HOSTILE = "<script>alert('x')</script>\x1b[2J\u202e\n\"&"


TAGS = {"table", "caption", "thead", "tbody", "tr", "th", "td", "p", "details", "summary"}
DRAWN = {"svg", "rect", "title", "text", "path", "circle", "g"}
STYLES = {"text-align:left", "text-align:right"}
PAINTS = {"currentColor", "none", "gray", *COLOURS}


class Shown:
    """The tables, other texts and charts of HTML. Fails on other elements, styles and colours."""

    def __init__(self, html: str) -> None:
        root = ElementTree.fromstring(f"<div>{html}</div>".replace("&emsp;", "\u2003"))
        for element in root.iterfind(".//*"):
            assert element.tag in TAGS | DRAWN
            assert element.tag in DRAWN or element.attrib.keys() <= {"style", "scope", "colspan"}
            assert {element.get("fill", "none"), element.get("stroke", "none")} <= PAINTS
            assert element.get("style") in {None, *STYLES}
        self.tables = [[["".join(cell.itertext()) for cell in row] for row in table.iter("tr")] for table in root.iter("table")]
        self.texts = [
            text for element in root.iter() if element.tag not in ("th", "td") for text in (element.text, element.tail)
        ]
        self.charts, self.rects = (len([*root.iter(tag)]) for tag in ("svg", "rect"))


def test_a_file_in_a_notebook() -> None:
    file = Container.parse(golden("four_types"))
    found = Shown(file._repr_html_())
    assert "GLFT version 1, 168 bytes" in found.texts
    metadata, types, tensors = found.tables
    assert metadata == [["key", "value"], ["arch", "'toy'"], ["note", "'a=b üß'"]]
    assert ["Q4_per_group_64", "1", "64", "34", "20.2 %"] in types
    assert tensors[0] == ["name", "type", "shape", "bytes"]
    assert tensors[3] == ["fc1", "Q8_per_channel", "[2, 3]", "10"]
    headline = "GLFT, 74 parameters, Q4_per_group_64 (mostly), 5.84 bits per weight, 168 bytes"
    assert repr(file) == f"<File: <bytes>: {headline}>"
    assert str(file).startswith(f"<bytes>: {headline}\n\nGLFT version 1, 168 bytes\n")
    assert found.charts == 1
    assert any(text and text.startswith("Q4_per_group_64 34 bytes") for text in found.texts)
    assert "4 tensors: file.tensors lists each" in str(file)
    assert re.search(r"fc1 +Q8_per_channel +\[2, 3\] +10\n", str(file))
    assert repr(file.tensors) == "<Tensors: 4 tensors>"
    assert re.search(r"fc1 +Q8_per_channel +\[2, 3\] +10 +124", str(file.tensors))


def test_metadata_with_types() -> None:
    file = Container.parse(golden("gguf_little"))
    (rows,) = Shown(file.metadata._repr_html_()).tables
    assert rows[0] == ["key", "type", "value"]
    assert rows[2] == ["g.flags", "array[bool]", "[True, False]"]


def test_records() -> None:
    file = Container.parse(golden("four_types"))
    (rows,) = Shown(file.header._repr_html_()).tables
    assert rows == [
        ["field", "value"],
        ["magic", str(0x474C4654)],
        ["version", "1"],
        ["n_tensors", "4"],
        ["metadata_len", "22"],
    ]
    assert repr(file.tensors["fc1"].payload) == "<Record: scales float16 [2], codes int8 [2, 3]>"


def test_a_byte_map_in_a_notebook() -> None:
    byte_map = glft_schema.byte_map(Container.parse(golden("four_types")))
    found = one_screen(byte_map, f"'<bytes>', {len(byte_map)} ranges, 168 bytes", 1)
    assert found.tables[0][:3] == [
        ["path", "type", "value", "doc", "start", "bytes"],
        ["header -> magic", "u32", f"{0x474C4654:,}", byte_map[0].doc, "0", "4"],
        ["header -> version", "u32", "1", byte_map[1].doc, "4", "4"],
    ]
    regions = ["header 16 bytes", "metadata 22 bytes", "descriptors 76 bytes", "data 54 bytes"]
    assert str(byte_map).splitlines()[2] == f"bytes by region: {', '.join(regions)}"


def test_checks_of_values_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made for each display, and not used up by it; a ``repr`` makes none."""
    monkeypatch.chdir(tmp_path)  # a long path is cut
    path = "m.gguf"
    save_file({HOSTILE: torch.tensor([1.0, float("nan")]), "b": torch.zeros(4), "c": torch.ones(4)}, path)
    with glft_schema.open(path) as file:
        checks = glft_schema.check_values(file)
        (rows,) = one_screen(checks, f"values of {path!r}", 0).tables
        assert [dict(zip(rows[0], row, strict=True))["kind"] for row in rows[1:]] == ["NaN", "all zero"]
        assert str(checks).splitlines()[2] == "3 of 3 tensors checked, 1 with NaN, infinities or reserved codes"
        assert [(tensor.name, [one.kind for one in found]) for tensor, found in checks] == [
            (HOSTILE, ["NaN"]),
            ("b", ["all zero"]),
            ("c", []),
        ]
        assert next(checks, None) is None
    assert repr(checks) == f"<ValueChecks: values of {path!r}>"


def test_types_in_a_notebook() -> None:
    types = glft_schema.formats.format_named("gguf").types
    (head, *rows), (_, *folded) = Shown(types._repr_html_()).tables
    assert head == ["name", "code", "encoder", "rows are multiples of", "bits per weight"]
    assert ["Q4_K", "12", "yes", "256", "4.5"] in rows
    assert len(rows) + len(folded) == len([*types])
    assert repr(types) == f"<TypeTable: {len([*types])} ggml types>"
    assert str(types).startswith("a ggml type (0 F32, 1 F16, ")  # in errors
    (rows,) = Shown(glft_schema.formats.format_named("glft").types._repr_html_()).tables
    assert rows[3:] == [["Q8_per_channel", "2", "yes", "1", "8"], ["Q4_per_group_64", "3", "yes", "64", "4.25"]]
    (rows,) = Shown(VALUE_TYPES._repr_html_()).tables
    assert rows[:2] == [["name", "code"], ["uint8", "0"]]


def test_arrays_of_texts_and_numbers_in_a_notebook() -> None:
    tokens = [HOSTILE, *(f"t{i}" for i in range(1999))]
    metadata = {"a.tokens": tokens, "a.few": Typed([7, 8], "array[uint8]")}
    entries = Container.parse(Container.build({"format": "GGUF", "metadata": metadata})).metadata
    found = Shown(entries["a.tokens"]._repr_html_())
    first, folded = found.tables
    assert first[:3] == [["index", "value"], ["0", repr(HOSTILE)], ["1", "'t0'"]]
    assert folded[-1] == ["299", "'t298'"]
    assert "and 1,700 more" in found.texts
    (rows,) = Shown(entries.stored_value("a.few").value._repr_html_()).tables
    assert rows == [["index", "value"], ["0", "7"], ["1", "8"]]


def test_a_tensor_says_where_its_fields_are() -> None:
    tensor = Container.parse(golden("four_types")).tensors["fc1"]
    assert str(tensor).splitlines() == [
        "'fc1', Q8_per_channel [2, 3], 10 bytes at 124",
        "",
        "values by dequantize() or tensor[rows] for torch, by numpy() for numpy",
        "  dims     [2, 3], as stored",
        "  numbers  6, 13.3333 bits per weight",
        "  scales   4 bytes at 124",
        "  codes    6 bytes at 128",
    ]
    (rows,) = Shown(tensor._repr_html_()).tables
    assert [f"  {name:9}{said}" for name, said in rows] == str(tensor).splitlines()[3:]
    assert repr(tensor) == "<Tensor: 'fc1', Q8_per_channel [2, 3], 10 bytes at 124>"


def test_an_empty_tensor_and_an_empty_file() -> None:
    empty = Container.parse(Container.build({"descriptors": [{"name": "e", "dims": [0], "dtype": 0}], "data": {"e": b""}}))
    assert str(empty.tensors["e"]).startswith("'e', F32 [0], 0 bytes at ")
    nothing = Container.parse(Container.build({}))
    assert str(nothing) == "<bytes>: GLFT, 0 parameters, 16 bytes\n\nGLFT version 1, 16 bytes"
    assert Shown(nothing._repr_html_()).tables == []
    assert Shown(nothing.tensors._repr_html_()).texts[2:3] == ["0 tensors"]


def test_long_tables() -> None:
    """The first rows are shown, and a click unfolds others."""
    infos = [Info(b"t%03d" % i, [1], 24, b"x") for i in range(1045)]
    file = Container.parse(Written([], infos).bytes())
    found = Shown(file.tensors._repr_html_())
    first, folded = found.tables
    assert (len(first), first[20][0], len(folded), folded[-1][0]) == (21, "t019", 281, "t299")
    assert {"and 1,025 more", "and 745 more"} < {*found.texts}
    assert str(file.tensors).endswith("  ... and 1,006 more")
    assert len(str(file.tensors).splitlines()) <= 45
    assert repr(file.tensor_infos) == "<Rows: 1,045 rows>"


def test_blocks_and_keys_of_a_file_are_grouped() -> None:
    infos = [Info(b"token_embd", [2], 24, b"xx")]
    infos += [Info(b"blk.%d.%s.weight" % (i, kind), [1], 24, b"x") for i in range(30) for kind in (b"up", b"down")]
    entries = [(b"general.architecture", 8, b"toy"), *((b"toy.k%02d" % i, 4, i) for i in range(20)), (b"alone", 4, 7)]
    file = Container.parse(Written(entries, infos).bytes())
    keys, types, tensors = Shown(file._repr_html_()).tables
    assert [[*row[:2], row[2][:24]] for row in keys[1:]] == [
        ["general.architecture", "", "'toy'"],
        ["toy.*", "20", "k00 0, k01 1, k02 2, k03"],
        ["alone", "", "7"],
    ]
    assert types[1][:4] == ["I8", "61", "62", "62"]
    assert [row[0] for row in tensors[1:3]] == ["token_embd", "blk.0 ... blk.29: 2 tensors each"]
    assert tensors[3] == ["\u2003up.weight", "I8", "[1]", "30"]
    assert "22 entries of metadata: file.metadata lists each\n" in str(file)
    assert "  toy.k19               uint32  19" in str(file.metadata)
    beginning = "general.architecture 'toy', toy.k00 0, toy.k01 1, toy.k02 2"
    assert repr(file.metadata) == f"<Metadata: 22 entries, {beginning}>"


def test_tied_tensors_count_once() -> None:
    assert ["F32", "2", "1", "4", "4.8 %"] in Shown(Container.parse(golden("loose_layout"))._repr_html_()).tables[1]


def test_hostile_names_are_text() -> None:
    stored = Written([(HOSTILE.encode(), 8, HOSTILE.encode())], [Info(HOSTILE.encode(), [1], 24, b"x")]).bytes()
    file = Container.parse(stored)
    metadata, _, tensors = Shown(file._repr_html_()).tables
    assert metadata[1] == [repr(HOSTILE), "string", repr(HOSTILE)]
    assert tensors[1][0] == repr(HOSTILE)
    for part in (file.tensors[HOSTILE], file.metadata, file.tensors, file.tensor_infos[0]):
        Shown(part._repr_html_())


def test_a_closed_file() -> None:
    file = Container.parse(golden("four_types"))
    file.close()
    assert (repr(file), str(file)) == ("<File: '<bytes>': closed>", "'<bytes>': closed")
    assert Shown(file._repr_html_()).texts[2:3] == ["'<bytes>': closed"]


def test_a_set_of_files(tmp_path: Path) -> None:
    with glft_schema.open(write_set(tmp_path)) as file:
        assert f"{file.nbytes:,} bytes in 2 files" in str(file)
        (tensors,) = Shown(file.tensors._repr_html_()).tables
        assert [row[1] for row in tensors] == ["name", "t0", "t1"]
        assert [row[0] for row in tensors] == ["file", "set-00001-of-00002.gguf", "set-00002-of-00002.gguf"]


@settings(max_examples=120)
@given(st.one_of(gguf_strategies.loose_files(), strategies.files().map(lambda made: made[0])))
def test_every_file_can_be_shown(stored: bytes) -> None:
    file = Container.parse(stored)
    Shown(file._repr_html_())
    assert repr(file).isprintable()
    assert all(line.isprintable() for line in str(file).split("\n"))
    for tensor in file.tensors.values():
        Shown(tensor._repr_html_())
        assert tensor.nbytes == 0 or f"{tensor.nbytes:,}" in str(tensor)


def test_html_of_a_table() -> None:
    found = Listing("<t>", ("a", "n"), [("x&y", "1")], hidden=1000, right=1).html()
    assert found.splitlines() == [
        "<table>",
        '<caption style="text-align:left">&lt;t&gt;</caption>',
        '<thead><tr><th scope="col" style="text-align:left">a</th><th scope="col" style="text-align:right">n</th></tr></thead>',
        "<tbody>",
        '<tr><td style="text-align:left">x&amp;y</td><td style="text-align:right">1</td></tr>',
        "</tbody>",
        "</table>",
        "<p>and 1,000 more</p>",
    ]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("inspect a.gguf", ["float32         1e-05", "[0.1, 1e-05]"]),
        ("explain a.gguf", ["= 1e-05", "= [0.1, 1e-05]"]),
        ("compare a.gguf b.gguf", ["float32 1e-05 ", " float32 1e-06\n", "[0.1, 1e-05]"]),
        ("edit a.gguf --set toy.eps=1e-6 --set toy.list=[0.2]", ["float32 1e-05 -> float32 1e-06", "[0.1, 1e-05]", "[0.2]"]),
        ("view a.gguf -o page", ["1e-05", "[0.1, 1e-05]"]),
        ("inspect a.gguf --json", ["9.999999747378752e-06"]),  # exact
    ],
)
def test_numbers_of_float32_have_the_fewest_digits(
    command: str, shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    metadata = {"general.architecture": "toy", "toy.eps": 1e-5, "toy.list": Typed([0.1, 1e-5], "array[float32]")}
    save_file({"w": torch.ones(2)}, "a.gguf", metadata)
    save_file({"w": torch.ones(2)}, "b.gguf", metadata | {"toy.eps": 1e-6, "toy.list": Typed([0.2], "array[float32]")})
    printed, page = in_this_process(*command.split()).stdout, Path("page")
    printed += page.read_text("utf-8") if page.exists() else ""
    assert [text for text in shown if text not in printed] == []
    assert "--json" in command or not re.search("9.99|0.1000", printed)


def one_screen(report: Any, headline: str, charts: int) -> Shown:
    """Checks a report's ``repr``, ``str`` and HTML, and returns what the HTML shows."""
    assert repr(report) == f"<{type(report).__name__}: {headline}>"
    lines = str(report).splitlines()
    assert lines[0].startswith(headline)
    assert len(lines) <= 50
    assert max(map(len, lines)) < 250
    found = Shown(report._repr_html_())
    assert found.charts == charts
    return found


NAMES = [HOSTILE, *(f"blk.{i}.ffn_down.weight" for i in range(59))]


def test_reports_have_one_screen(tmp_path: Path) -> None:
    """Results of functions for a file of 60 tensors, one with a hostile name."""
    one, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    tensors = {name: torch.linspace(-1, 1, 512).reshape(2, 256) for name in NAMES}
    saved = save_file(tensors, one, {"general.architecture": "llama", "llama.block_count": 59})
    found = one_screen(saved, "60 tensors, 122.9 kB", 1)
    assert [row[1:3] for row in found.tables[0][:2]] == [["source", "type"], ["float32", "F32"]]
    assert [len(table) for table in found.tables] == [21, 41]
    assert saved == list(saved)
    one_screen(glft_schema.convert(one, other, schemes={"blk.*": "q4_0"}), "60 tensors, 19.04 kB", 1)
    one_screen(glft_schema.quantize(one, other, "Q8_0"), "Q8_0, 60 tensors, 34.14 kB, 8.89 bits per weight", 1)
    compared = glft_schema.compare(one, other)
    assert one_screen(compared, "; ".join(compared.summary), 1).rects == 59
    edited = glft_schema.edit(one, other, set={"general.name": HOSTILE})
    one_screen(edited, f"changes 1, bytes {edited.nbytes:,}, copied {edited.copied:,}", 0)
    (hashed,) = glft_schema.checks.hash_file(one)
    assert (str(hashed), len(repr(hashed)) < 300) == (f"{hashed.sha256}  {one}", True)
    one_screen(Unmatched(NAMES, []), "missing 60, left over 0", 0)


def test_importance_has_one_screen() -> None:
    sums = {name: ColumnSums(torch.rand(1, 256), torch.tensor([8])) for name in NAMES}
    matrix = glft_schema.weights.ImportanceMatrix(sums, (HOSTILE,), 2)
    one_screen(matrix, "columns 60, datasets 1, chunk count 2, chunk size 512", 0)
    one_screen(matrix.statistics(), "60 tensors", 0)


def test_plans_have_one_screen(tmp_path: Path) -> None:
    tensors = {name: torch.randn(2, 256) for name in NAMES[1:4]}
    save_file(tensors, tmp_path / "a.gguf", {"general.architecture": "llama", "llama.block_count": 3})
    planned = glft_schema.plan(tmp_path / "a.gguf", types=["q4_0", "q8_0"])
    found = one_screen(planned, "3 tensors and 2 types to choose from", 1)
    assert [row[:3] for row in found.tables[0][1:]] == [["Q4_0", "3", "4.5"], ["Q8_0", "3", "8.5"]]
    assert {"Q4_0", "Q8_0"} <= {*found.texts}
    mix = planned.smallest
    one_screen(mix, f"3 tensors, 4.50 bits per weight, signal-to-noise ratio {mix.snr:.1f} dB, {size_text(mix.size)}", 1)
