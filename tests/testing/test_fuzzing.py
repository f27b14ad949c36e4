"""Fuzzing finds no violated property in the package, and any planted bug."""

from __future__ import annotations

import json
import re
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

from glft_schema import Container, FormatError, TensorError, check_rules
from glft_schema.codec import tables
from glft_schema.codec.rules import Check
from glft_schema.codec.text import Text
from glft_schema.errors import OptionError
from glft_schema.formats.format import Format
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.formats.safetensors import SAFETENSORS
from glft_schema.tensors.tensor import Tensor
from glft_schema.testing import Corruption, fuzzing
from glft_schema.testing.corpora import MANIFEST, read_corpus, write_corpus
from glft_schema.testing.corruption import distinct_rules
from glft_schema.testing.fuzzing import CORRUPTED, DAMAGED, VALID, Case, PropertyError, check, check_bounds, corpus, fuzz
from tests.golden import golden
from tests.testing.test_corruptions import SAFE_FILE
from tests.tools import forked
from tests.tools.command_line import in_this_process
from tests.tools.depth import FULL


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
    assert (fuzzed.failure, fuzzed.counts.total()) == (None, examples)
    shares = [done for _, done in progress]
    assert (shares, shares[-1]) == (sorted(shares), 1.0)
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
        fuzzing.draw_examples(fuzzing.cases(GLFT), 25 if FULL else 4, seed, lambda case: made.append(case.sha256))
        return made

    assert files(1) == files(1)
    assert files(1) != files(2)


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        (SAFETENSORS, {VALID, DAMAGED, CORRUPTED}),
        (SAFE_FILE, {DAMAGED, CORRUPTED}),
        (golden("loose_layout"), {DAMAGED, CORRUPTED}),
        (b"GGUF\3\0\0\0 and no more", {DAMAGED}),
    ],
)
def test_fuzzing_finds_nothing(source: Format | bytes, kinds: set[str]) -> None:
    fuzzed = fuzz(source, 300 if FULL else 40)
    assert (fuzzed.failure, {kind for kind, count in fuzzed.counts.items() if count}) == (None, kinds)


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
    summary = r"glft: no failure in 30 files, \d+ of them distinct: (\d+ (valid|damaged|corrupted)(, )?){3}; seed 7\n"
    read = r"(parsed despite the damage: \d+ of the (damaged|corrupted)( and \d+ of the corrupted)?\n)?"
    assert re.fullmatch(rf"{summary}{read}at most \d+\.\d\d s and [\d,]+ bytes of memory per file\n", text)
    assert code == 0
    (tmp_path / "a.gguf-lite").write_bytes(golden("four_types"))
    code, text = run(tmp_path / "a.gguf-lite", "--examples", "20")
    assert (code, "1 given" in text, "damaged" in text) == (0, True, True)
    assert "1 given; seed 0" in run(tmp_path / "a.gguf-lite", "--examples", "0")[1]
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf-lite"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc, where not even root makes a file")
@pytest.mark.parametrize("option", ["--out", "--corpus"])
def test_a_folder_that_cannot_be_written_to(option: str) -> None:
    message = f"glft: expected a writable directory for {option}, found /proc\n"
    assert run("glft", option, "/proc/new") == (2, message)


def test_without_hypothesis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis.configuration", None)
    assert run("glft") == (2, "glft: fuzz needs hypothesis: pip install 'glft_schema[fuzz]'\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("notes.txt",), r"notes.txt: header -> magic: expected b'TFLG' .* found b'hell'; .* \(at byte 0\)"),
        (("a.pt",), "a.pt: header -> magic: .*"),
        (("ggml",), "expected GLFT, GGUF or safetensors, found 'ggml', which is not a file"),
        (("a.glft", "--out", "notes.txt"), "expected a directory for --out, found the file notes.txt"),
        (("a.glft", "--corpus", "notes.txt/in/it"), "expected a directory for --corpus, found the file .*/notes.txt"),
        (("a.glft", "--corpus", "full"), "expected an empty directory for --corpus, found full"),
        (("half.glft", "--corpus", "new"), "half.glft: .*"),
        (("full/manifest.json", "--corpus", "new"), "expected a file or a format with --corpus, found a manifest"),
        (("none.json",), "expected GLFT, GGUF or safetensors, found None"),
        (("empty.json",), "expected a manifest of glft fuzz, found .*"),
    ],
)
def test_bad_requests(arguments: tuple[str, ...], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr(fuzzing, "fuzz")
    stored = golden("four_types")
    files = {"notes.txt": b"hello", "a.pt": b"PK\3\4", "a.glft": stored, "half.glft": stored[:30]}
    for name, content in {**files, "none.json": b'{"files": []}', "empty.json": b'{"files": [{}]}'}.items():
        Path(name).write_bytes(content)
    write_corpus([FOUR_TYPES], "full", format=GLFT)
    code, text = run(*arguments)
    assert (code, bool(re.fullmatch(f"glft: {problem}\n", text))) == (2, True), text
    assert not Path("new").exists()


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
    assert (code, "smallest" in text) == (1, False)
    (again,) = (tmp_path / "again").glob("*.json")
    made = json.loads(again.read_text("utf-8"))
    assert (made["format"], made["files"][0]["file"][-5:], made["found_by"]) == ("GGUF", ".gguf", f"glft fuzz {manifest}")


def interrupting(at: int, bad: Callable[[bytes], bool] = lambda stored: True, read: object = Container.parse) -> object:
    """Returns a function that calls `read` for `bad` files, and is interrupted in number `at`."""
    left = at

    def parse(stored: bytes) -> object:
        nonlocal left
        if not bad(stored):
            return Container.parse(stored)
        left -= 1
        if left <= 0:
            raise KeyboardInterrupt
        return read(stored)

    return parse


class Interrupted:
    """Is interrupted where Python cannot raise."""

    def __del__(self) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("parse", [interrupting(20), lambda stored: Interrupted() and Container.parse(stored)])
def test_an_interrupt_shows_what_was_tried(parse: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "Container", reader(parse))
    code, text = run("gguf", "--out", tmp_path)
    assert code == 130
    assert re.match(r"gguf: interrupted; no failure in \d+ files, \d+ of them distinct: ", text)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_shrinking_shows_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "Container", reader(interrupting(3, lambda stored: len(stored) > 100, crashes)))
    code, text = run("gguf", "--out", tmp_path)
    assert code == 130
    assert text.startswith("failed: escaped: expected a FormatError or no error, found IndexError")
    assert "interrupted; a smaller file may exist. Before this failure, none in " in text
    assert len(list(tmp_path.glob("fuzz-*.json"))) == 1


