"""The promise of the project: an addition to a declaration is everywhere, with no other edit.

A copy of the package gets made-up fields and tensor types in its declarations alone, and so does
the format of docs/adding-a-format.md. Everything that is derived from declarations must have them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.browser import started

ROOT = Path(__file__).parents[2]

# The edits: (file, the beginning of the line that the addition follows, the addition).
HEADER_FIELD = """    "flags" / Default(u16, 7) * "made-up bits about the whole file",
    Rule("made-up-flags", this.flags, differs_from(59999, "another number than 59999")),
"""
ROW_FIELD = '    "checksum" / Default(u32, 0xC0FFEE) * "made-up sum of the payload",\n'
GLFT_TYPE = """
QX_PER_ROW = TensorType("QX_per_row", 77, Struct(
    AT_LEAST_2_DIMS,
    "pivots" / f16[OUT]     * "made-up pivot of a row",
    "deltas" / i8[OUT, IN]  * "made-up distances from the pivot",
), lambda pivots, deltas: deltas.to(torch.float32) + pivots.to(torch.float32).reshape(-1, 1), None)
"""
GGML_TYPE = '''
def qx_32(d: torch.Tensor, deltas: torch.Tensor) -> torch.Tensor:
    """d * made-up delta."""
    return deltas.to(torch.float32) * d.to(torch.float32)


QX_32 = block_type("QX_32", 177, 32, Struct(
    "d"      / f16[1] * "made-up scale",
    "deltas" / i8[32] * "made-up deltas",
), dequantize=qx_32)
'''
TOY_TYPE = '''
def qx_16(d, deltas):
    """d * made-up delta."""
    return deltas.to(torch.float32) * d.to(torch.float32)


TYPES.add(glft.types.block_type("QX_16", 77, 16, Struct(
    "d"      / f16[1] * "made-up scale",
    "deltas" / i8[16] * "made-up deltas",
), dequantize=qx_16))
'''
JSON_FIELD = """    "checksum" / Default(IntegerAt("checksum", 0, of=1), 7) * "made-up sum of the payload",
    Rule("made-up-checksum", this.checksum, differs_from(59999, "another number than 59999")),
"""
COPIED_TYPE = 'QX_8 = copied_type("QX_8", "u1", "uint8", "made-up number")\n'
EDITS = [
    ("formats/safetensors.py", "from construct import this", "from construct import Default\n"),
    ("formats/safetensors.py", "from glft_schema.codec.predicates import", "from ..codec.predicates import differs_from\n"),
    ("formats/safetensors.py", '    "end"    / Count', JSON_FIELD),
    ("formats/safetensors.py", ")})  # fmt: skip", "from ..tensor_types.copied import QX_8; TYPES.add(QX_8)\n"),
    ("tensor_types/copied.py", None, COPIED_TYPE),
    ("formats/glft.py", '    "version"      / Default', HEADER_FIELD),
    ("formats/glft.py", '    "offset" / u64', ROW_FIELD),
    ("formats/glft.py", "TYPES = TypeTable", "from ..tensor_types.symmetric import QX_PER_ROW; TYPES.add(QX_PER_ROW)\n"),
    ("tensor_types/symmetric.py", None, GLFT_TYPE),
    ("formats/gguf.py", '    "version"    / Default', HEADER_FIELD),
    ("formats/gguf.py", '    "offset" / u64', ROW_FIELD),
    ("tensor_types/legacy.py", None, GGML_TYPE),
    (
        "../toy.py",
        "import glft_schema as glft",
        "from construct import Default\nfrom glft_schema.codec import Rule, differs_from, i8\n",
    ),
    ("../toy.py", '    "magic"     / Const', HEADER_FIELD),
    ("../toy.py", '    "offset" / u64', ROW_FIELD),
    ("../toy.py", "TYPES = TypeTable", TOY_TYPE),
]
FORMATS = {"glft": "descriptors", "gguf": "tensor_infos", "toy": "tensors"}  # each with the name of its table
TYPES = {"glft": "QX_per_row", "gguf": "QX_32", "toy": "QX_16"}
FIELDS = {"glft": ["flags", "checksum", "pivots", "deltas"], "gguf": ["flags", "checksum", "deltas"]}
FIELDS["toy"] = FIELDS["gguf"]
WORDS = ["made-up bits about the whole file", "made-up sum of the payload", "made-up-flags"]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the edited copy of the package, and a small file of each format."""
    folder = tmp_path_factory.mktemp("copy")
    package = folder / "glft_schema"
    shutil.copytree(ROOT / "glft_schema", package, ignore=shutil.ignore_patterns("__pycache__"))
    page = (ROOT / "docs" / "adding-a-format.md").read_text("utf-8")
    (folder / "toy.py").write_text(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0], "utf-8")
    (folder / "toy-1.0.dist-info").mkdir()
    (folder / "toy-1.0.dist-info" / "entry_points.txt").write_text("[glft_schema.formats]\ntoy = toy:TOY\n", "utf-8")
    for name, line, addition in EDITS:
        path = package / name
        text, count = re.subn(f".*{re.escape(line)}.*\n" if line else r"\Z", rf"\g<0>{addition}", path.read_text("utf-8"))
        assert count == 1, line
        path.write_text(text, "utf-8")
    run(folder, MAKE)
    return folder


