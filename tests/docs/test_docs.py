"""What the pages say is true: links lead somewhere, generated parts and names are the package's."""

from __future__ import annotations

import ast
import builtins
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glft_schema import Container, FormatError
from glft_schema.describe.schema import schema_of
from glft_schema.errors import install
from glft_schema.formats.registry import FORMATS
from glft_schema.tensor_types.small_floats import IQ4_VALUES
from tests.oracles import glft_reference as reference
from tests.oracles.glft_reference import F32, Q4, Row
from tests.tools import sizes

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
import generate  # noqa: E402

PAGES = [*generate.stored(), ROOT / ".github" / "SECURITY.md"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_the_package_has_no_more_tokens_than_its_table_says() -> None:
    """A change that needs more code raises the number in the same commit, with the reason."""
    text = (DOCS / "background" / "design.md").read_text("utf-8")
    most = int(re.findall(r"^\| total \|.*\| ([\d,]+) \|$", text, re.MULTILINE)[0].replace(",", ""))
    assert sizes.sizes_of_packages(sizes.PACKAGE)["total"].tokens <= most


REFERENCE = re.compile(r"(?<!`)`([A-Za-z_][\w./]*\w)`(?!`)")
FOREIGN = {"compute_cossim", "compute_statistics", "llama.cpp", "sha256sum"}  # of llama.cpp, and a command


def names_of(tree: ast.Module) -> Iterator[str]:
    """Yields the names that a module defines, and its strings, such as the names of rule sets."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                yield name
            case ast.alias(name=name):
                yield name.rpartition(".")[2]


def is_importable(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (AttributeError, ImportError):
        return False
    return True


@pytest.mark.long
def test_references_in_docstrings_lead_somewhere() -> None:
    """Names are known, files exist, and dotted names can be imported or have known parts."""
    modules = sizes.parsed(sizes.PACKAGE)
    known = {*dir(builtins), *FOREIGN, "glft_schema"}.union(*map(names_of, modules.values()))
    known |= {part for where in modules for part in Path(where).with_suffix("").parts}
    files = [f"/{path.relative_to(ROOT).as_posix()}" for path in sizes.PACKAGE.rglob("*.*")]
    wrong = []
    for where, tree in modules.items():
        nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Module | sizes.Definition))
        for name in (each for node in nodes for each in REFERENCE.findall(ast.get_docstring(node) or "")):
            if name.startswith(("glft_schema.", "torch.", "gguf.")):
                found = is_importable(name)
            else:
                found = name in known or {*name.split(".")} <= known or any(file.endswith(f"/{name}") for file in files)
            if not found:
                wrong.append(f"{where}: {name}")
    assert wrong == []


@pytest.mark.full
def test_the_site_builds_without_an_issue(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("_site", "__pycache__"))
    for name in ("README.md", "glft_schema", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    subprocess.run([sys.executable, "docs/generate.py"], cwd=tmp_path, check=True)
    command = [Path(sys.executable).parent / "zensical", "build", "-f", "docs/mkdocs.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "No issues found" in done.stderr, done.stdout + done.stderr
    site = tmp_path / "docs" / "_site"
    for page in (tmp_path / "docs").rglob("*.md"):
        assert (site / page.relative_to(tmp_path / "docs")).with_suffix(".html").exists()
    assert "dequantize" in (site / "reference" / "api.html").read_text("utf-8")
    index = (site / "index.html").read_text("utf-8")
    assert re.findall(r"""<(?:link|script|img)[^>]+(?:href|src)=["']?https?:[^"' >]+""", index) == []


@pytest.mark.long
def test_generated_parts_are_what_the_declarations_say() -> None:
    """To renew them: ``python docs/generate.py``."""
    for page in generate.stored():
        assert generate.renewed(page.read_text("utf-8")) == page.read_text("utf-8"), f"{page} is stale: python docs/generate.py"


def test_the_number_of_bad_files_is_that_of_the_catalogue() -> None:
    rows = [row.strip("| ").split(" | ") for row in generate.catalogue().splitlines()]
    bad = sum(int(count) for kind, count, _ in rows if "bad" in kind)
    for page, sentence in (("README.md", f"rejects all {bad} bad files"), ("docs/concepts/safety.md", f"Of {bad} bad files")):
        assert sentence in (ROOT / page).read_text("utf-8")


def test_pages_of_the_site_are_written() -> None:
    """Those of screens take 30 s."""
    written = [function() for name, function in generate.WRITTEN.items() if "screens" not in name]
    assert [page for page in written if not page.startswith("# ")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_stored_pages(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text("utf-8")):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        assert path not in {DOCS / name for name in generate.WRITTEN}, target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}, anchor


def test_extras_are_installed_by_one_command() -> None:
    extra = r"(?:converter|fuzz|hf|transformers)"
    for page in PAGES:
        for command, name in re.findall(rf"(pip install [^`\n]*?\[({extra})\]'?|'\.\[{extra}\]')", page.read_text("utf-8")):
            assert command == install(name), page


def test_page_of_types_has_the_values_of_codes() -> None:
    assert " ".join(map(str, IQ4_VALUES)) in (DOCS / "reference" / "types.md").read_text("utf-8")


@pytest.mark.full
def test_a_type_in_the_package(tmp_path: Path) -> None:
    """The program of the page runs, and so does a copy of the package with the page's edit."""
    page = DOCS / "guides" / "adding-a-type.md"
    (program,), (diff,) = blocks(page, "python"), blocks(page, "diff")
    package = tmp_path / "glft_schema"
    shutil.copytree(ROOT / "glft_schema", package, ignore=shutil.ignore_patterns("__pycache__", "compiled"))
    added: dict[Path, list[str]] = {}
    for line in diff.splitlines():
        if line.startswith("+++ b/"):
            lines = added.setdefault(tmp_path / line.removeprefix("+++ b/"), [])
        elif line.startswith("+"):
            lines.append(line[1:])
    built_in = """
import torch

import glft_schema as glft

file = glft.open("own.gguf")
assert file.tensors["blk.0.ffn_up.weight"].type.name == "Q4_X" and file.get_slice("blk.0.ffn_up.weight")[2].shape == (64,)
w = torch.linspace(-1, 1, 256).view(4, 64)
glft.save_file({"w": w}, "again.gguf", schemes={"w": "q4_x"}, format="gguf", rules=[])
assert (glft.load_file("again.gguf")["w"] - w).abs().max() < 1 / 7
"""
    for name, code in (
        ("program", program + 'assert row.shape == (64,) and [*glft.load_file("own.gguf")] == [*weights]'),
        ("edit", built_in),
    ):
        (tmp_path / "own.py").write_text(code, "utf-8")  # formulas need their source
        variables = {**os.environ, "GLFT_LIBRARY": "off"}
        done = subprocess.run([sys.executable, "own.py"], cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), name
        for edited, lines in added.items():
            edited.write_text(edited.read_text("utf-8") + "\n".join(lines) + "\n", "utf-8")


def test_every_field_of_the_schema_has_a_sentence() -> None:
    structs = [struct for format in FORMATS for struct in schema_of(format).structs.values()]
    assert len(structs) > 40
    assert [(struct.name, field.name) for struct in structs for field in struct.fields if not field.doc] == []


def test_the_pages_example_of_an_error_is_what_is_said() -> None:
    page = (DOCS / "reference" / "glft.md").read_text("utf-8")
    (line,) = re.findall(r"^    (descriptors -> 3 -> dims: .*at byte )\d+\)$", page, re.MULTILINE)
    rows = [*(Row(f"t{i}", [1], F32, bytes(4)) for i in range(3)), Row("fc1.weight", [3, 100], Q4, b"")]
    with pytest.raises(FormatError, match=re.escape(line)):
        Container.parse(reference.back_to_back(b"k=" + b"v" * 31, rows))
