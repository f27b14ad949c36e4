"""Counts what the package consists of: ``python -m tests.tools.sizes [--list] [FOLDER]``.

The figures are those of the tables in docs/background/design.md: of the whole package, then of each
package in it. ``--list`` also prints what was counted: the class names that are defined twice, the
long functions, the changing globals and the caches.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2] / "glft_schema"
LONGEST = 46  # lines of code of a function, without its docstring, comments and blank lines
CACHES = ("cache", "lru_cache", "cached_property")
SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
CHANGING = ("append", "add", "update", "setdefault", "pop", "popitem", "clear", "extend", "discard", "remove", "register")
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


def code_tokens(text: str, tree: ast.Module) -> list[tokenize.TokenInfo]:
    """Returns the tokens of a module's code."""
    skipped = docstring_lines(tree) | import_lines(tree)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token for token in tokens if token.type not in SKIPPED and token.start[0] not in skipped]


def lines_of(tokens: list[tokenize.TokenInfo]) -> set[int]:
    """Returns the numbers of the lines that tokens take."""
    return {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}


def sizes_of_packages(package: Path) -> dict[str, Size]:
    """Returns the sizes of the packages in a package, the root's own modules as `root`, and their
    sum as `total`."""
    sizes: defaultdict[str, Size] = defaultdict(lambda: Size(0, 0, 0))
    for where, tree in parsed(package).items():
        tokens = code_tokens((package / where).read_text("utf-8"), tree)
        name = f"{where.partition('/')[0]}/" if "/" in where else "root"
        for each in (name, "total"):
            modules, lines, count = sizes[each]
            sizes[each] = Size(modules + 1, lines + len(lines_of(tokens)), count + len(tokens))
    return {name: sizes[name] for name in sorted(sizes, key=lambda name: (name == "total", name))}


def decorators(node: Definition) -> Iterator[str]:
    """Yields the last names of a definition's decorators: ``cache`` of ``@functools.cache``."""
    for each in node.decorator_list:
        called = each.func if isinstance(each, ast.Call) else each
        yield called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def changed_globals(tree: ast.Module) -> set[str]:
    """Returns the names at the module's level that a function of the module changes."""
    named: set[str] = set()
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                named.add(name)
    changed: set[str] = set()
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        local = {each.arg for each in ast.walk(function) if isinstance(each, ast.arg)}
        for node in ast.walk(function):
            match node:
                case ast.Global(names=names):
                    changed.update(names)
                case ast.Name(id=name, ctx=ast.Store()):
                    local.add(name)
        for node in ast.walk(function):
            match node:
                case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()) if name not in local:
                    changed.add(name)
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in CHANGING:
                    changed |= {name} - local
    return changed & named


@cache
def parsed(package: Path) -> dict[str, ast.Module]:
    """Returns the modules of a package, by their paths in it."""
    return {path.relative_to(package).as_posix(): ast.parse(path.read_text("utf-8")) for path in sorted(package.rglob("*.py"))}


def listed(modules: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Returns the classes defined twice, and the state, caches and generated code."""
    classes: defaultdict[str, list[str]] = defaultdict(list)
    state: list[str] = []
    caches: list[str] = []
    variables: list[str] = []
    executed: list[str] = []
    for where, tree in modules.items():
        state += [f"{where}: {name}" for name in sorted(changed_globals(tree))]
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(where)
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) if set(decorators(node)) & {*CACHES}:
                    caches.append(f"{where}: {name}")
                case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.Call() as value):
                    if any(isinstance(each, ast.Name) and each.id in CACHES for each in ast.walk(value)):
                        caches.append(f"{where}: {ast.unparse(target)}")
                case ast.Call(func=ast.Name(id="ContextVar")):
                    variables.append(where)
                case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                    executed.append(f"{where}: {name}")
    return {
        "class names defined twice": [f"{name}: {', '.join(files)}" for name, files in sorted(classes.items()) if files[1:]],
        "globals that functions change": state,
        "caches": caches,
        "context variables": variables,
        "`eval` and `exec`": executed,
    }


def count(package: Path) -> dict[str, int | list[str]]:
    """Returns the figures of a package: numbers, or lists of what was counted."""
    counted = code = docstrings = imports = blank = 0
    functions: list[str] = []
    modules = parsed(package)
    for where, tree in modules.items():
        text = (package / where).read_text("utf-8")
        docs, imported = docstring_lines(tree), import_lines(tree)
        tokens = code_tokens(text, tree)
        plain = lines_of(tokens)
        code += len(plain)
        counted += len(tokens)
        docstrings += len(docs)
        imports += len(imported)
        blank += sum(not line.strip() for line in text.splitlines())
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            lines = len(plain & set(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
            if lines > LONGEST:
                functions.append(f"{where}: {node.name} {lines}")
    return {
        "tokens of code": counted,
        "lines of code": code,
        "lines of docstrings": docstrings,
        "lines of imports and `__all__`": imports,
        "blank lines": blank,
        "modules": len(modules),
        "packages": len(list(package.rglob("__init__.py"))),
        "names of `glft_schema`": public(modules["__init__.py"]),
        "names of `glft_schema.codec`": public(modules["codec/__init__.py"]),
        f"functions above {LONGEST} lines of code": functions,
        **listed(modules),
    }


def public(tree: ast.Module) -> int:
    """Returns the number of names in a module's ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return len(ast.literal_eval(node.value))
    return 0


if __name__ == "__main__":
    folders = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-")]
    folder = folders[0] if folders else PACKAGE
    for what, figure in count(folder).items():
        print(f"| {what} | {len(figure) if isinstance(figure, list) else f'{figure:,}'} |")
        if "--list" in sys.argv and isinstance(figure, list):
            print(*(f"    {each}" for each in figure), sep="\n")
    print("", "| package | modules | lines | tokens |", "| --- | --- | --- | --- |", sep="\n")
    for name, size in sizes_of_packages(folder).items():
        print(f"| {name} | {size.modules} | {size.lines:,} | {size.tokens:,} |")
