"""Functions in a process of their own: surroundings, errors, and what ends the process."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import glft_schema as glft
from glft_schema.families.apart import OFFLINE, start_apart
from glft_schema.families.config import refusing
from tests.families.tiny_folders import edit_json, make_folder
from tests.tools.command_line import assert_refused, in_this_process

MISBEHAVING = "tests.tools.misbehaving"
MEMORY = 1 << 27


@pytest.fixture(autouse=True)
def in_a_process(monkeypatch: pytest.MonkeyPatch, any_fingerprint: None) -> None:
    """Undoes that other tests parse in this process."""
    monkeypatch.setattr("glft_schema.families.folders.start_apart", start_apart)


@pytest.mark.posix("tells a process its limits")
def test_surroundings_and_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, few variables, the limits, and no result changed by JSON."""
    monkeypatch.setenv("SECRET", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    with glft.Limits(parser_memory=MEMORY, objects=7), start_apart(MISBEHAVING) as call:
        found = call("surroundings", tmp_path, file=tmp_path)
        for value in ("\ud800\n", [1.5, -0.0, 2**70, None, True], {"a": float("inf")}, "x" * 100_000):
            assert call("echo", tmp_path, value, file=tmp_path) == value
    variables = found.pop("variables")
    assert variables.items() >= OFFLINE.items()
    assert variables["HOME"] == variables["TMPDIR"] != os.environ.get("HOME")
    assert not Path(variables["HOME"]).exists()
    assert "SECRET" not in variables
    limit = MEMORY if sys.platform == "linux" else found["limit"][0]
    assert found == {"files": [], "isolated": [1, False], "limit": [limit, 7]}


def test_limits_beyond_the_systems(tmp_path: Path) -> None:
    with glft.Limits(parser_memory=1 << 80, parser_seconds=10**30), start_apart(MISBEHAVING) as call:
        assert call("echo", tmp_path, 1, file=tmp_path) == 1


def test_errors_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their fields, and the folder as the caller names it."""
    monkeypatch.chdir(tmp_path)
    folder, file = Path("model"), str(Path("model", "a.json"))
    with start_apart(MISBEHAVING) as call:
        for name, error, problem in (
            ("format", glft.FormatError, rf"^a -> b: expected 1, found 2 \(key 'k'\) in {re.escape(file)}$"),
            ("tensor", glft.TensorError, "^tensor 't': expected 1$"),
            ("option", glft.OptionError, "^expected 2$"),
            ("system", FileNotFoundError, rf"^\[Errno {errno.ENOENT}\] no such file: {re.escape(repr(file))}$"),
        ):
            with pytest.raises(error, match=problem):
                call("fail", folder, name, file=folder)


# fmt: off
ENDS: dict[str, tuple[dict[str, int], tuple[Any, ...], str]] = {
    "memory":   ({"parser_memory": MEMORY}, ("allocate",),
                 f"expected at most {MEMORY} bytes for another library (a limit of glft_schema), found more"),
    "abort":    ({}, ("say", "memory allocation of 99 bytes failed", signal.SIGABRT), "found more (limit parser_memory)"),
    "seconds":  ({"parser_seconds": 1}, ("spin",),
                 "expected at most 1 s for another library (a limit of glft_schema), found more (limit parser_seconds)"),
    "SIGXCPU":  ({}, ("say", "", getattr(signal, "SIGXCPU", 0)), "expected at most 120 s for another library"),
    "SIGSEGV":  ({}, ("say", "x" * 100_000, signal.SIGSEGV),
                 "another library failed to parse this file: its process ended by SIGSEGV"),
    "code":     ({}, ("say", "", -3), "failed to parse this file: its process ended with 3"),
    "long":     ({"metadata": 100}, ("echo", "x" * 100), "expected at most 100 bytes (a limit of glft_schema), found more"),
}
# fmt: on


@pytest.mark.parametrize("name", ENDS)
def test_what_ends_the_process(name: str, tmp_path: Path) -> None:
    if name == "memory" and sys.platform != "linux":
        pytest.skip("other systems do not limit memory")
    if name.startswith("SIG") and os.name != "posix":
        pytest.skip("only POSIX ends processes by signals")
    limits, arguments, message = ENDS[name]
    with glft.Limits(**limits), start_apart(MISBEHAVING) as call, pytest.raises(glft.FormatError) as caught:
        call(*arguments[:1], tmp_path, *arguments[1:], file=tmp_path / "a.json")
    assert message in str(caught.value)
    assert caught.value.file == str(tmp_path / "a.json")


def test_a_busy_machine_takes_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of the processor count; a process that does nothing ends later."""
    with glft.Limits(parser_seconds=1), start_apart(MISBEHAVING) as call:
        assert call("wait", tmp_path, 1.1, file=tmp_path) == "waited"
        monkeypatch.setattr("glft_schema.families.apart.PATIENCE", 1)
        with pytest.raises(glft.LimitError, match="expected at most 1 s for another library"):
            call("wait", tmp_path, 60, file=tmp_path)


def test_a_tokenizer_that_panics(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-mistral")
    edit_json(folder / "tokenizer.json", normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})
    done = in_this_process("convert", folder, tmp_path / "out.gguf")
    assert_refused(done, str(folder), "expected a valid tokenizer, found PanicException: Precompiled: Error(")


REPLACE = {"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * 16}  # one letter by sixteen
ALIASES = [f"{name}: &{name} [{f'*{before}, ' * 9}]" for before, name in pairwise("abcdefghi")]
GROWING: dict[str, Callable[[Path], object]] = {
    "tokenizer.json": lambda path: edit_json(path, normalizer={"type": "Sequence", "normalizers": [REPLACE] * 12}),
    "README.md": lambda path: path.write_text("\n".join(["---", "a: &a [x]", *ALIASES, "base_models: *i", "---"])),
}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit memory")
@pytest.mark.parametrize("file", GROWING)
def test_files_that_take_all_memory(file: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-qwen3")
    GROWING[file](folder / file)
    with glft.Limits(parser_memory=MEMORY):
        done = in_this_process("convert", folder, tmp_path / "out.gguf")
    assert_refused(done, f"{folder}/{file}: ", "found more (limit parser_memory)", "--limit parser_memory=NUMBER")


def test_a_card_in_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """The library logs an entry that it does not know as a whole."""
    folder = make_folder(tmp_path, "tiny-mistral")
    (folder / "README.md").write_text(f"---\nbase_models: [[{'a, ' * 10_000}]]\n---\n")
    glft.convert(folder, tmp_path / "out.gguf")
    assert (capfd.readouterr(), caplog.messages) == (("", ""), [])


def test_errors_that_are_not_of_the_file() -> None:
    """Those of the system, of memory and of the user pass; a library's OSError has no number."""
    for error in (OSError(errno.EIO, "failed"), MemoryError(), KeyboardInterrupt()):
        with pytest.raises(type(error)), refusing("a.json", "a file"):
            raise error
    with (
        pytest.raises(glft.FormatError, match=r"^expected a file, found OSError: no such model in a\.json$"),
        refusing("a.json", "a file"),
    ):
        raise OSError("no such\nmodel")
