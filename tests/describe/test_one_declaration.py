"""The promise of the project: an addition to a declaration is everywhere, with no other edit.

A copy of the package gets made-up fields and tensor types in its declarations alone, and so does
the format of docs/guides/adding-a-format.md. Everything that is derived from declarations must have
them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.tools.browser import started
from tests.tools.depth import FULL
from tests.tools.processes import Process

ROOT = Path(__file__).parents[2]

# The edits: (file, the beginning of the line that the addition follows, the addition).
HEADER_FIELD = """    "flags" / Default(u16, 7) * "made-up bits about the whole file",
    Rule("made-up-flags", this.flags, differs_from(59999, "another number than 59999")),
"""
ROW_FIELD = '    "checksum" / Default(u32, 0xC0FFEE) * "made-up sum of the payload",\n'
GLFT_TYPE = """
def qx_per_row(w, pivots, deltas):
    for i in range(len(w)):
        w[i] = float32(deltas[i]) + pivots[0]


QX_PER_ROW = TensorType("QX_per_row", 77, Struct(
    AT_LEAST_2_DIMS,
    "pivots" / f16[OUT]     * "made-up pivot of a row",
    "deltas" / i8[OUT, IN]  * "made-up distances from the pivot",
), qx_per_row, None)
"""
GGML_TYPE = '''
def qx_32(w, d, deltas):
    """d * made-up delta."""
    for i in range(32):
        w[i] = d[0] * float32(deltas[i])


QX_32 = block_type("QX_32", 177, 32, Struct(
    "d"      / f16[1] * "made-up scale",
    "deltas" / i8[32] * "made-up deltas",
), dequantize=qx_32)
'''
TOY_TYPE = '''
def qx_16(w, d, deltas):
    """d * made-up delta."""
    for i in range(16):
        w[i] = d[0] * float32(deltas[i])


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
    ("tensor_types/ggml/legacy.py", None, GGML_TYPE),
    (
        "../toy.py",
        "import glft_schema as glft",
        "from construct import Default\nfrom glft_schema.codec import Rule, i8\n"
        "from glft_schema.codec.predicates import differs_from\n"
        "from glft_schema.scalar import float32\n",
    ),
    ("../toy.py", '    "magic"     / Const', HEADER_FIELD),
    ("../toy.py", '    "offset" / u64', ROW_FIELD),
    ("../toy.py", "TYPES = TypeTable", TOY_TYPE),
]
FORMATS = {"glft": "descriptors", "gguf": "tensor_infos", "toy": "tensors"}  # each with the name of its table
TYPES = {"glft": "QX_per_row", "gguf": "QX_32", "toy": "QX_16", "safetensors": "QX_8"}
OF_FILES = ["flags", "checksum", "made-up bits about the whole file", "made-up sum of the payload", "made-up-flags"]
IN_JSON = ["checksum", "made-up sum of the payload", "made-up-checksum"]
OF_BLOCKS = ["deltas", "made-up deltas"]
OF_TYPES = {
    "glft": ["pivots", "deltas", "made-up distances from the pivot"],
    "safetensors": ["made-up number"],
    "gguf": OF_BLOCKS,
    "toy": OF_BLOCKS,
}


def in_full(format: str) -> list[pytest.MarkDecorator]:
    """Returns the marks of a slow test of a format: by default, one of the three is tested."""
    return [] if format == "toy" else [pytest.mark.full]


class Copy(Process):
    """A process with the edited copy of the package, which runs programs in a folder."""

    def __init__(self, folder: Path) -> None:
        # hypothesis keeps a table of characters there, which takes a second to make
        variables = {"HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis"), "GLFT_LIBRARY": "off"}
        super().__init__("-c", SERVE, str(folder), **variables)
        self.folder = folder

    def run(self, program: str, *arguments: object) -> str:
        """Returns what a program prints."""
        printed, problem = self((program, [*map(str, arguments)]))
        assert problem == ""
        return str(printed)

    def glft(self, *arguments: object) -> str:
        """Returns what a command prints."""
        return self.run("from glft_schema.cli import main; main()", *arguments)


SERVE = """
import io, os, sys, traceback
from contextlib import redirect_stderr, redirect_stdout
from tests.tools.processes import serve

def answer(request):
    program, arguments = request
    sys.argv, out, error = ["glft", *arguments], io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        try:
            exec(program, {"__name__": "__main__"})
        except BaseException as ended:
            if not isinstance(ended, SystemExit) or ended.code:
                traceback.print_exc()
    return out.getvalue(), error.getvalue()

