"""The `glft` command, in its own process or in this one."""

from __future__ import annotations

import contextlib
import io
import subprocess

import pytest

from glft_schema.cli import app
from tests.tools import forked


def glft(*arguments: object) -> subprocess.CompletedProcess[str]:
    return forked.run("glft_schema", *arguments)


def in_this_process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a verb; returns the result as of a process."""
    out, err = io.StringIO(), io.StringIO()
    command = [str(argument) for argument in arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        app(command)
    return subprocess.CompletedProcess(command, ended.value.code or 0, out.getvalue(), err.getvalue())


def assert_refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("glft: ")
    for part in parts:
        assert part in done.stderr
