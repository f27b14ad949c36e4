"""Fuzzing finds no violated property in the package, and any planted bug."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from glft_schema import Container, FormatError, TensorError
from glft_schema.codec import tables
from glft_schema.codec.rules import Check
from glft_schema.codec.text import Text
from glft_schema.errors import OptionError
from glft_schema.files.parsing import check_rules
from glft_schema.formats.format import Format
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.tensors.tensor import Tensor
from glft_schema.testing import Corruption, fuzzing
from glft_schema.testing.corpora import MANIFEST, read_corpus, write_corpus
from glft_schema.testing.corruption import distinct_rules
from glft_schema.testing.fuzzing import CORRUPTED, DAMAGED, GIVEN, VALID, Case, PropertyError, check, check_bounds, corpus, fuzz
from tests.golden import golden
from tests.tools import forked
from tests.tools.command_line import in_this_process
from tests.tools.depth import FULL

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> tuple[int, str]:
    """Runs the verb, and returns its exit code and what it printed."""
    done = in_this_process("fuzz", *arguments)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.full
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


def test_hypothesis_does_not_warn_of_large_values() -> None:
    def fail(value: object) -> None:
        raise PropertyError("rebuilt", f"found {len(str(value))}")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PropertyError, match="found 40000"):
            fuzzing.draw_examples(st.just("x" * 40_000), 1, 0, fail)


def test_the_same_seed_gives_the_same_files() -> None:
    def files(seed: int) -> list[str]:
        made: list[str] = []
        fuzzing.draw_examples(fuzzing.cases(GGUF), 25 if FULL else 4, seed, lambda case: made.append(case.sha256))
        return made

    assert files(1) == files(1)
    assert files(1) != files(2)


def test_fuzzing_a_file() -> None:
    fuzzed = fuzz(golden("loose_layout"), 100, given=[Case(golden("loose_layout"), GIVEN)])
    assert fuzzed.failure is None
    assert set(fuzzed.counts) >= {DAMAGED, CORRUPTED, GIVEN}
    fuzzed = fuzz(b"GGUF\3\0\0\0 and no more", 30)
    assert (fuzzed.failure, fuzzed.counts[DAMAGED], fuzzed.counts[CORRUPTED]) == (None, 30, 0)


# Violated properties


def reader(parse: object = Container.parse, build: object = Container.build) -> SimpleNamespace:
    """Returns a reader in place of `Container`, with bugs."""
    return SimpleNamespace(parse=parse, build=build)


def refuses(stored: bytes) -> None:
    raise FormatError("expected nothing", "header -> magic", 0)


def crashes(stored: bytes) -> None:
    raise IndexError("out of\x1b range")


def names_nothing(stored: bytes) -> None:
    raise FormatError("expected something else")


ACCEPTED = Corruption(golden("four_types"), "nothing", "header -> version", 4, "glft-version", FormatError, "glft-version")
FOUR_TYPES, EMPTY = Case(golden("four_types"), VALID), Case(b"", DAMAGED)
UNREPORTED = Case(golden("four_types"), CORRUPTED, corruption=ACCEPTED)
BROKEN = {
    "accepted": (reader(refuses), FOUR_TYPES, "expected a valid file to be accepted, found header -> magic"),
    "accepted, too": (reader(), Case(b"GGUF\2\0\0\0" + bytes(16), VALID, ("spec",)), "found gguf-architecture at metadata"),
    "escaped": (reader(crashes), EMPTY, r"expected a FormatError or no error, found IndexError: out of\\x1b range"),
    "escaped, too": (reader(names_nothing), EMPTY, "expected an error with a field and a byte offset, found"),
    "rebuilt": (reader(build=lambda file: golden("four_types")[:-2]), FOUR_TYPES, r"the same \d+ .* differ from byte \d+ on"),
    "rebuilt, too": (reader(build=refuses), FOUR_TYPES, "expected the same bytes, found header -> magic"),
    "reported": (reader(), UNREPORTED, "expected FormatError of glft-version at header -> version, found no error"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_violated_properties(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    container, given, message = BROKEN[case]
    monkeypatch.setattr(fuzzing, "Container", container)
    with pytest.raises(PropertyError, match=message) as caught:
        check(given)
    assert caught.value.name == case.partition(",")[0]
    assert str(caught.value).startswith(f"{caught.value.name}: expected ")


def test_dequantizing_must_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def array(tensor: Tensor) -> None:
        raise TensorError("no numbers", tensor.name)

    monkeypatch.setattr(Tensor, "array", array)
    with pytest.raises(PropertyError, match=r"^escaped: expected numbers, found tensor 'a': no numbers$"):
        check(FOUR_TYPES)


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    check_bounds(lambda: None, 0)
    with pytest.raises(PropertyError, match=r"bounded: expected at most 16,777,216 bytes of memory for 0 bytes, found 33,\d"):
        check_bounds(lambda: bytes(1 << 25) and None, 0)
    check_bounds(lambda: bytes(1 << 25) and None, 1 << 17)
    monkeypatch.setattr(fuzzing, "SECONDS", (0.0, 0.0))
    with pytest.raises(PropertyError, match=r"bounded: expected at most 0.0 s for 9 bytes, found 0.\d s"):
        check_bounds(lambda: sum(range(10_000)) and None, 9)


# The verb


def test_the_verb_on_a_format_and_on_a_file(tmp_path: Path) -> None:
    code, text = run("glft", "--examples", "30", "--seed", "7", "--out", tmp_path)
    assert code == 0
    first, *read, second = text.splitlines()
    summary = r"glft: no failure in (\d+) files, (\d+) of them distinct: (.*); seed 7"
    total, distinct, kinds = re.fullmatch(summary, first).groups()
    assert sum(int(count) for count in re.findall(r"\d+", kinds)) == int(total) == 30
    assert 15 < int(distinct) <= 30
    for line in read:
        counts = r"\d+ of the (damaged|corrupted)( and \d+ of the (damaged|corrupted))?"
        assert re.fullmatch(f"parsed despite the damage: {counts}", line)
    assert re.fullmatch(r"at most \d+\.\d\d s and [\d,]+ bytes of memory per file", second)
    (tmp_path / "a.gguf-lite").write_bytes(golden("four_types"))
    code, text = run(tmp_path / "a.gguf-lite", "--examples", "20")
    assert (code, "1 given" in text, "damaged" in text) == (0, True, True)
    assert "1 given; seed 0" in run(tmp_path / "a.gguf-lite", "--examples", "0")[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf-lite"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc, where not even root makes a file")
@pytest.mark.parametrize("option", ["--out", "--corpus"])
def test_a_folder_that_cannot_be_written_to(option: str) -> None:
    message = f"glft: expected a writable directory for {option}, found /proc\n"
    assert run("glft", option, "/proc/new") == (2, message)


def test_without_hypothesis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis.configuration", None)
    assert run("glft") == (2, "glft: fuzz needs hypothesis: pip install 'glft_schema[fuzz]'\n")


def test_bad_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr(fuzzing, "fuzz")
    Path("notes.txt").write_text("hello", "utf-8")
    Path("a.pt").write_bytes(b"PK\3\4")
    Path("a.glft").write_bytes(golden("four_types"))
    Path("half.glft").write_bytes(golden("four_types")[:30])
    write_corpus([FOUR_TYPES], "full", format=GLFT)
    problem = "expected b'TFLG' (GLFT), b'GGUF' (GGUF) or a safetensors file, found b'hell'; formats of your own: "
    problem += "register_format, or an entry point of glft_schema.formats (at byte 0)"
    assert run("notes.txt") == (2, f"glft: notes.txt: header -> magic: {problem}\n")
    code, text = run("a.pt")
    assert (code, text.count("\n"), text.startswith("glft: a.pt: header -> magic: ")) == (2, 1, True)
    no_folder = "expected a directory for {}, found the file {}"
    for arguments, message in (
        (("--out", "notes.txt"), no_folder.format("--out", "notes.txt")),
        (("--corpus", "notes.txt/in/it"), no_folder.format("--corpus", tmp_path / "notes.txt")),
        (("--corpus", "full"), "expected an empty directory for --corpus, found full"),
    ):
        assert run("a.glft", *arguments) == (2, f"glft: {message}\n")
    code, text = run("half.glft", "--corpus", "new")
    assert (code, text.startswith("glft: half.glft: ")) == (2, True)
    message = "glft: expected a file or a format with --corpus, found a manifest\n"
    assert run("full/manifest.json", "--corpus", "new") == (2, message)
    assert not Path("new").exists()
    Path("full/manifest.json").write_text('{"files": []}', "utf-8")
    assert run("full/manifest.json") == (2, "glft: expected GLFT, GGUF or safetensors, found None\n")
    Path("full/manifest.json").write_text('{"files": [{}]}', "utf-8")
    assert run("full/manifest.json")[1].startswith("glft: expected a manifest of glft fuzz, found")
    assert run("ggml") == (2, "glft: expected GLFT, GGUF or safetensors, found 'ggml', which is not a file\n")


def test_a_failure_is_reported_even_if_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"

    def broken_and_out_is_gone(stored: bytes) -> None:
        if not out.exists():
            out.write_bytes(b"")
        crashes(stored)

    monkeypatch.setattr(fuzzing, "Container", reader(parse=broken_and_out_is_gone))
    (tmp_path / "a.glft").write_bytes(golden("four_types"))
    code, text = run(tmp_path / "a.glft", "--out", out)
    assert code == 1
    assert text.startswith("failed: escaped: expected a FormatError or no error, found IndexError")
    assert f"the file, {len(golden('four_types'))} bytes, given, could not be written\n" in text
    assert f"glft: {out}: File exists\n" in text


def test_a_manifest_that_fails_again_keeps_its_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "Container", reader(parse=crashes))
    manifest = write_corpus([Case(b"GGU", DAMAGED)], tmp_path / "first", format=GGUF)
    code, text = run(manifest, "--out", tmp_path / "again")
    assert code == 1
    assert "smallest" not in text
    (again,) = (tmp_path / "again").glob("*.json")
    made = json.loads(again.read_text("utf-8"))
    assert (made["format"], made["files"][0]["file"].endswith(".gguf")) == ("GGUF", True)
    assert made["found_by"] == f"glft fuzz {manifest}"


def interrupting(at: int, bad: Callable[[bytes], bool] = lambda stored: True, read: object = Container.parse) -> object:
    """Returns a reader that calls `read` for `bad` files, and is interrupted in number `at`."""
    left = at

    def parse(stored: bytes) -> object:
        nonlocal left
        if not bad(stored):
            return Container.parse(stored)
        left -= 1
        if left <= 0:
            raise KeyboardInterrupt
        return read(stored)

    return reader(parse)


def test_an_interrupt_shows_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "Container", interrupting(20))
    code, text = run("gguf", "--out", tmp_path)
    assert code == 130
    assert re.match(r"gguf: interrupted; no failure in \d+ files, \d+ of them distinct: ", text)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_shrinking_shows_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "Container", interrupting(3, lambda stored: len(stored) > 100, crashes))
    code, text = run("gguf", "--out", tmp_path)
    assert code == 130
    assert text.startswith("failed: escaped: expected a FormatError or no error, found IndexError")
    assert "interrupted; a smaller file may exist. Before this failure, none in " in text
    assert len(list(tmp_path.glob("fuzz-*.json"))) == 1


def test_a_hang_that_is_interrupted_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "SECONDS", (0.0, 0.0))
    monkeypatch.setattr(fuzzing, "Container", interrupting(1))
    (tmp_path / "a.glft").write_bytes(golden("four_types"))
    code, text = run(tmp_path / "a.glft", "--out", tmp_path / "out")
    assert code == 130
    assert re.match(r"failed: bounded: expected at most 0\.0 s, still running after \d+\.\d s\n", text)
    (stored,) = (tmp_path / "out").glob("*.glft")
    assert stored.read_bytes() == golden("four_types")


def test_an_interrupt_that_python_cannot_raise_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def parse(stored: bytes) -> object:
        Interrupted()
        return Container.parse(stored)

    monkeypatch.setattr(fuzzing, "Container", reader(parse))
    code, text = run("gguf")
    assert (code, text.startswith("gguf: interrupted; no failure in ")) == (130, True)


def test_an_interrupt_while_a_corpus_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fuzzing, "corpus", interrupted)
    code, text = run("glft", "--examples", "1", "--corpus", tmp_path / "corpus")
    assert (code, text.endswith("\ninterrupted\n")) == (130, True)
    assert list(tmp_path.iterdir()) == []


def run_in(folder: Path, package: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the verb of a copy of the package in a process whose working directory is `folder`."""
    program = "from glft_schema.cli.fuzz import fuzz; from glft_schema.cli.options import command; command(fuzz)()"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    env = {name: value for name, value in os.environ.items() if name != "HYPOTHESIS_STORAGE_DIRECTORY"}
    env |= {"GLFT_LIBRARY": "off", "PYTHONPATH": str(package)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def test_the_working_directory_stays_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYPOTHESIS_STORAGE_DIRECTORY", raising=False)
    monkeypatch.chdir(tmp_path)
    done = forked.run("glft_schema", "fuzz", "glft", "--examples", 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", [GLFT, pytest.param(GGUF, marks=pytest.mark.full)], ids=lambda declared: declared.name)
def test_a_corpus_has_the_expected_reports(format: Format, tmp_path: Path) -> None:
    """The corpus is read as its page says: JSON, hashes, `Container.parse` and `check_rules`."""
    code, text = run(format.name.lower(), "--examples", "40", "--corpus", tmp_path / "corpus")
    assert code == 0
    manifest = json.loads((tmp_path / "corpus" / MANIFEST).read_text("utf-8"))
    assert f"{len(manifest['files'])} files" in text
    assert (manifest["format"], manifest["seed"]) == (format.name, 0)
    kinds: Counter[str] = Counter()
    for entry in manifest["files"]:
        stored = (tmp_path / "corpus" / entry["file"]).read_bytes()
        assert (hashlib.sha256(stored).hexdigest(), len(stored)) == (entry["sha256"], entry["bytes"])
        kinds[entry["kind"]] += 1
        assert entry["verdict"] == {None: "either", "LimitError": "either"}.get(entry.get("error"), "refuse")
        if entry["kind"] == VALID:
            names = [bytes.fromhex(one["name_hex"]) if "name_hex" in one else one["name"].encode() for one in entry["tensors"]]
            assert names == [name.encode("utf-8", "surrogateescape") for name in Container.parse(stored).tensors]
            assert not entry["rules"] or check_rules(Container.parse(stored), entry["rules"]) == []
        elif entry["error"]:
            with pytest.raises(FormatError) as caught:
                Container.parse(stored)
            assert entry["within"] or (caught.value.path, caught.value.rule) == (entry["field"], entry["reported"])
            assert entry["offset"] is not None or "the text ends within" in entry["sentence"]
        else:
            found = [[finding.rule, finding.path] for finding in check_rules(Container.parse(stored), entry["sets"])]
            assert sorted(found) == sorted(entry["findings"])
    assert kinds[VALID] >= 4
    broken = {entry["rule"] for entry in manifest["files"] if entry["kind"] == CORRUPTED}
    assert set(distinct_rules(format)) - broken <= {"gguf-length"}
    refused = [entry["verdict"] for entry in manifest["files"] if entry["kind"] == CORRUPTED and entry["rule"] is None]
    assert set(refused) <= {"refuse", "either"}
    assert len(refused) >= 3
    code, text = run(tmp_path / "corpus" / MANIFEST)
    assert (code, f"{kinds[VALID]} valid" in text, f"{kinds[CORRUPTED]} corrupted" in text) == (0, True, True)


def test_corpora_are_read_back(tmp_path: Path) -> None:
    cases = [*corpus(golden("four_types"), 8), Case(b"GGUF", DAMAGED)]
    manifest = write_corpus(cases, tmp_path, format=GLFT)
    assert read_corpus(manifest) == cases
    assert sum(case.kind == VALID for case in cases) == 1
    (tmp_path / json.loads(manifest.read_text("utf-8"))["files"][0]["file"]).write_bytes(b"another")
    with pytest.raises(OptionError, match=r"expected 'valid-.*\.glft' with SHA-256 .*, found"):
        read_corpus(manifest)


@pytest.mark.full
def test_a_planted_bug_is_found_and_shrunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package crashes for empty texts."""
    parsed = Text._parse

    def crashing(self: Text, stream: Any, context: Any, path: str) -> str:
        text = parsed(self, stream, context, path)
        assert text
        return text

    with monkeypatch.context() as patched:
        patched.setattr(Text, "_parse", crashing)
        patched.setattr(tables, "column_reader", lambda *arguments: None)
        code, printed = run("gguf", "--examples", "1000", "--out", tmp_path)
    assert code == 1
    assert printed.startswith("failed: escaped: expected a FormatError or no error, found AssertionError")
    (manifest,) = tmp_path.glob("fuzz-*.json")
    (case,) = read_corpus(manifest)
    assert len(case.stored) <= 100
    assert run(manifest)[0] == 0


def test_a_valid_file_that_crashes_the_parser_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(golden_gguf(), VALID, ("spec",))
    with monkeypatch.context() as patched:
        patched.setattr(Text, "_parse", lambda *arguments: 1 // 0)
        manifest = write_corpus([case], tmp_path, format=GGUF, contents=False, problem="escaped")
    assert read_corpus(manifest) == [case]
    (entry,) = json.loads(manifest.read_text("utf-8"))["files"]
    assert (entry["verdict"], entry["rules"], entry.keys() & {"tensors"}) == ("either", ["spec"], set())


@pytest.mark.full
def test_a_bug_planted_in_a_copy_of_the_package(tmp_path: Path) -> None:
    """A copy of the package crashes for empty texts."""
    package = tmp_path / "copy" / "glft_schema"
    shutil.copytree(ROOT / "glft_schema", package, ignore=shutil.ignore_patterns("__pycache__", "compiled"))
    module, line = package / "codec" / "text.py", "        if nbytes > (left := bytes_left(stream)):"
    text = module.read_text("utf-8")
    assert text.count(line) == 1
    module.write_text(text.replace(line, f"        10 // nbytes\n{line}"), "utf-8")
    done = run_in(tmp_path, package.parent, "gguf", "--examples", 300, "--out", "found")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("failed: escaped: expected ")
    (again,) = re.findall(r"^  glft fuzz (found/fuzz-[0-9a-f]{12}\.json)$", done.stdout, re.MULTILINE)
    manifest = json.loads((tmp_path / again).read_text("utf-8"))
    (entry,) = manifest["files"]
    assert entry["bytes"] <= 100
    assert manifest["problem"].startswith("escaped")
    assert manifest["found_by"] == "glft fuzz gguf --examples 300 --seed 0"
    assert (tmp_path / "found" / entry["file"]).stat().st_size == entry["bytes"]
    assert run_in(tmp_path, package.parent, again, "--out", "again").returncode == 1
    assert run_in(tmp_path, ROOT, again).returncode == 0


@pytest.mark.full
def test_a_rule_that_a_reader_skips_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Corruptions follow from the declaration, so a reader that skips a rule is caught."""
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


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's Python prints what it says, and its limits are right; tests/docs runs it all."""
    page = (ROOT / "docs" / "guides" / "fuzzing.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    examples = [example for example in examples if "corpus/" not in example]  # which a command makes
    for example in examples:
        exec(compile(example, "fuzzing.md", "exec"), names)
    tests = [test for name, test in names.items() if name.startswith("test_")]
    assert len(tests) == 4
    expected = [line.partition("  # ")[2] for example in examples for line in example.splitlines() if line.startswith("print(")]
    assert capsys.readouterr().out.splitlines() == [text.strip() for text in expected]
    seconds, memory = fuzzing.SECONDS, fuzzing.MEMORY
    assert f"{seconds[0]:g} s plus {seconds[1] * 1e6:g} us per byte" in page
    assert f"{memory[0] >> 20} MiB of memory plus {memory[1]} times the file's size" in page
    for name in ("escaped", "rebuilt", "bounded", "accepted", "reported"):
        assert f"| {name} |" in page
        assert f"    {name} " in str(fuzzing.__doc__)


def golden_gguf() -> bytes:
    return Container.build({"format": "GGUF", "metadata": {"general.architecture": "toy"}})
