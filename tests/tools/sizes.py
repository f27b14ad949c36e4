"""The size of the package, as docs/background/design.md states it.

python -m tests.tools.sizes [FOLDER]
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2] / "glft_schema"
SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def docstring_lines(tree: ast.AST) -> set[int]:
    """Returns the numbers of the lines that docstrings take."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | Definition) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def import_lines(tree: ast.Module) -> set[int]:
    """Returns the numbers of the lines of imports, and of the ``__all__`` that repeat names."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        listed = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if listed or isinstance(node, ast.Import | ast.ImportFrom):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


class Size(NamedTuple):
    """The code of modules, without comments, docstrings, imports and ``__all__``."""

    modules: int
    lines: int
    tokens: int


def size_of(text: str, tree: ast.Module) -> Size:
    """Returns the size of a module."""
    skipped = docstring_lines(tree) | import_lines(tree)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    kept = [token for token in tokens if token.type not in SKIPPED and token.start[0] not in skipped]
    lines = {line for token in kept for line in range(token.start[0], token.end[0] + 1)}
    return Size(1, len(lines), len(kept))


def sizes_of_packages(package: Path) -> dict[str, Size]:
    """Returns the sizes of the packages in a package, the root's own modules as `root`, and their
    sum as `total`."""
    sizes: defaultdict[str, Size] = defaultdict(lambda: Size(0, 0, 0))
    for where, tree in parsed(package).items():
        size = size_of((package / where).read_text("utf-8"), tree)
        for name in (f"{where.partition('/')[0]}/" if "/" in where else "root", "total"):
            sizes[name] = Size(*map(sum, zip(sizes[name], size, strict=True)))
    return {name: sizes[name] for name in sorted(sizes, key=lambda name: (name == "total", name))}


@cache
def parsed(package: Path) -> dict[str, ast.Module]:
    """Returns the modules of a package, by their paths in it."""
    return {path.relative_to(package).as_posix(): ast.parse(path.read_text("utf-8")) for path in sorted(package.rglob("*.py"))}


if __name__ == "__main__":
    print("| package | modules | lines | tokens |", "| --- | --- | --- | --- |", sep="\n")
    for name, size in sizes_of_packages(Path(sys.argv[1]) if sys.argv[1:] else PACKAGE).items():
        print(f"| {name} | {size.modules} | {size.lines:,} | {size.tokens:,} |")
