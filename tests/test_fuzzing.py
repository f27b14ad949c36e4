"""The search holds the package to its properties: it finds none broken in it, and a planted bug at once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from glft_schema import Container, FormatError, fuzzing
from glft_schema.cli.fuzz import fuzz as verb
from glft_schema.container import findings
from glft_schema.corpora import MANIFEST, read_corpus, write_corpus
from glft_schema.errors import SchemeError
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.fuzzing import CORRUPTED, DAMAGED, GIVEN, VALID, Case, PropertyError, bounded, check, corpus, fuzz
from glft_schema.strategies import Corruption, rule_ids
from tests.golden import golden

ROOT = Path(__file__).parents[1]
app = typer.Typer()
app.command()(verb)


def run(*arguments: str) -> tuple[int, str]:
    """Runs the verb, and returns its exit code and what it printed."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize("format", [GLFT, GGUF], ids=lambda declared: declared.name)
def test_no_property_is_broken(format: object) -> None:
    progress: list[tuple[str, float]] = []
    fuzzed = fuzz(format, 60, progress=lambda text, done: progress.append((text, done)))
    assert fuzzed.failure is None
    assert fuzzed.counts.total() - fuzzed.counts["read all the same"] == 60
    assert {kind for kind, count in fuzzed.counts.items() if count} >= {VALID, DAMAGED, CORRUPTED}
    assert progress[-1][1] == 1.0
    assert [done for _, done in progress] == sorted(done for _, done in progress)
    assert 0 < fuzzed.memory < fuzzing.MEMORY[0]


def test_the_same_seed_gives_the_same_files() -> None:
    def files(seed: int) -> list[str]:
        made: list[str] = []
        fuzzing.drawn(fuzzing.cases(GGUF), 25, seed, lambda case: made.append(case.sha256))
        return made

    assert files(1) == files(1)
    assert files(1) != files(2)


def test_a_file_that_is_damaged() -> None:
    fuzzed = fuzz(golden("loose_layout"), 100, given=[Case(golden("loose_layout"), GIVEN)])
    assert fuzzed.failure is None
    assert set(fuzzed.counts) >= {DAMAGED, CORRUPTED, GIVEN}
    fuzzed = fuzz(b"GGUF\3\0\0\0 and no more", 30)
    assert (fuzzed.failure, fuzzed.counts[DAMAGED], fuzzed.counts[CORRUPTED]) == (None, 30, 0)


# What a broken property looks like


class Reader:
    """A reader in place of ours, with bugs."""

    def __init__(self, parse: object = Container.parse, build: object = Container.build) -> None:
        self.parse = parse
        self.build = build


def refuses(stored: bytes) -> None:
    raise FormatError("expected nothing", "header -> magic", 0)


def crashes(stored: bytes) -> None:
    raise IndexError("out of\x1b range")


def names_nothing(stored: bytes) -> None:
    raise FormatError("expected something else")