MAKE = """
import io, torch
from glft_schema import Container
from glft_schema.formats.registry import format_named
tables = (("glft", "qx_per_row", "descriptors"), ("gguf", "qx_32", "tensor_infos"), ("toy", "qx_16", "tensors"))
for name, type_, table in tables:
    type_ = format_named(name).types[type_]
    payload = bytes(range(1, 1 + type_.nbytes([2, 32])))
    dims = list(format_named(name).dims_of([2, 32]))
    rows = [{"name": "w", "dims": dims, "dtype": type_, "checksum": 0xABCD}]
    built = Container.build({"format": name, "header": {"flags": 513}, table: rows, "data": {"w": payload}})
    file = Container.parse(built)
    assert (file.header.flags, file[table][0].checksum, Container.build(file)) == (513, 0xABCD, built)
    assert file.get_tensor("w").shape == (2, 32)
    open(f"small.{name}", "wb").write(built)
rows = [{"name": "w", "dims": [2, 3], "dtype": "QX_8", "offset": 0, "checksum": 0xABCD}]
built = Container.build({"format": "safetensors", "tensor_infos": rows, "data": {"w": bytes(range(6))}})
file = Container.parse(built)
assert (file.tensor_infos[0].checksum, Container.build(file)) == (0xABCD, built)
assert file.get_tensor("w").tolist() == [[0, 1, 2], [3, 4, 5]]
open("small.safetensors", "wb").write(built)
"""


