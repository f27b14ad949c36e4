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
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from hypothesis import settings
from typer.testing import CliRunner

from glft_schema import Container, FormatError, TensorError
from glft_schema.cli.fuzz import fuzz as verb
from glft_schema.errors import OptionError
from glft_schema.files.parsing import check_rules
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.tensors.tensor import Tensor
from glft_schema.testing import fuzzing
from glft_schema.testing.corpora import MANIFEST, read_corpus, write_corpus
from glft_schema.testing.fuzzing import CORRUPTED, DAMAGED, GIVEN, VALID, Case, PropertyError, bounded, check, corpus, fuzz
from glft_schema.testing.strategies import Corruption, rule_ids
from tests.golden import golden

ROOT = Path(__file__).parents[2]
app = typer.Typer()
app.command()(verb)


def run(*arguments: str) -> tuple[int, str]:
    """Runs the verb, and returns its exit code and what it printed."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("format", [GLFT, GGUF], ids=lambda declared: declared.name)
def test_no_property_is_broken(format: object) -> None:
    examples, progress = 6 * settings().max_examples // 100, list[tuple[str, float]]()
    fuzzed = fuzz(format, examples, progress=lambda text, done: progress.append((text, done)))
    assert fuzzed.failure is None
    assert fuzzed.counts.total() == examples
    assert examples / 2 < len(fuzzed.hashes) <= examples
    assert 0 <= fuzzed.read.total() < fuzzed.counts[DAMAGED] + fuzzed.counts[CORRUPTED]
    assert {kind for kind, count in fuzzed.counts.items() if count} >= {VALID, DAMAGED, CORRUPTED}
    assert progress[-1][1] == 1.0
    assert [done for _, done in progress] == sorted(done for _, done in progress)
    assert 0 < fuzzed.memory < fuzzing.MEMORY[0]


@pytest.mark.slow
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
        r"expected the same \d+ bytes, found \d+ that differ from byte \d+ on",
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


def test_numbers_that_cannot_be_had_break_a_property(monkeypatch: pytest.MonkeyPatch) -> None:
    def dequantize(tensor: Tensor) -> None:
        raise TensorError("no numbers", tensor.name)

    monkeypatch.setattr(Tensor, "dequantize", dequantize)
    with pytest.raises(PropertyError, match=r"^escaped: expected numbers, found tensor 'a': no numbers$"):
        check(FOUR_TYPES)


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded(lambda: None, 0)
    with pytest.raises(PropertyError, match=r"bounded: expected at most 16,777,216 bytes of memory for 0 bytes, found 33,\d"):
        bounded(lambda: bytes(1 << 25) and None, 0)
    bounded(lambda: bytes(1 << 25) and None, 1 << 17)
    monkeypatch.setattr(fuzzing, "SECONDS", (0.0, 0.0))
    with pytest.raises(PropertyError, match=r"bounded: expected at most 0.0 s for 9 bytes, found 0.\d s"):
        bounded(lambda: sum(range(10_000)) and None, 9)


# The verb


@pytest.mark.slow
def test_the_verb_on_a_format_and_on_a_file(tmp_path: Path) -> None:
    code, text = run("glft", "--examples", "30", "--seed", "7", "--out", tmp_path)
    assert code == 0
    first, *read, second = text.splitlines()
    total, distinct, kinds = re.fullmatch(
        r"glft: no failure in (\d+) files, (\d+) of them distinct: (.*); seed 7", first
    ).groups()
    assert sum(int(count) for count in re.findall(r"\d+", kinds)) == int(total) == 30
    assert 15 < int(distinct) <= 30
    for line in read:
        assert re.fullmatch(r"parsed nevertheless: \d+ of the (damaged|corrupted)( and \d+ of the (damaged|corrupted))?", line)
    assert re.fullmatch(r"at most \d+\.\d\d s and [\d,]+ bytes of memory per file", second)
    (tmp_path / "a.gguf-lite").write_bytes(golden("four_types"))
    code, text = run(tmp_path / "a.gguf-lite", "--examples", "20")
    assert (code, "1 given" in text, "damaged" in text) == (0, True, True)
    assert "1 given; seed 0" in run(tmp_path / "a.gguf-lite", "--examples", "0")[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf-lite"]


def test_bad_requests(tmp_path: Path) -> None:
    code, text = run("ggml")
    assert (code, text) == (2, "glft: expected GLFT or GGUF, found 'ggml', which is not a file either\n")
    (tmp_path / "x.json").write_text('{"files": [{}]}', "utf-8")
    code, text = run(tmp_path / "x.json")
    assert code == 2
    assert "expected a manifest of files to try, found" in text


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc, where not even root makes a file")
@pytest.mark.parametrize("option", ["--out", "--corpus"])
def test_a_folder_that_cannot_be_written_to(option: str) -> None:
    message = f"glft: expected a writable directory for {option}, found /proc\n"
    assert run("glft", option, "/proc/new") == (2, message)


def test_without_hypothesis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis.configuration", None)
    assert run("glft") == (2, "glft: fuzz needs hypothesis: pip install 'glft_schema[fuzz]'\n")


def no_search(*arguments: object) -> None:
    raise AssertionError("nothing should have been searched")


def test_what_is_refused_before_anything_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fuzzing, "fuzz", no_search)
    Path("notes.txt").write_text("hello", "utf-8")
    Path("a.safetensors").write_bytes(b"\x10" + bytes(7) + b'{"a":1}         ')
    Path("a.glft").write_bytes(golden("four_types"))
    Path("half.glft").write_bytes(golden("four_types")[:30])
    write_corpus([FOUR_TYPES], "full", format=GLFT)
    assert run("notes.txt") == (
        2,
        "glft: notes.txt: header -> magic: expected b'TFLG' (GLFT) or b'GGUF' (GGUF), found b'hell' (at byte 0)\n",
    )
    code, text = run("a.safetensors")
    assert (code, text.count("\n"), text.startswith("glft: a.safetensors: header -> magic: ")) == (2, 1, True)
    no_folder = "expected a directory for {}, found the file {}"
    for arguments, message in (
        (("--out", "notes.txt"), no_folder.format("--out", "notes.txt")),
        (("--corpus", "notes.txt/in/it"), no_folder.format("--corpus", tmp_path / "notes.txt")),
        (("--corpus", "full"), "expected an empty directory for --corpus, found full"),
    ):
        assert run("a.glft", *arguments) == (2, f"glft: {message}\n")
    code, text = run("half.glft", "--corpus", "new")
    assert (code, text.startswith("glft: half.glft: ")) == (2, True)
    code, text = run("full/manifest.json", "--corpus", "new")
    assert (code, text) == (2, "glft: expected a file or a format with --corpus, found a manifest\n")
    assert not Path("new").exists()
    Path("full/manifest.json").write_text('{"files": []}', "utf-8")
    assert run("full/manifest.json") == (2, "glft: expected GLFT or GGUF, found None\n")


def test_a_failure_is_said_even_where_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"

    def broken_and_out_is_gone(stored: bytes) -> None:
        if not out.exists():
            out.write_bytes(b"")
        crashes(stored)

    monkeypatch.setattr(fuzzing, "Container", Reader(parse=broken_and_out_is_gone))
    (tmp_path / "a.glft").write_bytes(golden("four_types"))
    code, text = run(tmp_path / "a.glft", "--out", out)
    assert code == 1
    assert text.startswith("failed: escaped: expected a FormatError or none, found IndexError")
    assert f"the file, {len(golden('four_types'))} bytes, given, could not be written\n" in text
    assert f"glft: {out}: File exists\n" in text


def test_a_manifest_that_fails_again_keeps_its_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "Container", Reader(parse=crashes))
    manifest = write_corpus([Case(b"GGU", DAMAGED)], tmp_path / "first", format=GGUF)
    code, text = run(manifest, "--out", tmp_path / "again")
    assert code == 1
    assert "smallest" not in text
    (again,) = (tmp_path / "again").glob("*.json")
    made = json.loads(again.read_text("utf-8"))
    assert (made["format"], made["files"][0]["file"].endswith(".gguf")) == ("GGUF", True)
    assert made["found_by"] == f"glft fuzz {manifest}"


class Interrupting(Reader):
    """Reads as ours does but for files that are `bad`, and is interrupted in the one of these with this number."""

    def __init__(self, at: int, bad: Callable[[bytes], bool] = lambda stored: True, read: object = Container.parse) -> None:
        left = at

        def parse(stored: bytes) -> object:
            nonlocal left
            if not bad(stored):
                return Container.parse(stored)
            left -= 1
            if left <= 0:
                raise KeyboardInterrupt
            return read(stored)

        super().__init__(parse)


def test_an_interrupt_shows_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "Container", Interrupting(20))
    code, text = run("gguf", "--out", tmp_path)
    assert code == 130
    assert re.match(r"gguf: interrupted; no failure in \d+ files, \d+ of them distinct: ", text)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_shrinking_shows_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "Container", Interrupting(3, lambda stored: len(stored) > 100, crashes))
    code, text = run("gguf", "--out", tmp_path)
    assert code == 130
    assert text.startswith("failed: escaped: expected a FormatError or none, found IndexError")
    assert "interrupted, a smaller file may exist; " in text
    assert len(list(tmp_path.glob("fuzz-*.json"))) == 1


def test_a_hang_that_is_interrupted_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "SECONDS", (0.0, 0.0))
    monkeypatch.setattr(fuzzing, "Container", Interrupting(1))
    (tmp_path / "a.glft").write_bytes(golden("four_types"))
    code, text = run(tmp_path / "a.glft", "--out", tmp_path / "out")
    assert code == 130
    assert re.match(r"failed: bounded: expected at most 0\.0 s, found no end after \d+\.\d s\n", text)
    (stored,) = (tmp_path / "out").glob("*.glft")
    assert stored.read_bytes() == golden("four_types")


def test_an_interrupt_that_python_cannot_raise_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def parse(stored: bytes) -> object:
        Interrupted()
        return Container.parse(stored)

    monkeypatch.setattr(fuzzing, "Container", Reader(parse))
    code, text = run("gguf")
    assert (code, text.startswith("gguf: interrupted; no failure in ")) == (130, True)


def test_an_interrupt_while_a_corpus_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fuzzing, "corpus", interrupted)
    code, text = run("glft", "--examples", "1", "--corpus", tmp_path / "corpus")
    assert (code, text.endswith("\ninterrupted\n")) == (130, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_nothing_is_left_where_the_user_is(tmp_path: Path) -> None:
    program = "import typer; from glft_schema.cli.fuzz import fuzz; typer.run(fuzz)"
    env = {name: value for name, value in os.environ.items() if name != "HYPOTHESIS_STORAGE_DIRECTORY"}
    command = [sys.executable, "-c", program, "glft", "--examples", "5"]
    done = subprocess.run(command, cwd=tmp_path, env={**env, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_corpus_says_what_has_to_be_reported(tmp_path: Path) -> None:
    """Read by nothing but its page: JSON, hashes, `Container.parse` and `check_rules`."""
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
            assert not entry["rules"] or check_rules(Container.parse(stored), entry["rules"]) == []
        elif entry["error"]:
            with pytest.raises(FormatError) as caught:
                Container.parse(stored)
            assert entry["within"] or (caught.value.path, caught.value.rule) == (entry["field"], entry["reported"])
        else:
            found = [[finding.rule, finding.path] for finding in check_rules(Container.parse(stored), entry["sets"])]
            assert sorted(found) == sorted(entry["findings"])
    assert kinds[VALID] >= 4
    broken = {entry["rule"] for entry in manifest["files"] if entry["kind"] == CORRUPTED}
    assert set(rule_ids("gguf")) - broken <= {"gguf-length"}
    code, text = run(tmp_path / "corpus" / MANIFEST)
    assert (code, f"{kinds[VALID]} valid" in text, f"{kinds[CORRUPTED]} corrupted" in text) == (0, True, True)


def test_corpora_come_back(tmp_path: Path) -> None:
    cases = [*corpus(golden("four_types"), 8), Case(b"GGUF", DAMAGED)]
    manifest = write_corpus(cases, tmp_path, format=GLFT)
    assert read_corpus(manifest) == cases
    assert sum(case.kind == VALID for case in cases) == 1
    (tmp_path / json.loads(manifest.read_text("utf-8"))["files"][0]["file"]).write_bytes(b"another")
    with pytest.raises(OptionError, match=r"expected 'valid-.*\.glft' with SHA-256 .*, found"):
        read_corpus(manifest)


# Bugs planted into a copy of the package: (file, what stands there, what it becomes, the property, bytes of the smallest file)
BUGS = {
    "empty texts crash": (
        "codec/text.py",
        "        if nbytes > (left := bytes_left(stream)):",
        "        10 // nbytes\n        if nbytes > (left := bytes_left(stream)):",
        "escaped",
        100,
    ),
}


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_rule_that_a_reader_does_not_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Corruptions come from the declaration as it is; a reader that does not look at a rule is caught."""
    from glft_schema.codec.rules import Check

    parsed = Check._parse

    def forgetful(self: Check, stream: object, context: object, path: str) -> None:
        if self.id != "gguf-little-endian":
            parsed(self, stream, context, path)

    monkeypatch.setattr(Check, "_parse", forgetful)
    failure = fuzz(golden_gguf(), 10_000).failure
    assert failure is not None
    assert failure.error.name == "reported"
    assert failure.case.corruption is not None
    assert failure.case.corruption.rule == "gguf-little-endian"
    assert len(failure.case.stored) < 100


@pytest.mark.slow
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