ACCEPTED = Corruption(golden("four_types"), "nothing", "header -> version", 4, "glft-version", FormatError, "glft-version")
FOUR_TYPES = Case(golden("four_types"), VALID)
BROKEN = {
    "accepted": (
        Reader(parse=refuses),
        FOUR_TYPES,
        "expected a valid file to be read, found header -> magic",
    ),
    "escaped": (
        Reader(parse=crashes),
        Case(b"", DAMAGED),
        r"expected a FormatError or none, found IndexError: out of\\x1b range",
    ),
    "escaped, too": (Reader(parse=names_nothing), Case(b"", DAMAGED), "expected a field and a byte of the file, found"),
    "rebuilt": (
        Reader(build=lambda file: golden("four_types")[:-2]),
        FOUR_TYPES,
        r"expected the same \d+ bytes, found \d+, other ones from byte \d+ on",
    ),
    "rebuilt, too": (
        Reader(build=refuses),
        FOUR_TYPES,
        "expected the same bytes, found header -> magic",
    ),
    "reported": (
        Reader(),
        Case(golden("four_types"), CORRUPTED, corruption=ACCEPTED),
        "expected FormatError of glft-version at header -> version, found a file that is read",
    ),
    "accepted, too": (Reader(), Case(b"GGUF\2\0\0\0" + bytes(16), VALID, ("spec",)), "found gguf-architecture at metadata"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_said_of_a_broken_property(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, given, message = BROKEN[case]
    monkeypatch.setattr(fuzzing, "Container", reader)
    with pytest.raises(PropertyError, match=message) as caught:
        check(given)
    assert caught.value.name == case.partition(",")[0]
    assert str(caught.value).startswith(f"{caught.value.name}: expected ")


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded(lambda: None, 0)
    with pytest.raises(PropertyError, match=r"bounded: expected at most 16,777,216 bytes of memory for 0 bytes, found 33,\d"):
        bounded(lambda: bytes(1 << 25) and None, 0)
    bounded(lambda: bytes(1 << 25) and None, 1 << 17)
    monkeypatch.setattr(fuzzing, "SECONDS", (0.0, 0.0))
    with pytest.raises(PropertyError, match=r"bounded: expected at most 0.0 s for 9 bytes, found 0.\d s"):
        bounded(lambda: sum(range(10_000)) and None, 9)


# The verb


def test_the_verb_on_a_format_and_on_a_file(tmp_path: Path) -> None:
    code, text = run("glft", "--examples", "30", "--seed", "7", "--out", tmp_path)
    assert code == 0
    first, second = text.splitlines()
    assert re.fullmatch(r"glft: no failure in .*\d+ valid.*; seed 7", first)
    assert re.fullmatch(r"at most \d+\.\d\d s and [\d,]+ bytes of memory for a file", second)
    (tmp_path / "a.gguf-lite").write_bytes(golden("four_types"))
    code, text = run(tmp_path / "a.gguf-lite", "--examples", "20")
    assert (code, "1 given" in text, "damaged" in text) == (0, True, True)
    assert "1 given; seed 0" in run(tmp_path / "a.gguf-lite", "--examples", "0")[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf-lite"]


def test_bad_requests(tmp_path: Path) -> None:
    code, text = run("ggml")
    assert (code, text) == (2, "glft: expected GLFT or GGUF, found 'ggml', which is no file\n")
    (tmp_path / "x.json").write_text('{"files": [{}]}', "utf-8")
    code, text = run(tmp_path / "x.json")
    assert code == 2
    assert "expected a manifest of files to try, found" in text


def test_a_corpus_says_what_has_to_be_reported(tmp_path: Path) -> None:
    """Read by nothing but its page: JSON, hashes, `Container.parse` and `findings`."""
    code, text = run("gguf", "--examples", "12", "--corpus", tmp_path / "corpus")
    assert code == 0
    manifest = json.loads((tmp_path / "corpus" / MANIFEST).read_text("utf-8"))
    assert f"{len(manifest['files'])} files" in text
    assert (manifest["format"], manifest["seed"]) == ("GGUF", 0)
    kinds: Counter[str] = Counter()
    for entry in manifest["files"]:
        stored = (tmp_path / "corpus" / entry["file"]).read_bytes()
        assert (hashlib.sha256(stored).hexdigest(), len(stored)) == (entry["sha256"], entry["bytes"])
        kinds[entry["kind"]] += 1
        if entry["kind"] == VALID:
            assert not entry["rules"] or findings(Container.parse(stored), entry["rules"]) == []
        elif entry["error"]:
            with pytest.raises(FormatError) as caught:
                Container.parse(stored)
            assert entry["within"] or (caught.value.path, caught.value.rule) == (entry["field"], entry["reported"])
        else:
            found = [[finding.rule, finding.path] for finding in findings(Container.parse(stored), entry["sets"])]
            assert sorted(found) == sorted(entry["findings"])
    assert kinds[VALID] >= 4
    broken = {entry["rule"] for entry in manifest["files"] if entry["kind"] == CORRUPTED}
    assert set(rule_ids("gguf")) - broken <= {"gguf-length"}
    code, text = run(tmp_path / "corpus" / MANIFEST)
    assert (code, f"{kinds[VALID]} valid" in text, f"{kinds[CORRUPTED]} corrupted" in text) == (0, True, True)


def test_corpora_come_back(tmp_path: Path) -> None:
    cases = [*corpus(golden("four_types"), 8), Case(b"GGUF", DAMAGED)]
    manifest = write_corpus(cases, tmp_path, GLFT)
    assert read_corpus(manifest) == cases
    assert sum(case.kind == VALID for case in cases) == 1
    (tmp_path / json.loads(manifest.read_text("utf-8"))["files"][0]["file"]).write_bytes(b"another")
    with pytest.raises(SchemeError, match=r"expected 'valid-.*\.glft' with SHA-256 .*, found"):
        read_corpus(manifest)


# Bugs planted into a copy of the package: (file, what stands there, what it becomes, the property, bytes of the smallest file)
BUGS = {
    "empty texts crash": (
        "bulk.py",
        "        if nbytes > (left := bytes_left(stream)):",
        "        10 // nbytes\n        if nbytes > (left := bytes_left(stream)):",
        "escaped",
        100,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_and_shrunk(bug: str, tmp_path: Path) -> None:
    place, before, after, name, largest = BUGS[bug]
    package = tmp_path / "copy" / "glft_schema"
    shutil.copytree(ROOT / "glft_schema", package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (package / place).read_text("utf-8")
    assert text.count(before) == 1
    (package / place).write_text(text.replace(before, after), "utf-8")

    def glft_fuzz(package: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
        program = "import typer; from glft_schema.cli.fuzz import fuzz; typer.run(fuzz)"
        command = [sys.executable, "-c", program, *map(str, arguments)]
        env = {**os.environ, "PYTHONPATH": str(package)}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    done = glft_fuzz(package.parent, "gguf", "--examples", 300, "--out", "found")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(f"failed: {name}: expected ")
    (again,) = re.findall(r"^  glft fuzz (found/fuzz-[0-9a-f]{12}\.json)$", done.stdout, re.MULTILINE)
    manifest = json.loads((tmp_path / again).read_text("utf-8"))
    (entry,) = manifest["files"]
    assert entry["bytes"] <= largest
    assert manifest["problem"].startswith(name)
    assert manifest["found_by"] == "glft fuzz gguf --examples 300 --seed 0"
    assert (tmp_path / "found" / entry["file"]).stat().st_size == entry["bytes"]
    assert glft_fuzz(package.parent, again, "--out", "again").returncode == 1
    assert glft_fuzz(ROOT, again).returncode == 0


def test_a_rule_that_a_reader_does_not_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Corruptions come from the declaration as it is; a reader that does not look at a rule is caught."""
    from glft_schema.rules import Check

    parsed = Check._parse

    def forgetful(self: Check, stream: object, context: object, path: str) -> None:
        if self.id != "gguf-little-endian":
            parsed(self, stream, context, path)

    monkeypatch.setattr(Check, "_parse", forgetful)
    failure = fuzz(GGUF, 300).failure
    assert failure is not None
    assert failure.error.name == "reported"
    assert failure.case.corruption is not None
    assert failure.case.corruption.rule == "gguf-little-endian"
    assert len(failure.case.stored) < 100


def test_the_pages_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's Python runs, its tests hold, and what it says is printed is; its table has the bounds as they are."""
    page = (ROOT / "docs" / "fuzzing.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for example in examples:
        exec(compile(example, "fuzzing.md", "exec"), names)
    tests = [test for name, test in names.items() if name.startswith("test_")]
    assert len(tests) == 4
    for test in tests:
        test()  # type: ignore[operator]
    expected = [line.partition("  # ")[2] for example in examples for line in example.splitlines() if line.startswith("print(")]
    assert capsys.readouterr().out.splitlines() == [text.strip() for text in expected]
    seconds, memory = fuzzing.SECONDS, fuzzing.MEMORY
    assert f"{seconds[0]:g} s and {seconds[1] * 1e6:g} us a byte" in page
    assert f"{memory[0] >> 20} MiB and {memory[1]} times the file's size" in page
    for name in ("escaped", "rebuilt", "bounded", "accepted", "reported"):
        assert f"| {name} |" in page
        assert f"    {name} " in str(fuzzing.__doc__)
    verbs = re.findall(r"^glft fuzz (.*?)(?:\s+#.*)?$", page, re.MULTILINE)
    (tmp_path / "model.gguf").write_bytes(golden_gguf())
    for arguments in verbs:
        code, text = run(*re.sub(r"--examples \d+", "--examples 4", arguments).split())
        assert code == 0, text
    assert run("corpus/manifest.json")[0] == 0


def golden_gguf() -> bytes:
    return Container.build({"format": "GGUF", "metadata": {"general.architecture": "toy"}})
