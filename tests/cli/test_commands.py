"""The subcommands: which modules they import, and how values of the command line are converted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from glft_schema.cli.commands import COMMANDS, Command
from tests.golden import golden
from tests.tools.command_line import in_this_process

# What `glft inspect` of a weights file needs none of; an import of a module that is None fails.
UNUSED = (
    *("torch", "pydantic", "rich", "jinja2", "importlib.metadata"),
    *("glft_schema.describe", "glft_schema.weights", "glft_schema.checks", "glft_schema.quantizer", "glft_schema.cli.verify"),
)


def test_inspect_imports_only_what_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "four.gguf-lite"
    path.write_bytes(golden("four_types"))
    code = f"import sys; sys.modules |= dict.fromkeys({UNUSED!r}); from glft_schema.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "inspect", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == in_this_process("inspect", path).stdout


@pytest.mark.parametrize(("given", "suggestion"), [("inspec", " Did you mean 'inspect'?"), ("nothing-like-it", "")])
def test_an_unknown_command_is_named(given: str, suggestion: str) -> None:
    done = in_this_process(given)
    assert given not in COMMANDS
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"Error: No such command '{given}'.{suggestion}\n")


def test_a_path_that_cannot_be_read_is_refused_by_typer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read all files
    done = in_this_process("inspect", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: Invalid value for 'FILE'" in done.stderr
    assert "is not readable." in done.stderr
    assert in_this_process("inspect", tmp_path / "absent").stderr == f"glft: {tmp_path / 'absent'}: No such file or directory\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["a"],
        ["a", "b", "c"],
        ["a", "--text", "x", "--texts", "1", "--texts", "2", "--number", "3", "--share", "0.5", "--flag"],
        ["--text", "", "a"],
        [],
        ["a", "--number", "x"],
        ["a", "--text"],
    ],
    ids=str,
)
def test_values_are_converted_as_by_typer(arguments: list[str]) -> None:
    def command(
        first: Path,
        others: Annotated[list[Path] | None, typer.Argument()] = None,
        text: str = "default",
        texts: Annotated[list[str] | None, typer.Option()] = None,
        number: int | None = None,
        share: float = 0.25,
        flag: bool = False,
        path: Path | None = None,
    ) -> None:
        print([first, others, text, texts, number, share, flag, path])

    results = []
    for options in ({}, {"cls": Command}):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(**options)(command)  # type: ignore[arg-type]
        results.append(CliRunner().invoke(app, arguments))
    by_typer, ours = results
    assert (ours.exit_code, ours.output) == (by_typer.exit_code, by_typer.output)
