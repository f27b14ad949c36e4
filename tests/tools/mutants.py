"""Mutation testing: draws small changes of the package, and runs the tests that cover each.

    python -m tests.tools.mutants --seed 1 --work DIR                          # 60, default tier
    python -m tests.tools.mutants --seed 1 --work DIR --full                   # survivors: --full
    python -m tests.tools.mutants --seed 1 --work DIR --only 3 --tests tests/codec

DIR gets a copy of the checkout, `results.json`, `table.md`, and the logs of all runs. The same
command continues a run that was cut. Each sample, set of tests and checkout needs its own DIR.

A package is drawn, then a module by its number of statements, then a kind of change, then a node.
One run of a tier on a copy with probes finds the tests that execute each node. All tests cover a
node that runs at import. A mutant runs against the tests that cover it, nearest first, and then
against the other tests of its package, because only the first test executes a line that fills a
cache. A failure counts if the test passes without the change.
"""

from __future__ import annotations

import argparse
import ast
import faulthandler
import itertools
import json
import os
import queue
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).parents[2]
PACKAGE = "glft_schema"
NOT_COPIED = (".git", ".ci", "__pycache__", "compiled", ".hypothesis", ".mypy_cache", ".ruff_cache", ".coverage*", "_site")
TIERS = {"default": [], "full": ["--full"]}  # pytest's options
REPORTS, SELECTION = "MUTANTS_REPORTS", "MUTANTS_SELECTION"  # environment variables: files of the hooks below
SELECTED = json.loads(Path(os.environ[SELECTION]).read_text()) if SELECTION in os.environ else {}
PARENT = os.getppid()
SECONDS, FACTOR = 120, 10  # the time limit of a test is SECONDS, and FACTOR times what the test took with probes
MEMORY = 8 << 30  # bytes of data of a process
SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return, ast.Raise, ast.Delete, ast.Break, ast.Continue)
# fmt: off
SWAPS = {  # pattern of the operator, and another
    ast.Lt:       ("<", "<="),   ast.LtE:    ("<=", "<"),        ast.Gt:     (">", ">="),      ast.GtE:    (">=", ">"),
    ast.Eq:       ("==", "!="),  ast.NotEq:  ("!=", "=="),       ast.And:    ("and", "or"),    ast.Or:     ("or", "and"),
    ast.Is:       ("is", "is not"),                              ast.IsNot:  (r"is\s+not", "is"),
    ast.In:       ("in", "not in"),                              ast.NotIn:  (r"not\s+in", "in"),
    ast.Add:      (r"\+", "-"),  ast.Sub:    ("-", "+"),         ast.Mult:   (r"\*", "+"),     ast.Div:    ("/", "*"),
    ast.FloorDiv: ("//", "*"),   ast.Mod:    ("%", "*"),         ast.Pow:    (r"\*\*", "*"),   ast.BitXor: (r"\^", "|"),
    ast.BitAnd:   ("&", "|"),    ast.BitOr:  (r"\|", "&"),       ast.LShift: ("<<", ">>"),     ast.RShift: (">>", "<<"),
}
# fmt: on
PROBE = """
import builtins, sys
from os import O_APPEND, O_CREAT, O_WRONLY, close, environ, getpid, open, write

seen = set()

def hit(number):
    test = environ.get("PYTEST_CURRENT_TEST", "")
    if (number, test) not in seen:
        seen.add((number, test))
        frame = sys._getframe(1)
        while frame:
            if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"].startswith("glft_schema"):
                test = "import"
            frame = frame.f_back
        try:
            file = open(f"FOLDER/{getpid()}", O_WRONLY | O_APPEND | O_CREAT, 0o666)
            write(file, f"{number} {test}\\n".encode())
            close(file)
        except OSError:  # a test of a full disk, or of another user
            pass
    return True

hit._dynamo_marked_constant = True  # torch.compile calls it while tracing
builtins.__hit__ = hit
"""