os.chdir(sys.argv[1])
sys.path.insert(0, sys.argv[1])  # before the checkout's package
serve(answer)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """The process; its folder has a small file of each format."""
    folder = tmp_path_factory.mktemp("copy")
    package = folder / "glft_schema"
    shutil.copytree(ROOT / "glft_schema", package, ignore=shutil.ignore_patterns("__pycache__", "compiled"))
    page = (ROOT / "docs" / "guides" / "adding-a-format.md").read_text("utf-8")
    (folder / "toy.py").write_text(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0], "utf-8")
    (folder / "toy-1.0.dist-info").mkdir()
    (folder / "toy-1.0.dist-info" / "entry_points.txt").write_text("[glft_schema.formats]\ntoy = toy:TOY\n", "utf-8")
    for name, line, addition in EDITS:
        path = package / name
        text, count = re.subn(f".*{re.escape(line)}.*\n" if line else r"\Z", rf"\g<0>{addition}", path.read_text("utf-8"))
        assert count == 1, line
        path.write_text(text, "utf-8")
    with closing(Copy(folder)) as copy:
        copy.run(MAKE)
        yield copy


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
    assert (file.header.flags, file.regions[table][0].checksum, Container.build(file)) == (513, 0xABCD, built)
    assert file.get_tensor("w").shape == (2, 32)
    open(f"small.{name}", "wb").write(built)
rows = [{"name": "w", "dims": [2, 3], "dtype": "QX_8", "offset": 0, "checksum": 0xABCD}]
built = Container.build({"format": "safetensors", "tensor_infos": rows, "data": {"w": bytes(range(6))}})
file = Container.parse(built)
assert (file.tensor_infos[0].checksum, Container.build(file)) == (0xABCD, built)
assert file.get_tensor("w").tolist() == [[0, 1, 2], [3, 4, 5]]
open("small.safetensors", "wb").write(built)
"""


WRITE = """
import sys
from glft_schema.cli.schema import find
from glft_schema.describe import schema_of, write
*names, language = sys.argv[1:]
print(*(write(schema_of(find(name)), language) for name in names), sep="\\0")
"""


@pytest.mark.parametrize(
    ("format", "language"),
    [
        pytest.param(format, language, marks=[pytest.mark.full] if (format, language) == ("gguf", "markdown") else [])
        for format in TYPES
        for language in ("markdown", "json", "kaitai", "c")
    ],
)
def test_every_language_has_them(copy: Copy, format: str, language: str) -> None:
    text, alone = copy.run(WRITE, format, TYPES[format], language).split("\0")
    assert TYPES[format].lower() in text.lower()
    assert [word for word in OF_TYPES[format] if word not in text or word not in alone] == []
    expected = OF_FILES if format in FORMATS else [] if language == "kaitai" else IN_JSON  # Kaitai has no entries
    assert [word for word in expected if word not in text] == []
    assert (IN_JSON[0] in text) == (expected != [])


ASSERTIONS = {
    "glft": "sizeof(struct glft_header) == 18 && offsetof(struct glft_header, flags) == 8",
    "gguf": "sizeof(struct gguf_qx_32) == 34 && offsetof(struct gguf_header_unless_version_is_1, flags) == 8",
    "toy": "sizeof(struct toy_header) == 15 && sizeof(struct toy_qx_16) == 18 && TOY_TYPE_QX_16 == 77",
}


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")
@pytest.mark.parametrize("format", FORMATS)
def test_c_compiles_with_them(copy: Copy, format: str) -> None:
    program, header = copy.folder / f"{format}.c", copy.glft("schema", format, "--as", "c")
    program.write_text(f'{header}\n_Static_assert({ASSERTIONS[format]}, "it is");\nint main(void) {{ return 0; }}\n', "utf-8")
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", program], check=True)


STRATEGIES = """
import sys
from hypothesis import HealthCheck, Phase, find, given, settings
from glft_schema import Container
from glft_schema.testing import containers, corruptions
name, type_, table, count = sys.argv[1:]
quiet = settings(database=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
flags, checksums = set(), set()
@settings(quiet, max_examples=int(count))
@given(containers(name))
def look(stored):
    file = Container.parse(stored)
    flags.add(file.header.flags)
    checksums.update(row.checksum for row in file.regions[table])
look()
assert len(flags) > 5 and len(checksums) > 5, (flags, checksums)
find(containers(name), lambda stored: type_ in [row.dtype.name for row in Container.parse(stored).regions[table]],
    settings=settings(quiet, max_examples=5000))
seen = []
@settings(quiet, max_examples=min(int(count), 20))
@given(corruptions(open(f"small.{name}", "rb").read(), "made-up-flags"))
def breaks(corruption):
    assert (corruption.path, corruption.problem()) == ("header -> flags", None)
    seen.append(corruption)
breaks()
assert seen
"""


@pytest.mark.parametrize(("format", "table"), [pytest.param(*item, marks=in_full(item[0])) for item in FORMATS.items()])
def test_random_files_have_them(copy: Copy, format: str, table: str) -> None:
    copy.run(STRATEGIES, format, TYPES[format], table, 250 if FULL else 60)


BYTES = """
import sys
import glft_schema
with glft_schema.open(sys.argv[1]) as file:
    for byte_range in glft_schema.byte_map(file):
        print(byte_range.start, byte_range.path, byte_range.type, byte_range.value, byte_range.doc, sep="|")
        for part in glft_schema.byte_map(file).leaves(byte_range.start, byte_range.end):
            print(part.start, part.path, sep="|")
"""


@pytest.mark.parametrize("format", FORMATS)
def test_the_byte_map_has_them(copy: Copy, format: str) -> None:
    lines = copy.run(BYTES, f"small.{format}").splitlines()
    at = 5 if format == "toy" else 8
    assert f"{at}|header -> flags|u16|513|made-up bits about the whole file" in lines
    (row,) = (line for line in lines if "-> 0 -> checksum|" in line)
    assert row.endswith("|u32|43981|made-up sum of the payload")
    block = TYPES[format].lower()
    field = "deltas|i8[out, in]" if format == "glft" else f"blocks|{block}[out, in // {block[-2:]}]"
    assert any(f"data -> 'w' -> {field}" in line for line in lines)
    assert any("deltas" in line.rpartition("|")[2] for line in lines)
    explained = copy.glft("explain", f"small.{format}")
    assert "header -> flags: u16 = 513" in explained
    assert "made-up sum of the payload" in explained


@pytest.mark.parametrize("format", [pytest.param(format, marks=in_full(format)) for format in FORMATS])
def test_the_page_has_them(copy: Copy, format: str) -> None:
    copy.glft("view", f"small.{format}", "-o", f"{format}.html")
    text = (copy.folder / f"{format}.html").read_text("utf-8")
    assert [word for word in (TYPES[format], *OF_FILES[:4]) if word not in text] == []
    with started() as browser:
        page = browser.new_page()
        page.goto((copy.folder / f"{format}.html").as_uri())
        shown = page.inner_text("body")
    assert TYPES[format] in shown
    assert "flags" in shown


STRATEGIES_IN_JSON = """
import sys
from hypothesis import HealthCheck, Phase, find, given, settings
from glft_schema import Container
from glft_schema.testing import containers, corruptions
count = int(sys.argv[1])
checksums = set()
quiet = settings(max_examples=count, database=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck))
files = containers("safetensors", rules=("spec", "rust"))
@quiet
@given(files)
def look(stored):
    checksums.update(row.checksum for row in Container.parse(stored).tensor_infos)
