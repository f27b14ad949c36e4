"""Lists the ``raise`` statements that no test reaches, or the error texts that no test checks.

    python -m pytest --cov && python -m tests.tools.raise_sites    # statements, from .coverage
    python -m tests.tools.raise_sites --texts [OPTIONS]            # texts; runs pytest with OPTIONS

With ``--texts`` the tests run on a copy of the package in which a number replaces each error text. No
test checks a text whose number is in no failure.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2] / "glft_schema"
MARK = "<text-{}>"  # one word: tests that split lines keep it whole


class Site(NamedTuple):
    """A ``raise`` statement, or an error text."""

    file: Path
    first: int
    last: int
    statement: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(PACKAGE.parent)}:{self.first}: {self.statement}"


def raises(file: Path) -> Iterator[Site]:
    """Yields the raise statements of a file, except those of abstract methods."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Raise) and (statement := ast.unparse(node)) != "raise NotImplementedError":
            yield Site(file, node.lineno, node.end_lineno or node.lineno, statement)


def reached() -> int:
    """Prints the raise statements that the tests of the last coverage did not reach."""
    from coverage import CoverageData

    data = CoverageData()
    data.read()
    sites = [site for file in sorted(PACKAGE.rglob("*.py")) for site in raises(file)]
    missed = [site for site in sites if not set(range(site.first, site.last + 1)) & set(data.lines(str(site.file)) or ())]
    return report(sites, missed, "raise statements are reached by a test")


def report(sites: list[Site], missed: list[Site], what: str) -> int:
    """Prints a total and the missed sites; returns the exit code."""
    print(f"{len(sites) - len(missed)} of {len(sites)} {what}", *(f"missed: {site}" for site in missed), sep="\n")
    return 1 if missed else 0


class Spoiled(ast.NodeTransformer):
    """Replaces error texts by marks: texts in a ``raise`` or a `problem`, or with "expected " first.

    Args:
        file: the module's file.
        sites: the list to add each text to.
        kept: the numbers of texts to keep.
    """

    def __init__(self, file: Path, sites: list[Site], kept: set[int]) -> None:
        self.file = file
        self.sites = sites
        self.kept = kept
        self.raising = False

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        self.raising = True
        self.generic_visit(node)
        self.raising = False
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        return self.visit_Raise(node) if ast.unparse(node.targets[0]) == "problem" else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        values = [part for part in node.values if isinstance(part, ast.FormattedValue)]
        words = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        mark = self.mark(node) if self.is_sentence(words) else node
        return mark if mark is node else ast.copy_location(ast.JoinedStr([mark, *values]), node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return self.mark(node) if isinstance(node.value, str) and self.is_sentence(node.value) else node

    def is_sentence(self, text: str) -> bool:
        return text.startswith("expected ") or (self.raising and " " in text.strip())

    def mark(self, node: ast.expr) -> ast.expr:
        number = len(self.sites)
        self.sites.append(Site(self.file, node.lineno, node.end_lineno or node.lineno, ast.unparse(node)))
        return node if number in self.kept else ast.copy_location(ast.Constant(MARK.format(number)), node)


def spoiled(sources: dict[Path, str], folder: Path, kept: set[int]) -> list[Site]:
    """Writes the package with error texts replaced, except those kept; returns all texts."""
    sites: list[Site] = []
    for file, source in sources.items():
        module = Spoiled(file, sites, kept).visit(ast.parse(source))
        (folder / file.relative_to(PACKAGE.parent)).write_text(ast.unparse(module), "utf-8")
    return sites


def seen(folder: Path, options: list[str]) -> set[int]:
    """Runs the tests in a folder; returns the numbers of the marks in failures."""
    command = [sys.executable, "-m", "pytest", "-vv", "--tb=short", *options]
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False)
        output.seek(0)
        return {int(number) for line in output for number in re.findall(MARK.format(r"(\d+)"), line)}


def texts(options: list[str]) -> int:
    """Prints the error texts that no test checks.

    A test ends at its first failure. Failed tests run again with the texts that were seen restored,
    until no new text is seen.
    """
    checked: set[int] = set()
    sources = {file: file.read_text("utf-8") for file in sorted(PACKAGE.rglob("*.py"))}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("tests", "docs", "README.md", "pyproject.toml", PACKAGE.name):
            source, copy = PACKAGE.parent / part, folder / part
            shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
        sites, again = spoiled(sources, folder, set()), list[str]()
        while found := seen(folder, [*options, *again]) - checked:
            checked |= found
            spoiled(sources, folder, checked)
            again = ["--last-failed", "--last-failed-no-failures=none"]
    missed = [site for number, site in enumerate(sites) if number not in checked]
    return report(sites, missed, "error texts are checked by a test")


if __name__ == "__main__":
    sys.exit(texts(sys.argv[2:]) if sys.argv[1:2] == ["--texts"] else reached())
