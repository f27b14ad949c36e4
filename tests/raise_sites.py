"""Are the ways to fail tested? Finds each ``raise`` of the package, and says which of them the tests reach.

    python -m pytest --cov && python -m tests.raise_sites       # from .coverage
    python -m tests.raise_sites --texts [PYTEST'S OPTIONS]      # spoils the text of every error, and runs the tests

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

PACKAGE = Path(__file__).parents[1] / "glft_schema"
MARK = "<text {}>"


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
    return 0


class Spoiled(ast.NodeTransformer):
    """Replaces the sentences of errors by marks: what is said in a ``raise``, and whatever begins with "expected"."""

    def __init__(self, file: Path, sites: list[Site]) -> None:
        self.file = file
        self.sites = sites
        self.raising = False

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        self.raising = True
        self.generic_visit(node)
        self.raising = False
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        first = node.values[0]
        if not isinstance(first, ast.Constant) or not self.is_sentence(str(first.value)):
            return node
        values = [part for part in node.values if isinstance(part, ast.FormattedValue)]
        return ast.copy_location(ast.JoinedStr([self.mark(node), *values]), node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return self.mark(node) if isinstance(node.value, str) and self.is_sentence(node.value) else node

    def is_sentence(self, text: str) -> bool:
        return text.startswith("expected ") or (self.raising and " " in text.strip())

    def mark(self, node: ast.expr) -> ast.Constant:
        self.sites.append(Site(self.file, node.lineno, node.end_lineno or node.lineno, ast.unparse(node)))
        return ast.copy_location(ast.Constant(MARK.format(len(self.sites) - 1)), node)


def texts(options: list[str]) -> int:
    """Prints how many sentences of errors a test looks at, and which are not looked at."""
    sites: list[Site] = []
    with tempfile.TemporaryDirectory() as folder:
        root = PACKAGE.parent
        for part in ("tests", "docs", "README.md", "pyproject.toml"):
            source, copy = root / part, Path(folder, part)
            shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
        shutil.copytree(PACKAGE, Path(folder, PACKAGE.name))
        for file in sorted(PACKAGE.rglob("*.py")):
            spoiled = Spoiled(file, sites).visit(ast.parse(file.read_text("utf-8")))
            Path(folder, file.relative_to(root)).write_text(ast.unparse(spoiled), "utf-8")
        command = [sys.executable, "-m", "pytest", "-vv", "--tb=short", *options]
        environment = {**os.environ, "PYTHONPATH": folder}
        with tempfile.TemporaryFile("w+") as said:
            subprocess.run(command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT, check=False)
            said.seek(0)
            seen = {int(number) for line in said for number in re.findall(MARK.format(r"(\d+)"), line)}
    missed = [site for number, site in enumerate(sites) if number not in seen]
    print(f"{len(seen)} of {len(sites)} texts of errors are looked at by a test")
    print(*(f"not looked at: {site}" for site in missed), sep="\n", end="\n" if missed else "")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(texts(sys.argv[2:]) if sys.argv[1:2] == ["--texts"] else reached())
