"""Printed names and values: control characters, forged lines and great length have no effect."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from glft_schema import Container, FormatError, save_file
from glft_schema.cli.terminal import MAX_LINE, echo, progress_bar
from glft_schema.codec.rules import GGML, SPEC
from glft_schema.errors import QuantizationWarning, printable
from glft_schema.files.parsing import check_rules
from tests.catalogue.__main__ import READ, REFUSED
from tests.catalogue.gguf_cases import HOSTILE, U8, w
from tests.oracles import glft_reference as reference
from tests.oracles.gguf_reference import ARRAY, STRING, File
from tests.oracles.glft_reference import F32, Q8, Row
from tests.tools.command_line import in_this_process as glft

LONG = "n" * 65535
NOT_UTF8 = b"\xff\xed\xa0\x80" + HOSTILE.encode()
NAMES = (HOSTILE.encode(), NOT_UTF8, LONG.encode())
LIMIT = MAX_LINE + 50  # leaves room for the note that a line was cut


def harmless(text: str, limit: int = LIMIT) -> bool:
    """Whether a text has no control characters, long lines or forged lines."""
    lines = text.split("\n")
    return all(line.isprintable() and len(line) <= limit and not line.startswith("FORGED") for line in lines)


def gguf() -> bytes:
    """Returns a file with hostile names, keys and values everywhere."""
    texts = [*NAMES, b"\x1b"]
    typed = [(U8, [1]) if i % 2 else (STRING, [HOSTILE.encode()]) for i in range(300)]
    entries = [(name + b"key", STRING, name) for name in NAMES]
    entries += [(b"texts", ARRAY, (STRING, texts)), (b"arrays", ARRAY, (ARRAY, typed))]
    infos = [w(name + b"%d" % i, (4,), nbytes=16) for i, name in enumerate(NAMES)]
    infos += [w(b"opaque" + HOSTILE.encode(), type=200), w(b"dims" + HOSTILE.encode(), (10**17, 0, *(1,) * 62), nbytes=0)]
    file = File(entries, infos).place()
    file.infos += [w(HOSTILE.encode() + b"alias %d" % i, (4,)) for i in range(99)]  # that share a payload
    return file.bytes()


def glft_file() -> bytes:
    text = HOSTILE.replace("\n", "\x85")
    metadata = f"{text}={text}\nlong={LONG}\n{LONG}=1".encode()
    rows = [Row(HOSTILE, [2, 64], Q8, bytes(132)), Row(LONG, [1], F32, bytes(4)), Row("w", [2, 64], F32, bytes(512))]
    return reference.back_to_back(metadata, rows)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Files with hostile names, as far as the system allows them."""
    paths = [tmp_path / f"{HOSTILE.replace('/', '') if os.name == 'posix' else 'm'}.{ending}" for ending in ("gguf", "glft")]
    paths[0].write_bytes(gguf())
    paths[1].write_bytes(glft_file())
    return paths


