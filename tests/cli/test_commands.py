"""The subcommands: which modules they import, and how values of the command line are converted."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import click
import pytest
from click.testing import CliRunner

from glft_schema.cli import app
from glft_schema.cli.commands import COMMANDS, JOBS, Glft
from glft_schema.cli.options import argument, command, flag, option
from tests.golden import golden
from tests.tools.command_line import in_this_process

# What `glft inspect` of a weights file needs none of; an import of a module that is None fails.
UNUSED = (
    *("torch", "rich", "jinja2", "importlib.metadata"),
    *("glft_schema.describe", "glft_schema.weights", "glft_schema.checks", "glft_schema.quantizer", "glft_schema.cli.verify"),
)


def test_inspect_imports_only_what_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "four.gguf-lite"
    path.write_bytes(golden("four_types"))
    code = f"import sys; sys.modules |= dict.fromkeys({UNUSED!r}); from glft_schema.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "inspect", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == in_this_process("inspect", path).stdout


def test_help_is_also_a_command() -> None:
    assert in_this_process("help").stdout == in_this_process("--help").stdout
    assert in_this_process("help", "inspect").stdout == in_this_process("inspect", "--help").stdout


@pytest.mark.parametrize(("given", "suggestion"), [("inspec", " Did you mean 'inspect'?"), ("nothing-like-it", "")])
def test_an_unknown_command_is_named(given: str, suggestion: str) -> None:
    done = in_this_process(given)
    assert given not in COMMANDS
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"Error: No such command '{given}'.{suggestion}\n")


def test_a_path_that_cannot_be_read_is_refused_click(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read all files
    done = in_this_process("inspect", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: Invalid value for 'FILE'" in done.stderr
    assert "is not readable." in done.stderr
    assert in_this_process("inspect", tmp_path / "absent").stderr == f"glft: {tmp_path / 'absent'}: No such file or directory\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a"], [Path("a"), (), "default", (), None, 0.25, False, None]),
        (["a", "b", "c"], [Path("a"), (Path("b"), Path("c")), "default", (), None, 0.25, False, None]),
        (
            ["a", "--text", "x", "--texts", "1", "-t", "2", "--number", "3", "--share", "0.5", "--flag", "--path", "p"],
            [Path("a"), (), "x", ("1", "2"), 3, 0.5, True, Path("p")],
        ),
        (["--text", "", "a"], [Path("a"), (), "", (), None, 0.25, False, None]),
        ([], "Missing argument 'FIRST'."),
        (["a", "--number", "x"], "Invalid value for '--number': 'x' is not a valid integer"),
        (["a", "--number", "0"], "Invalid value for '--number': 0 is not in the range x>=1."),
        (["a", "--text"], "Option '--text' requires an argument."),
    ],
    ids=str,
)
def test_signatures_declare_arguments_and_options(arguments: list[str], expected: object) -> None:
    def declared(
        first: Annotated[Path, argument("FIRST", "A file.")],
        others: Annotated[tuple[Path, ...], argument("OTHER", "Files.")] = (),
        text: Annotated[str, option("TEXT", "A text.")] = "default",
        texts: Annotated[tuple[str, ...], option("TEXT", "Texts.", "-t")] = (),
        number: Annotated[int | None, option("N", "A number.", min=1)] = None,
        share: Annotated[float, option("X", "A share.")] = 0.25,
        flag: Annotated[bool, flag("A flag.")] = False,
        path: Annotated[Path | None, option("PATH", "A path.")] = None,
    ) -> None:
        found.append([first, others, text, texts, number, share, flag, path])

    found: list[object] = []
    done = CliRunner().invoke(command(declared), arguments)
    if isinstance(expected, list):
        assert (done.exit_code, found) == (0, [expected])
    else:
        assert (done.exit_code, found) == (2, [])
        assert f"Error: {expected}" in done.output


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_in_two_examples_that_can_be_parsed(name: str) -> None:
    made = Glft().get_command(click.Context(app), name)
    assert made
    for one in made.commands.values() if isinstance(made, click.Group) else [made]:
        assert one.get_short_help_str(100) == one.help.split("\n")[0]
        if one.name != "list":
            examples = [line.strip() for line in one.epilog.splitlines()[2:]]
            assert len(examples) == 2
            for words in map(shlex.split, examples):
                words = words[: words.index(">")] if ">" in words else words
                assert words[0] == "glft"
                one.make_context(one.name, words[2 + isinstance(made, click.Group) :])
    assert f"{made.help}\n".startswith(f"{COMMANDS[name]}\n")


def test_help_has_two_names_and_lists_commands_by_job() -> None:
    texts = {in_this_process(*arguments).stdout for arguments in (["--help"], ["-h"])}
    assert len(texts) == 1
    assert [*re.findall(r"^([A-Z].*):$", texts.pop(), re.MULTILINE)] == ["Options", *JOBS]
    done = in_this_process("split", "-h")
    assert done.stdout == in_this_process("split", "--help").stdout
    assert "\n\n  Examples:\n    glft split model.gguf parts/model --max-tensors 100\n    glft split " in done.stdout


def test_help_imports_no_command() -> None:
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); from glft_schema.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1].split()
    assert "glft_schema.cli" in modules
    assert not {"torch", "rich", "glft_schema.cli.inspect", "glft_schema.cli.verify"}.intersection(modules)