class Mutant(NamedTuple):
    """A change of a file, relative to the checkout: bytes `start` to `end` become `new`.

    `node` is the span of the expression that changes. It is empty for a statement.
    """

    file: str
    kind: str
    start: int
    end: int
    new: str
    node: tuple[int, int]

    def apply(self, text: bytes) -> bytes:
        return text[: self.start] + self.new.encode() + text[self.end :]


def mutants(file: str, text: bytes) -> Iterator[Mutant]:
    """Yields all mutants of a file. They have the lines of the file."""
    lines = [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]

    def span(node: Any) -> tuple[int, int]:
        return lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset

    def swap(left: ast.expr, op: ast.AST, right: ast.expr, node: tuple[int, int]) -> Iterator[Mutant]:
        if pair := SWAPS.get(type(op)):
            first, last = span(left)[1], span(right)[0]
            between = re.sub("#.*", lambda comment: " " * len(comment[0]), text[first:last].decode("latin-1"))
            found = re.search(pair[0], between)
            yield Mutant(file, "operator", first + found.start(), first + found.end(), pair[1], node)

    for node, in_function in nodes(ast.parse(text)):
        start, end = span(node) if isinstance(node, (ast.expr, ast.stmt)) else (0, 0)
        if isinstance(node, SIMPLE if in_function else ast.Expr):
            yield Mutant(file, "deletion", start, end, "pass" + "\n" * text.count(b"\n", start, end), (start, start))
        if isinstance(node, ast.Compare):
            for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                yield from swap(left, op, right, (start, end))
        elif isinstance(node, ast.BoolOp):
            for left, right in itertools.pairwise(node.values):
                yield from swap(left, node.op, right, (start, end))
        elif isinstance(node, ast.BinOp) and not (is_text(node.left) or is_text(node.right)):  # "name" / Field * "text"
            yield from swap(node.left, node.op, node.right, (start, end))
        elif isinstance(node, ast.AugAssign):
            yield from swap(node.target, node.op, node.value, (start, start))
        elif is_text(node):
            inside = start + re.match(rb"""\w*(\"\"\"|'''|"|')""", text[start:end]).end()
            yield Mutant(file, "constant", inside, inside, "X", (start, end))
        elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            other = not node.value if isinstance(node.value, bool) else node.value + 1
            yield Mutant(file, "constant", start, end, repr(other), (start, end))
        for test in [getattr(node, "test", None), getattr(node, "guard", None), *getattr(node, "ifs", [])]:
            if test and not isinstance(node, ast.Assert):
                start, end = span(test)
                negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
                edit = (start + 3, "") if negated else (end, f"not ({text[start:end].decode()})")
                yield Mutant(file, "condition", start, *edit, (start, end))


def nodes(node: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yields the nodes that may change, and whether each is in a function.

    Left out are imports, docstrings, annotations, patterns, type aliases, names like __all__, and
    the texts of errors, which `raise_sites --texts` covers.
    """
    target = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
    alias = target[:1].isupper() and not target.isupper() and isinstance(node.value, (ast.Subscript, ast.BinOp))
    typing = isinstance(node, ast.Call) and ast.unparse(node.func) in ("TypeVar", "ParamSpec", "cast")
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    error = is_text(node) and re.match("f?['\"]expected ", ast.unparse(node))
    name = re.fullmatch("__.*__|problem", target)
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.pattern)) or alias or typing or docstring or error or name:
        return
    yield node, in_function
    never = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'")
    for field, value in ast.iter_fields(node):
        if isinstance(node, (ast.Raise, ast.JoinedStr)) or field in ("annotation", "returns") or (never and field == "body"):
            continue  # Python 3.11 has wrong positions inside f-strings
        inside = in_function or (field == "body" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from nodes(child, inside)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def drawn(tree: Path, seed: int, count: int) -> list[Mutant]:
    """Draws mutants: a package, a module, a kind of change, a node."""
    packages: dict[str, dict[str, int]] = defaultdict(dict)  # number of statements of each module
    for path in sorted((tree / PACKAGE).rglob("*.py")):
        file = str(path.relative_to(tree))
        if path.name != "__main__.py":
            packages[folder_of(file)][file] = sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(path.read_bytes())))
    rng, found = random.Random(seed), list[Mutant]()
    while len(found) < count:
        modules = packages[rng.choice(sorted(packages))]
        file = rng.choices(list(modules), list(modules.values()))[0]
        text, kinds = (tree / file).read_bytes(), defaultdict[str, list[Mutant]](list)
        for mutant in mutants(file, text):
            kinds[mutant.kind].append(mutant)
        if kinds and (mutant := rng.choice(kinds[rng.choice(sorted(kinds))])) not in found:
            with suppress(SyntaxError):
                found += [mutant] if ast.dump(ast.parse(mutant.apply(text))) != ast.dump(ast.parse(text)) else []
    return found


def folder_of(file: str) -> str:
    """Returns how the names of a module's tests begin."""
    return f"tests/{file.split('/')[1]}/" if file.count("/") > 1 else "tests/test_"


def copied(source: Path, copy: Path) -> Path:
    """Replaces a copy of the checkout."""
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED)))


