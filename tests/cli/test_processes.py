"""The command as a process: closed streams, encodings, warnings, missing packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import glft_schema
from tests.tools.command_line import glft, on_a_terminal

MAIN = "from glft_schema.cli import main; main()"


def python(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_version() -> None:
    done = subprocess.run([sys.executable, "-m", "glft_schema", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"glft_schema {glft_schema.__version__}\n"


def test_a_warning_is_one_line(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.full((1, 64), 1e-9)}, tmp_path / "model.safetensors")
    done = glft("convert", tmp_path / "model.safetensors", tmp_path / "out.glft", "--scheme", "q4_per_group_64")
    assert done.returncode == 0
    assert re.fullmatch("glft: warning: tensor 'w': 64 non-zero weights are stored as 0.*\n", done.stderr)


def glft_without(descriptor: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the command without standard input (0), output (1) or errors (2)."""
    code = "import os, sys; os.close(int(sys.argv[1])); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
    return python(code, descriptor, "-m", "glft_schema", *arguments)


@pytest.mark.posix("replaces the program of a process")
@pytest.mark.parametrize("closed", [1, 2])
def test_closed_output_changes_no_verdict(four_types: Path, tmp_path: Path, closed: int) -> None:
    for expected, name in ((0, four_types), (2, tmp_path / "missing")):
        done = glft_without(closed, "verify", name)
        assert done.returncode == expected
        assert "Traceback" not in done.stdout + done.stderr
        assert ("missing" in done.stdout + done.stderr) == (expected == 2 and closed == 1)


@pytest.mark.posix("replaces the program of a process")
def test_a_manifest_from_closed_input(four_types: Path) -> None:
    done = glft_without(0, "verify", four_types, "--manifest", "-")
    assert (done.returncode, done.stderr) == (2, "glft: standard input: is closed\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_closes_the_output(four_types: Path, unbuffered: str) -> None:
    command = [sys.executable, "-c", MAIN, "inspect", str(four_types)]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout and process.stderr  # noqa: PT018
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 141)


def test_of_a_missing_package_one_line_tells(four_types: Path) -> None:
    done = python(f"import sys; sys.modules['jinja2'] = None; {MAIN}", "view", four_types, "-o", four_types.parent / "out")
    assert (done.returncode, done.stderr) == (2, "glft: the package jinja2 is required but not installed\n")


def test_a_terminal_gets_a_progress_bar(four_types: Path, tmp_path: Path) -> None:
    done = on_a_terminal("convert", four_types, tmp_path / "out.glft")
    assert (done.returncode, "writing out.glft" in done.stdout) == (0, True)


@pytest.mark.posix("prints in another encoding than UTF-8")
def test_names_outside_the_terminals_encoding(four_types: Path) -> None:
    done = python(MAIN, "inspect", four_types, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, r"note = a=b \xfc\xdf" in done.stdout) == (0, True)