look()
assert len(checksums) > 5, checksums
many = settings(quiet, max_examples=5000)
find(files, lambda stored: "QX_8" in [row.dtype.name for row in Container.parse(stored).tensor_infos], settings=many)
small = open("small.safetensors", "rb").read()
@quiet
@given(corruptions(small, "made-up-checksum"))
def breaks(corruption):
    assert corruption.path.endswith(" -> checksum") and corruption.problem() is None, corruption
breaks()
def is_another_kind(corruption):
    assert corruption.problem() is None, corruption
    return corruption.path.endswith(" -> checksum") and corruption.sentence == "a value is of another kind"
if count >= 200:
    find(corruptions(small, aspect="tensor info"), is_another_kind, settings=many)
"""


def test_safetensors_has_them(copy: Copy) -> None:
    """An entry's key, its rule and a dtype."""
    copy.run(STRATEGIES_IN_JSON, 200 if FULL else 20)
    lines = copy.run(BYTES, "small.safetensors").splitlines()
    assert any("|tensor_infos -> 0 -> checksum|JSON integer|43981|made-up sum of the payload" in line for line in lines)
    assert "tensor_infos -> 0 -> checksum: JSON integer = 43981" in copy.glft("explain", "small.safetensors")
    copy.glft("view", "small.safetensors", "-o", "safetensors.html")
    page = (copy.folder / "safetensors.html").read_text("utf-8")
    assert [word for word in ("QX_8", *IN_JSON[:2], *OF_TYPES["safetensors"]) if word not in page] == []