def add_probes(copy: Path, sample: dict[str, Mutant], hits: Path) -> None:
    """Makes each node of a sample report the tests that execute it, to files in `hits`."""
    inserted = defaultdict[str, list[tuple[int, int, str]]](list)  # offset and order: ends, then the outer node first
    for number, mutant in sample.items():
        start, end = mutant.node
        statement = [(start, 1, f"__hit__({number}); ")]
        expression = [(start, (1 << 40) - end, f"(__hit__({number}) and ("), (end, 0, "))")]
        inserted[mutant.file] += statement if start == end else expression
    for file, words in inserted.items():
        text = (copy / file).read_bytes()
        for offset, _, word in sorted(words, reverse=True):
            text = text[:offset] + word.encode() + text[offset:]
        (copy / file).write_bytes(text)
    (copy / PACKAGE / "_probe.py").write_text(PROBE.replace("FOLDER", str(hits)))
    root = copy / PACKAGE / "__init__.py"
    root.write_text(root.read_text("utf-8").replace("\nfrom ", f"\nimport {PACKAGE}._probe\nfrom ", 1), "utf-8")


class Run(NamedTuple):
    """The seconds of each test, the first test that failed or None, and its error."""

    seconds: dict[str, float]
    failed: str | None
    error: str


def run(copy: Path, log: Path, options: list[str], selection: dict[str, Any] | None = None) -> Run:
    """Runs pytest in a copy: all tests, or a selection until a test fails; see the hooks below."""
    reports = log.with_suffix(".reports")
    reports.write_text("")
    environment = {**os.environ, "PYTHONPATH": str(copy), REPORTS: str(reports)}
    command = [sys.executable, "-m", "pytest", "-p", "tests.tools.mutants", f"--basetemp={copy}-temporary", *options]
    if selection:
        environment[SELECTION] = str(log.with_suffix(".json"))
        Path(environment[SELECTION]).write_text(json.dumps(selection))
        command += ["-x", "-n0", *dict.fromkeys(map(file_of, selection["limits"]))]
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=copy, env=environment, stdout=output, stderr=output, start_new_session=True)
        code = process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # children that outlive their test
    shutil.rmtree(copy / ".hypothesis" / "examples", ignore_errors=True)  # failures of this mutant
    seconds, failures, test = defaultdict[str, float](float), list[tuple[str, str]](), "collection"
    for line in reports.read_text("utf-8").splitlines():
        test, outcome, took, error = json.loads(line)
        seconds[test] += took
        failures += [(test, error)] if outcome == "failed" else []
    if not failures and code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        errors = re.findall("^E  .*", log.read_text("utf-8", "replace"), re.MULTILINE)
        failures.append((test, errors[-1] if errors else f"exit code {code}, or the time limit"))
    return Run(seconds, *(failures or [(None, "")])[0])


def file_of(test: str) -> str:
    return test.partition("::")[0]


