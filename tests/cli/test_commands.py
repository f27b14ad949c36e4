"""The subcommands: what they import, how their arguments are converted, and their help."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from glft_schema.cli import app
from glft_schema.cli.commands import COMMANDS, JOBS, Glft
from tests.tools.command_line import in_this_process

# What `glft inspect` of a weights file needs none of; an import of a module that is None fails.
UNUSED = (
    *("torch", "rich", "jinja2", "importlib.metadata"),
    *("glft_schema.describe", "glft_schema.weights", "glft_schema.checks", "glft_schema.quantizer", "glft_schema.cli.verify"),
)


def test_inspect_imports_only_what_it_needs(four_types: Path) -> None:
    code = f"import sys; sys.modules |= dict.fromkeys({UNUSED!r}); from glft_schema.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "inspect", four_types], capture_output=True, encoding="utf-8", check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == in_this_process("inspect", four_types).stdout


def test_help_imports_no_command() -> None:
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); from glft_schema.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1].split()
    assert "glft_schema.cli" in modules
    assert not {"torch", "rich", "glft_schema.cli.inspect", "glft_schema.cli.verify"}.intersection(modules)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("inspec", "Error: No such command 'inspec'. Did you mean 'inspect'?"),
        ("nothing-like-it", "Error: No such command 'nothing-like-it'."),
        ("quantize in.gguf q4_k_m", "Error: Missing argument 'OUT'."),
        ("quantize in.gguf out.gguf", "Error: Missing argument 'TYPE'."),
        ("convert in.gguf out.gguf --alignment x", "Invalid value for '--alignment': 'x' is not a valid integer range."),
        ("convert in.gguf out.gguf --gguf-version 4", "'--gguf-version': 4 is not in the range 1<=x<=3."),
        ("edit in.gguf out.gguf", "unexpected extra argument (out.gguf); the output is an option: -o OUT"),
        ("merge 1.gguf 2.gguf out.gguf", "unexpected extra argument (out.gguf); give only the first file of the set"),
        ("get-tensor in.gguf x -o out", "; the output is an argument: OUT.npy"),
        ("convert in.gguf x -o out", "; the output is an argument: OUT"),
        *(
            (f"convert in.gguf out.gguf {type_}", "; types are chosen by --scheme TYPE, or by glft quantize IN OUT TYPE")
            for type_ in ("Q8_0", "--type q8_0", "--outtype q8_0")
        ),
        ("explain in.gguf --color nver", "; did you mean 'never'?"),
        ("schema gguf --as kaitia", "; did you mean 'kaitai'?"),
    ],
)
def test_usage_errors_say_what_to_do(line: str, error: str) -> None:
    done = in_this_process(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"{error}\n")


def test_a_path_that_cannot_be_read_is_refused_by_the_command(four_types: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read all files
    done = in_this_process("inspect", four_types)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(r"Error: Invalid value for 'FILE'.* is not readable\.\n$", done.stderr)


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


def test_help_has_three_names_and_lists_commands_by_job() -> None:
    (text,) = {in_this_process(name).stdout for name in ("--help", "-h", "help")}
    assert [*re.findall(r"^([A-Z].*):$", text, re.MULTILINE)] == ["Options", *JOBS]
    (text,) = {in_this_process(*line.split()).stdout for line in ("split --help", "split -h", "help split")}
    assert "\n\n  Examples:\n    glft split model.gguf parts/model --max-tensors 100\n    glft split " in text


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_terminal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain text in 80 columns; the list of commands has each one's first sentence uncut."""
    monkeypatch.setenv("COLUMNS", "80")
    listed, shown = in_this_process("--help").stdout, in_this_process(name, "--help").stdout
    summary = shown.split("\n\n")[1].strip()
    assert summary == COMMANDS[name]
    assert f"  {name:<10}  {summary}\n" in listed
    assert all(len(line) <= 80 and line.isascii() for line in shown.splitlines())
