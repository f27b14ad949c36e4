"""Are the ways to fail tested? Finds each ``raise`` of the package, and says which of them the tests reach.

    python -m pytest --cov && python -m tests.tools.raise_sites       # from .coverage
    python -m tests.tools.raise_sites --texts [PYTEST'S OPTIONS]      # spoils the text of every error, and runs the tests

With ``--texts`` the tests run on a copy of the package in which every error says a number of its own instead of its sentence.
An error whose number comes up in no failure has a text that no test looks at.
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
MARK = "<text-{}>"  # one word, so that tests that take lines apart leave it whole


class Site(NamedTuple):
    """A ``raise``, or a sentence that one says later."""

    file: Path
    first: int
    last: int
    statement: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(PACKAGE.parent)}:{self.first}: {self.statement}"


def raises(file: Path) -> Iterator[Site]:
    """Yields the raise statements of a file, but for those without words that leave a method to subclasses."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Raise) and (statement := ast.unparse(node)) != "raise NotImplementedError":
            yield Site(file, node.lineno, node.end_lineno or node.lineno, statement)


def reached() -> int:
    """Prints how many raise statements the tests reached, by the coverage that was measured last, and which they did not."""
    from coverage import CoverageData

    data = CoverageData()
    data.read()
    sites = [site for file in sorted(PACKAGE.rglob("*.py")) for site in raises(file)]
    missed = [site for site in sites if not set(range(site.first, site.last + 1)) & set(data.lines(str(site.file)) or ())]
    print(f"{len(sites) - len(missed)} of {len(sites)} raise statements are reached by a test")
    print(*(f"not reached: {site}" for site in missed), sep="\n", end="\n" if missed else "")
    return 1 if missed else 0


class Spoiled(ast.NodeTransformer):
    """Replaces sentences of errors by marks: those in a ``raise`` or a `problem`, and whatever begins with "expected".

    Args:
        file: the file.
        sites: where each sentence that is found goes.
        kept: the numbers of those that are left as they are.
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
    """Writes the package into a folder with the sentences of errors spoiled, but for those kept, and returns all of them."""
    sites: list[Site] = []
    for file, source in sources.items():
        module = Spoiled(file, sites, kept).visit(ast.parse(source))
        (folder / file.relative_to(PACKAGE.parent)).write_text(ast.unparse(module), "utf-8")
    return sites


def seen(folder: Path, options: list[str]) -> set[int]:
    """Runs the tests in a folder, and returns the numbers of the marks that come up in failures."""
    command = [sys.executable, "-m", "pytest", "-vv", "--tb=short", *options]
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        subprocess.run(command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT, check=False)
        said.seek(0)
        return {int(number) for line in said for number in re.findall(MARK.format(r"(\d+)"), line)}


def texts(options: list[str]) -> int:
    """Prints how many sentences of errors a test looks at, and which are not looked at.

    A test ends at its first failure. So those that failed are run again with the sentences whole that were seen, until no more
    come up.
    """
    looked_at: set[int] = set()
    sources = {file: file.read_text("utf-8") for file in sorted(PACKAGE.rglob("*.py"))}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("tests", "docs", "README.md", "pyproject.toml", PACKAGE.name):
            source, copy = PACKAGE.parent / part, folder / part
            shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
        sites, again = spoiled(sources, folder, set()), list[str]()
        while found := seen(folder, [*options, *again]) - looked_at:
            looked_at |= found
            spoiled(sources, folder, looked_at)
            again = ["--last-failed", "--last-failed-no-failures=none"]
    missed = [site for number, site in enumerate(sites) if number not in looked_at]
    print(f"{len(looked_at)} of {len(sites)} texts of errors are looked at by a test")
    print(*(f"not looked at: {site}" for site in missed), sep="\n", end="\n" if missed else "")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(texts(sys.argv[2:]) if sys.argv[1:2] == ["--texts"] else reached())
