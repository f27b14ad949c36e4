"""Mutation testing: draws small changes of the package, and runs the tests of the changed part.

    python -m tests.tools.mutants --seed 1 --work DIR                # 60, by the package's tests
    python -m tests.tools.mutants --seed 1 --work DIR --everywhere   # survivors, by all tests

DIR gets a copy of the checkout, the logs of all runs, and the results. The same command continues a
run that was cut; each sample and checkout needs its own DIR. A package is drawn, then a module by
its number of statements, then a kind of change, then a node.
"""

from __future__ import annotations

import argparse
import ast
import json
import operator
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = "glft_schema"
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".ci", "__pycache__", "compiled", ".hypothesis", ".mypy_cache", ".ruff_cache", ".coverage*", "_site"
)
MEMORY = 8 << 30  # bytes of data of a process
SECONDS, FACTOR = 120, 10  # the time limit of a run is SECONDS, and FACTOR times what it takes without a change
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return, ast.Raise, ast.Delete, ast.Break, ast.Continue)
PAIRS = """
Lt LtE, LtE Lt, Gt GtE, GtE Gt, Eq NotEq, NotEq Eq, Is IsNot, IsNot Is, In NotIn, NotIn In, And Or, Or And,
Add Sub, Sub Add, Mult Add, Div Mult, FloorDiv Mult, Mod Mult, Pow Mult, BitXor BitOr, BitAnd BitOr, BitOr BitAnd,
LShift RShift, RShift LShift
"""
SWAPS = {getattr(ast, old): getattr(ast, new) for old, new in map(str.split, PAIRS.split(","))}
OTHERS: dict[type, Callable[[Any], object]] = {
    bool: operator.not_,
    int: lambda value: value + 1,
    float: lambda value: value + 1,
    str: lambda value: f"X{value}",
    bytes: lambda value: b"X" + value,
}


class Mutant(NamedTuple):
    """A change of a file of the checkout: the bytes from `start` to `end` become `new`."""

    file: str
    kind: str
    start: int
    end: int
    new: str

    def apply(self, text: bytes) -> bytes:
        return text[: self.start] + self.new.encode() + text[self.end :]


def changes(node: ast.AST, in_function: bool) -> Iterator[tuple[str, ast.expr | ast.stmt, ast.AST]]:
    """Yields the kind of each change of a node, the part that changes, and what replaces it."""
    match node:
        case ast.Compare(left, ops, comparators):
            for i, op in enumerate(ops):
                yield "operator", node, ast.Compare(left, [*ops[:i], SWAPS[type(op)](), *ops[i + 1 :]], comparators)
        case ast.BoolOp(op, values):
            yield "operator", node, ast.BoolOp(SWAPS[type(op)](), values)
        case ast.BinOp(left, op, right) if type(op) in SWAPS and not (is_text(left) or is_text(right)):  # "name" / Field
            yield "operator", node, ast.BinOp(left, SWAPS[type(op)](), right)
        case ast.Constant(value) if type(value) in OTHERS:
            yield "constant", node, ast.Constant(OTHERS[type(value)](value))
    if isinstance(node, SIMPLE) and in_function:
        yield "deletion", node, ast.Pass()
    tests = [getattr(node, "test", None), getattr(node, "guard", None), *getattr(node, "ifs", ())]
    for test in filter(None, tests if not isinstance(node, ast.Assert) else ()):
        yield "condition", test, ast.UnaryOp(ast.Not(), test)