def test_a_hang_that_is_interrupted_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "SECONDS", (0.0, 0.0))
    monkeypatch.setattr(fuzzing, "Container", reader(interrupting(1)))
    (tmp_path / "a.glft").write_bytes(golden("four_types"))
    code, text = run(tmp_path / "a.glft", "--out", tmp_path / "out")
    assert code == 130
    assert re.match(r"failed: bounded: expected at most 0\.0 s, still running after \d+\.\d s\n", text)
    (stored,) = (tmp_path / "out").glob("*.glft")
    assert stored.read_bytes() == golden("four_types")


def test_an_interrupt_while_a_corpus_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fuzzing, "corpus", interrupted)
    code, text = run("glft", "--examples", "1", "--corpus", tmp_path / "corpus")
    assert (code, text.endswith("\ninterrupted\n")) == (130, True)
    assert list(tmp_path.iterdir()) == []


def test_the_working_directory_stays_empty(tmp_path: Path) -> None:
    environment = {"HYPOTHESIS_STORAGE_DIRECTORY": ""}
    done = forked.run("glft_schema", "fuzz", "glft", "--examples", 1, folder=tmp_path, environment=environment)
    assert (done.returncode, done.stderr, [*tmp_path.iterdir()]) == (0, "", [])


@pytest.mark.parametrize("format", [GLFT, pytest.param(GGUF, marks=pytest.mark.full)], ids=lambda declared: declared.name)
def test_a_corpus_has_the_expected_reports(format: Format, tmp_path: Path) -> None:
    """The corpus is read as its page says: JSON, hashes, `Container.parse` and `check_rules`."""
    path = tmp_path / "corpus" / MANIFEST
    code, text = run(format.name.lower(), "--examples", "40", "--corpus", path.parent)
    manifest, cases = json.loads(path.read_text("utf-8")), read_corpus(path)
    assert (code, manifest["format"], manifest["seed"]) == (0, format.name, 0)
    assert f"{len(cases)} files" in text
    kinds = Counter(case.kind for case in cases)
    for entry, case in zip(manifest["files"], cases, strict=True):
        check(case)
        assert entry["bytes"] == len(case.stored)
        assert (entry["verdict"] == "refuse") == (entry.get("error") not in (None, "LimitError"))
        if entry["verdict"] == "accept":
            assert not check_rules(Container.parse(case.stored), format.rule_sets)
        if case.kind == VALID:
            names = [bytes.fromhex(one["name_hex"]) if "name_hex" in one else one["name"].encode() for one in entry["tensors"]]
            assert names == [name.encode("utf-8", "surrogateescape") for name in Container.parse(case.stored).tensors]
    broken = Counter(case.corruption.rule for case in cases if case.corruption)
    assert set(distinct_rules(format)) - broken.keys() <= {"gguf-length"}
    assert (kinds[VALID] >= 4, broken[None] >= 3) == (True, True)
    assert {entry["verdict"] for entry in manifest["files"]} >= {"accept", "refuse"}


def test_corpora_are_read_back(tmp_path: Path) -> None:
    cases = [*corpus(golden("four_types"), 8), Case(b"GGUF", DAMAGED)]
    manifest = write_corpus(cases, tmp_path, format=GLFT)
    assert read_corpus(manifest) == cases
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
    assert f"\n  glft fuzz {manifest}\n" in printed
    found, (case,) = json.loads(manifest.read_text("utf-8")), read_corpus(manifest)
    assert found["problem"].startswith("escaped")
    assert found["found_by"] == "glft fuzz gguf --examples 1000 --seed 0"
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
def test_a_rule_that_a_reader_skips_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Corruptions follow from the declaration, so a reader that skips a rule is caught."""
    parsed = Check._parse

    def forgetful(self: Check, stream: object, context: object, path: str) -> None:
        if self.id != "gguf-little-endian":
            parsed(self, stream, context, path)

    monkeypatch.setattr(Check, "_parse", forgetful)
    failure = fuzz(golden_gguf(), 10_000).failure
    assert failure is not None
    assert failure.case.corruption is not None
    assert (failure.error.name, failure.case.corruption.rule) == ("reported", "gguf-little-endian")
    assert len(failure.case.stored) < 100


def test_the_limits_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "fuzzing.md").read_text("utf-8")
    (fixed, each), (least, times) = fuzzing.SECONDS, fuzzing.MEMORY
    assert f"{fixed:g} s plus {each * 1e6:g} us per byte" in page
    assert f"{least >> 20} MiB of memory plus {times} times the file's size" in page


def golden_gguf() -> bytes:
    return Container.build({"format": "GGUF", "metadata": {"general.architecture": "toy"}})