COMMANDS = (
    *("inspect FILE", "explain FILE", "explain FILE --color never --range 0:2000", "view FILE -o OUT.html"),
    *("verify FILE", "verify FILE --rules spec", "verify FILE --derives-from FILE"),
    *("convert FILE OUT.gguf", "convert FILE OUT.glft", "convert FILE OUT.safetensors --exclude opaque*"),
    *("split FILE OUT --max-tensors 50", "merge FILE merged.gguf", "get-tensor FILE * all.npy"),
    *("get-tensor FILE NAME one.npy", "explain FILE --tensor NAME", "edit FILE --remove NAME"),
    "edit FILE --set new=TEXT --rename NAME=TEXT -o edited",
)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("command", COMMANDS)
def test_output_of_commands_is_harmless(
    command: str, paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in paths:
        with Container.parse_file(path) as file:
            names = [*file.tensors][:4]
        for name in names if "NAME" in command else names[:1]:
            texts = {"FILE": str(path), "OUT": HOSTILE.replace("/", ""), "NAME": name, "TEXT": HOSTILE}
            words = command.split()
            for word, text in texts.items():
                words = [part.replace(word, text) for part in words]
            done = glft(*words)
            assert done.stdout or done.stderr
            assert harmless(done.stdout + done.stderr)


@pytest.mark.posix("has such names")
def test_json_holds_hostile_text_whole(paths: list[Path]) -> None:
    for path in paths:
        done = glft("inspect", path, "--json")
        assert harmless(done.stdout, 1 << 20)
        with Container.parse_file(path) as file:
            assert [tensor["name"] for tensor in json.loads(done.stdout)["tensors"]] == [*file.tensors]


def test_errors_of_the_catalogue_are_harmless(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    for name, case in REFUSED.items():
        path.write_bytes(case.stored)
        done = glft("explain", path)
        assert done.returncode == 2, name
        assert case.message in done.stderr
        assert harmless(done.stdout + done.stderr)
        assert done.stderr.count("\n") == 1


def test_findings_of_the_catalogue_are_harmless() -> None:
    for case in READ.values():
        for finding in check_rules(Container.parse(case.stored), (SPEC, GGML)):
            assert harmless(f"{finding.path}: {finding.problem}", 500)
            assert "\n" not in finding.path + finding.problem


def test_texts_of_the_library_are_harmless() -> None:
    for stored in (gguf(), glft_file()):
        file = Container.parse(stored)
        assert harmless(repr(file.metadata), 1500)
        for text in (str(file), repr(file), *map(str, file.tensors.values()), *map(repr, file.tensors.values())):
            assert harmless(text, 500)
    for name in NAMES:
        with pytest.raises(FormatError, match=r"the size in bytes of dims \[.*\] overflows 64 bits") as caught:
            Container.parse(File([], [w(name, (1 << 62,))]).bytes())
        assert harmless(str(caught.value), 500)


@pytest.mark.posix("has such names")
def test_an_error_with_the_name_of_a_file_is_harmless(tmp_path: Path) -> None:
    path = tmp_path / HOSTILE.replace("/", "")
    path.write_bytes(b"GGUF")
    with pytest.raises(FormatError) as caught:
        Container.parse_file(path)
    assert str(path) == caught.value.file
    assert harmless(str(caught.value), 1500)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file") as refused:
        Container.parse_file(path)
    assert harmless(str(refused.value), 1500)


def test_warnings_are_harmless(tmp_path: Path) -> None:
    import torch

    tensors = {name: torch.full((2, 64), 1e-30) for name in (HOSTILE, LONG)}
    with pytest.warns(QuantizationWarning) as caught:
        save_file(tensors, tmp_path / "w.glft", schemes={"*": "q8_per_channel"})
    assert len(caught) == 2
    assert all(harmless(str(warning.message), 500) for warning in caught)


def test_the_command_itself_escapes_names_of_files_and_warnings(tmp_path: Path) -> None:
    code = "import sys, warnings; from glft_schema import cli; cli.app = lambda: warnings.warn(sys.argv[1]); cli.main()"
    done = subprocess.run([sys.executable, "-c", code, HOSTILE], capture_output=True, text=True, check=True)
    assert done.stderr == f"glft: warning: {repr(HOSTILE)[1:-1]}\n"


def test_progress_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("reading") as bar:
        bar(HOSTILE, 0.5)
    shown = terminal.getvalue()
    assert r"reading: \x1b[2J\x1b]0;owned\x07" in shown
    assert re.findall("\x1b]0;|\x1b\\[2J|\x07|\u202e", shown) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a 'quoted' \\ text", "a 'quoted' \\ text"),
        ("\x1b[2J\n\u202e\ud800", r"\x1b[2J\n\u202e\ud800"),
        ("x" * 29, f"{'x' * 28}... (29 characters in all)"),
        ("\0" * 28, r"\x00\x00\x00\x00\x00\x00\x00... (28 characters in all)"),
    ],
)
def test_a_text_is_escaped_and_cut(text: str, shown: str) -> None:
    assert printable(text, 28) == shown


def test_lines_keep_their_own_colours(capsys: pytest.CaptureFixture[str]) -> None:
    echo("\x1b[1mbold\x1b[0m \x1b[2J", "two\nlines", coloured=True)
    echo("\x1b[1mbold", error=True)
    assert capsys.readouterr() == ("\x1b[1mbold\x1b[0m \\x1b[2J\ntwo\\nlines\n", "\\x1b[1mbold\n")