class Tier:
    """The tests of a tier, and those that execute each node of a sample. A file keeps both."""

    def __init__(self, name: str, work: Path, sample: dict[str, Mutant], folders: list[str]) -> None:
        self.name, self.work, kept = name, work, work / f"{name}.json"
        if not kept.exists():
            copy, hits = copied(work / "tree", work / "probed"), work / f"hits-{name}"
            shutil.rmtree(hits, ignore_errors=True)
            hits.mkdir()
            hits.chmod(0o777)
            add_probes(copy, sample, hits)
            found = run(copy, work / f"{name}.log", [*TIERS[name], *folders])
            hit = {line for file in hits.iterdir() for line in file.read_text("utf-8").splitlines()}
            kept.write_text(json.dumps([found.seconds, sorted(hit)]))
        self.seconds, hit = json.loads(kept.read_text())
        self.of_files, self.hits = defaultdict[str, float](float), defaultdict[str, set[str]](set)
        for test, seconds in self.seconds.items():
            self.of_files[file_of(test)] += seconds
        for number, _, test in (line.partition(" ") for line in hit):
            self.hits[number].add(test)
        self.alone: dict[str, bool] = {}  # whether a test passes alone, without a change

    def waves(self, number: str, folder: str) -> list[set[str]]:
        """Returns the tests to run, in this order. A fixture executes a node for its whole file."""
        hits = {hit.rpartition(" (")[::2] for hit in self.hits[number]}
        tests, files = {test for test, _ in hits}, {file_of(test) for test, phase in hits if phase == "setup)"}
        covering = {test for test in self.seconds if test in tests or file_of(test) in files}
        near = {test for test in self.seconds if test.startswith(folder)}
        rest = self.seconds.keys() - covering - near if "import" in self.hits[number] else set[str]()
        return [covering & near, covering - near, near - covering, rest]

    def judge(self, copy: Path, number: str, mutant: Mutant) -> dict[str, Any]:
        """Runs a mutant. Returns how many tests cover it and, if a test fails, which and why."""
        waves = self.waves(number, folder_of(mutant.file))
        result = {self.name: sum(map(len, waves if waves[3] else waves[:2]))}
        for wave, tests in enumerate(waves):
            while tests:
                with changed(copy, mutant):
                    found = self.run(copy, f"{number}-{self.name}-{wave}", tests)
                if found.failed is None:
                    break
                if self.passes(copy, found.failed):
                    return {**result, "killed by": f"{self.name}: {found.failed}", "error": found.error}
                tests.remove(found.failed)
        return result

    def passes(self, copy: Path, test: str) -> bool:
        """Returns whether a test passes without a change, or exists only in a mutant."""
        if test not in self.alone:
            self.alone[test] = test not in self.seconds or not self.run(copy, f"alone-{copy.name}", {test}).failed
        return self.alone[test]

    def run(self, copy: Path, log: str, tests: set[str]) -> Run:
        ordered = sorted(tests, key=lambda test: (self.of_files[file_of(test)], test))
        limits = {test: SECONDS + FACTOR * self.seconds[test] for test in ordered}
        return run(copy, self.work / "logs" / f"{log}.log", TIERS[self.name], {"limits": limits, "known": [*self.seconds]})


@contextmanager
def changed(copy: Path, mutant: Mutant) -> Iterator[None]:
    """Changes a file, and restores it. A .pyc of the same size and second would be taken."""
    file = copy / mutant.file
    text = file.read_bytes()
    for content in (mutant.apply(text), text):
        file.write_bytes(content)
        Path(cache_from_source(str(file))).unlink(missing_ok=True)
        if content != text:
            yield


def judged(number: str, mutant: Mutant, result: dict[str, Any], tiers: list[Tier], copies: queue.Queue[Path]) -> dict[str, Any]:
    """Runs a mutant in each tier that has no result, until one kills it. Returns all results."""
    text = (tiers[0].work / "tree" / mutant.file).read_bytes()
    lines = enumerate(zip(text.splitlines(), mutant.apply(text).splitlines(), strict=True), 1)
    line, old, new = next((line, old.decode().strip(), new.decode().strip()) for line, (old, new) in lines if old != new)
    result = {"place": f"{mutant.file}:{line}", "mutation": f"{old} -> {new}", **result}
    copy = copies.get()
    for tier in tiers:
        if tier.name not in result and "killed by" not in result:
            result |= tier.judge(copy, number, mutant)
    copies.put(copy)
    return result