def run(folder: Path, program: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def glft(folder: Path, *arguments: str) -> str:
    return run(folder, "from glft_schema.cli import main; main()", *arguments)


WRITE = """
import sys
from glft_schema.cli.schema import find
from glft_schema.describe import schema_of, write
*names, language = sys.argv[1:]
print(*(write(schema_of(find(name)), language) for name in names), sep="\\0")
"""


@pytest.mark.slow
@pytest.mark.parametrize("language", ["markdown", "json", "kaitai", "c"])
@pytest.mark.parametrize("format", FORMATS)
def test_every_language_has_them(copy: Path, format: str, language: str) -> None:
    text, alone = run(copy, WRITE, format, TYPES[format], language).split("\0")
    assert TYPES[format].lower() in text.lower()
    for word in [*FIELDS[format], *WORDS, "made-up distances from the pivot" if format == "glft" else "made-up deltas"]:
        assert word in text, word
    assert all(word in alone for word in FIELDS[format][2:])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")
@pytest.mark.parametrize("format", FORMATS)
def test_c_compiles_with_them(copy: Path, format: str) -> None:
    header = copy / f"{format}.h"
    header.write_text(glft(copy, "schema", format, "--as", "c"), "utf-8")
    assertions = {
        "glft": ["sizeof(struct glft_header) == 18", "offsetof(struct glft_header, flags) == 8"],
        "gguf": ["sizeof(struct gguf_qx_32) == 34", "offsetof(struct gguf_header_unless_version_is_1, flags) == 8"],
        "toy": ["sizeof(struct toy_header) == 15", "sizeof(struct toy_qx_16) == 18", "TOY_TYPE_QX_16 == 77"],
    }
    program = copy / f"{format}.c"
    lines = [f'#include "{header.name}"', *(f'_Static_assert({text}, "it is");' for text in assertions[format])]
    program.write_text("\n".join([*lines, "int main(void) { return 0; }", ""]), "utf-8")
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", program], check=True)


STRATEGIES = """
import sys
from hypothesis import HealthCheck, Phase, given, settings
from glft_schema import Container
from glft_schema.testing.strategies import containers, corruptions
name, type_, table = sys.argv[1:]
flags, checksums, types = set(), set(), set()
@settings(max_examples=250, database=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(containers(name))
def look(stored):
    file = Container.parse(stored)
    flags.add(file.header.flags)
    for row in file[table]:
        checksums.add(row.checksum)
        types.add(row.dtype.name)
look()
assert len(flags) > 5 and len(checksums) > 5, (flags, checksums)
assert type_ in types, types
seen = []
@settings(max_examples=20, database=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(corruptions(open(f"small.{name}", "rb").read(), "made-up-flags"))
def breaks(corruption):
    assert (corruption.path, corruption.problem()) == ("header -> flags", None)
    seen.append(corruption)
breaks()
assert seen
"""


@pytest.mark.slow
@pytest.mark.parametrize(("format", "table"), FORMATS.items())
def test_random_files_have_them(copy: Path, format: str, table: str) -> None:
    run(copy, STRATEGIES, format, TYPES[format], table)


BYTES = """
import sys
import glft_schema
with glft_schema.open(sys.argv[1]) as file:
    for stretch in glft_schema.byte_map(file):
        print(stretch.start, stretch.path, stretch.type, stretch.value, stretch.doc, sep="|")
        for part in glft_schema.byte_map(file).leaves(stretch.start, stretch.end):
            print(part.start, part.path, sep="|")
"""


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_the_byte_map_has_them(copy: Path, format: str) -> None:
    lines = run(copy, BYTES, f"small.{format}").splitlines()
    at = 5 if format == "toy" else 8
    assert f"{at}|header -> flags|u16|513|made-up bits about the whole file" in lines
    (row,) = (line for line in lines if "-> 0 -> checksum|" in line)
    assert row.endswith("|u32|43981|made-up sum of the payload")
    block = TYPES[format].lower()
    field = "deltas|i8[out, in]" if format == "glft" else f"blocks|{block}[out, in // {block[-2:]}]"
    assert any(f"data -> 'w' -> {field}" in line for line in lines)
    assert any("deltas" in line.rpartition("|")[2] for line in lines)
    explained = glft(copy, "explain", f"small.{format}")
    assert "header -> flags: u16 = 513" in explained
    assert "made-up sum of the payload" in explained


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_the_page_has_them(copy: Path, format: str) -> None:
    glft(copy, "view", f"small.{format}", "-o", f"{format}.html")
    text = (copy / f"{format}.html").read_text("utf-8")
    for word in [TYPES[format], "flags", "checksum", *WORDS[:2]]:
        assert word in text, word
    with started() as browser:
        page = browser.new_page()
        page.goto((copy / f"{format}.html").as_uri())
        shown = page.inner_text("body")
    assert TYPES[format] in shown
    assert "flags" in shown


IN_JSON = """
import sys
from hypothesis import HealthCheck, Phase, given, settings
from glft_schema import Container
from glft_schema.testing.strategies import containers, corruptions
checksums, types, sentences = set(), set(), set()
quiet = settings(max_examples=200, database=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck))
@quiet
@given(containers("safetensors", rules=("spec", "rust")))
def look(stored):
    for row in Container.parse(stored).tensor_infos:
        checksums.add(row.checksum)
        types.add(row.dtype.name)
look()
assert len(checksums) > 5 and "QX_8" in types, (checksums, types)
small = open("small.safetensors", "rb").read()
@quiet
@given(corruptions(small, "made-up-checksum"))
def breaks(corruption):
    assert corruption.path.endswith(" -> checksum") and corruption.problem() is None, corruption
breaks()
@settings(quiet, max_examples=1000)
@given(corruptions(small, aspect="tensor info"))
def values(corruption):
    assert corruption.problem() is None, corruption
    sentences.add((corruption.path.rpartition(" -> ")[2], corruption.sentence))
values()
assert ("checksum", "a value is of another kind") in sentences, sentences
"""


@pytest.mark.slow
def test_safetensors_has_them(copy: Path) -> None:
    """An entry's key, its rule and a dtype."""
    for language in ("markdown", "json", "c", "kaitai"):
        text, alone = run(copy, WRITE, "safetensors", "QX_8", language).split("\0")
        assert "QX_8" in text
        assert "made-up number" in text
        assert "made-up number" in alone
        for word in ("checksum", "made-up sum of the payload", "made-up-checksum"):
            assert (word in text) == (language != "kaitai"), (word, language)  # which has no entries
    run(copy, IN_JSON)
    lines = run(copy, BYTES, "small.safetensors").splitlines()
    assert any("|tensor_infos -> 0 -> checksum|JSON integer|43981|made-up sum of the payload" in line for line in lines)
    assert "tensor_infos -> 0 -> checksum: JSON integer = 43981" in glft(copy, "explain", "small.safetensors")
    glft(copy, "view", "small.safetensors", "-o", "safetensors.html")
    page = (copy / "safetensors.html").read_text("utf-8")
    assert all(word in page for word in ("QX_8", "checksum", "made-up sum of the payload", "made-up number"))