def nodes(node: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yields the nodes that may change, and whether each is in a function.

    Left out are imports, docstrings, annotations, patterns, names like __all__, texts of errors,
    and f-strings, in which Python 3.11 has wrong positions.
    """
    match node:
        case ast.Import() | ast.ImportFrom() | ast.pattern() | ast.JoinedStr() | ast.Expr(ast.Constant()):
            return
        case ast.Constant(str(text)) if text.startswith("expected "):
            return
        case ast.Assign([ast.Name(name)]) if name.startswith("__") or name == "problem":
            return
        case ast.If(ast.Name("TYPE_CHECKING")) | ast.If(ast.Compare(ast.Name("__name__"))):
            return
    yield node, in_function
    for field, value in ast.iter_fields(node):
        if isinstance(node, ast.Raise) or field in ("annotation", "returns"):
            continue
        inside = in_function or (field == "body" and isinstance(node, FUNCTIONS))
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from nodes(child, inside)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def mutants(file: str, text: bytes) -> Iterator[Mutant]:
    """Yields all mutants of a file."""
    lines = text.splitlines(keepends=True)

    def offset(line: int, column: int) -> int:
        return sum(map(len, lines[: line - 1])) + column

    for node, in_function in nodes(ast.parse(text)):
        for kind, old, made in changes(node, in_function):
            assert old.end_lineno
            assert old.end_col_offset is not None
            new = ast.unparse(made) if kind == "deletion" else f"({ast.unparse(made)})"
            span = offset(old.lineno, old.col_offset), offset(old.end_lineno, old.end_col_offset)
            yield Mutant(file, kind, *span, new)


def drawn(tree: Path, seed: int, count: int) -> list[Mutant]:
    """Draws mutants: a package, a module, a kind of change, a node."""
    packages: dict[str, dict[str, int]] = defaultdict(dict)  # number of statements of each module
    for path in sorted((tree / PACKAGE).rglob("*.py")):
        parts = path.relative_to(tree).parts
        if path.name != "__main__.py":
            statements = sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(path.read_bytes())))
            packages["/".join(parts[1:-1][:1])]["/".join(parts)] = statements
    rng, found = random.Random(seed), list[Mutant]()
    while len(found) < count:
        modules = packages[rng.choice(sorted(packages))]
        file = rng.choices(list(modules), list(modules.values()))[0]
        kinds = defaultdict[str, list[Mutant]](list)
        for mutant in mutants(file, (tree / file).read_bytes()):
            kinds[mutant.kind].append(mutant)
        if kinds and (mutant := rng.choice(kinds[rng.choice(sorted(kinds))])) not in found:
            found.append(mutant)
    return found


def tests_of(tree: Path, file: str) -> list[str]:
    """Returns the folder of a module's tests; the files at the top for a module of the root, all
    tests if its package has no folder."""
    package = file.split("/")[1]
    if package.endswith(".py"):
        return sorted(str(path.relative_to(tree)) for path in (tree / "tests").glob("test_*.py"))
    return [f"tests/{package}"] if (tree / "tests" / package).exists() else ["tests"]


def run(tree: Path, tests: list[str], log: Path, limit: float | None = None) -> tuple[str, float]:
    """Runs tests until one fails; returns the failure, or an empty text, and the seconds."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", *tests]
    with log.open("w") as output:
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=output, stderr=output, start_new_session=True, preexec_fn=limit_memory
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
    failures = [line for line in log.read_text("utf-8", "replace").splitlines() if line.startswith(("FAILED", "ERROR"))]
    failure = "" if code == 0 else failures[0] if failures else "the time limit" if code is None else f"exit code {code}"
    return failure, time.perf_counter() - start


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def judged(tree: Path, mutant: Mutant, tests: list[str], log: Path, limit: float) -> str:
    """Runs tests on a mutant; returns the failure, or an empty text."""
    file = tree / mutant.file
    text = file.read_bytes()
    try:
        file.write_bytes(mutant.apply(text))
        Path(cache_from_source(str(file))).unlink(missing_ok=True)  # it may have the same size and second
        return run(tree, tests, log, limit)[0]
    finally:
        file.write_bytes(text)
        Path(cache_from_source(str(file))).unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--work", type=Path, required=True, help="a folder outside the checkout")
    parser.add_argument("--everywhere", action="store_true", help="run the survivors against all tests")
    options = parser.parse_args()
    work: Path = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    tree, kept = work / "tree", work / "results.json"
    if not tree.exists():
        shutil.copytree(ROOT, tree, symlinks=True, ignore=NOT_COPIED)
    known = json.loads(kept.read_text()) if kept.exists() else {"seconds": {}, "results": {}}
    seconds, results = known["seconds"], known["results"]
    for number, mutant in enumerate(drawn(tree, options.seed, options.count), 1):
        tests = ["tests"] if options.everywhere else tests_of(tree, mutant.file)
        result = results.setdefault(str(number), {"killed by": ""})
        name = " ".join(tests)
        if result["killed by"] or name in result:
            continue
        if name not in seconds:
            failure, seconds[name] = run(tree, tests, work / "unchanged.log")
            assert not failure, f"without a change: {failure}"
        result["killed by"] = judged(tree, mutant, tests, work / f"{number}.log", SECONDS + FACTOR * seconds[name])
        result[name] = bool(result["killed by"])
        kept.write_text(json.dumps(known, indent=1))
        text = (tree / mutant.file).read_bytes()
        line, old = text.count(b"\n", 0, mutant.start) + 1, text[mutant.start : mutant.end].decode()
        print(f"{number} {mutant.file}:{line}: {old} -> {mutant.new}: {result['killed by'] or 'survived'}", flush=True)
    print(f"{len(results)} mutants, {sum(not result['killed by'] for result in results.values())} survived")


if __name__ == "__main__":
    main()