def table(results: dict[str, dict[str, Any]]) -> str:
    """Returns the results in Markdown."""
    rows = [("id", "place", "mutation", "tests", "tests with --full", "killed by"), ("---",) * 6]
    for number, result in sorted(results.items(), key=lambda item: int(item[0])):
        counts = (str(result.get(tier, "")) for tier in TIERS)
        rows.append((number, result["place"], f"`{result['mutation']}`", *counts, result.get("killed by", "survived")))
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    killers = Counter(result.get("killed by", "").partition(":")[0] for result in results.values())
    total = f"{len(results)} mutants: {killers['default']} killed by default, {killers['full']} only with --full"
    return "\n".join([*lines, "", f"{total}, {killers['']} survived", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--work", type=Path, required=True, help="a folder outside the checkout")
    parser.add_argument("--full", action="store_true", help="run the survivors of the default tier with pytest --full")
    parser.add_argument("--workers", type=int, default=2, help="mutants to run at the same time")
    parser.add_argument("--only", nargs="+", metavar="ID", help="mutants of the sample to run")
    parser.add_argument("--tests", nargs="+", default=[], metavar="FOLDER", help="folders of tests to run")
    options = parser.parse_args()
    work: Path = options.work.resolve()
    (work / "logs").mkdir(parents=True, exist_ok=True)
    if not (work / "tree").exists():
        copied(ROOT, work / "copying").rename(work / "tree")
    sample = {str(number): mutant for number, mutant in enumerate(drawn(work / "tree", options.seed, options.count), 1)}
    tiers = [Tier(name, work, sample, options.tests) for name in (TIERS if options.full else ["default"])]
    kept, copies = work / "results.json", queue.Queue[Path]()
    results = json.loads(kept.read_text()) if kept.exists() else {}
    for worker in range(options.workers):
        copies.put(copied(work / "tree", work / f"copy-{worker}"))
    with ThreadPoolExecutor(options.workers) as pool:
        numbers = options.only or sample
        jobs = {pool.submit(judged, n, sample[n], results.get(n, {}), tiers, copies): n for n in numbers}
        for job in as_completed(jobs):
            results[jobs[job]] = job.result()
            kept.write_text(json.dumps(results, indent=1))
            print(table({jobs[job]: job.result()}).splitlines()[2], flush=True)
    (work / "table.md").write_text(table(results))
    print(table(results))


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Limits memory, and the time until the first test. Hypothesis does not shrink what fails."""
    if SELECTED:
        phases = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target)
        settings.register_profile("mutants", settings.default, phases=phases)
        settings.load_profile("mutants")
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.RLIM_INFINITY))
        faulthandler.dump_traceback_later(SECONDS, exit=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps the tests of the selection, and tests of new names, which a mutant may have given."""
    if SELECTED:
        left = {*SELECTED["known"]} - SELECTED["limits"].keys()
        items[:] = [item for item in items if item.nodeid not in left]


def pytest_runtest_logstart(nodeid: str) -> None:
    """Limits the time of the test, and ends if the tool has ended."""
    if os.getppid() != PARENT:
        os._exit(1)
    if SELECTED:
        append(nodeid, "started")
        faulthandler.dump_traceback_later(SELECTED["limits"].get(nodeid, SECONDS), exit=True)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    crash = getattr(report.longrepr, "reprcrash", None)
    append(report.nodeid, report.outcome, report.duration, str(crash.message if crash else report.longrepr)[:500])


def append(test: str, outcome: str, seconds: float = 0.0, error: str = "") -> None:
    """Adds a line to the reports; in the process that distributes tests if there are several."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ[REPORTS], "a", encoding="utf-8") as reports:
            reports.write(json.dumps([test, outcome, seconds, error]) + "\n")


if __name__ == "__main__":
    main()
