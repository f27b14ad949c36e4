"""The `glft` command, in its own process or in this one."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess

import pytest

from glft_schema.cli import app
from tests.tools import forked


def glft(*arguments: object) -> subprocess.CompletedProcess[str]:
    return forked.run("glft_schema", *arguments)


# If the only stream of a terminal or its session ends with the command, some kernels drop the
# last lines. Here the reader holds a stream, too, and writes a mark when the command has ended.
ON_A_TERMINAL = """
import os, sys, threading
from glft_schema.cli import main

END, codes = b"\\0", []
terminal, stream = os.openpty()
child = os.fork()
if not child:
    for number in range(3):
        os.dup2(stream, number)
    kept = sys.stdin, sys.stdout, sys.stderr  # they would close the descriptors
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    main()
    sys.exit()

def wait():
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.write(stream, END)

threading.Thread(target=wait).start()
shown = b""
while not shown.endswith(END):
    shown += os.read(terminal, 1 << 16)
sys.stdout.buffer.write(shown[:-1])
sys.exit(codes[0])
"""


def on_a_terminal(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command with a terminal for its streams; their text is the output. Skips the test if
    the system has no pseudoterminals."""
    if not hasattr(os, "openpty"):
        pytest.skip("this system lacks os.openpty")
    return forked.run("-c", ON_A_TERMINAL, *arguments, environment={"TERM": "xterm", **environment})


def in_this_process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the command; returns the result as of a process."""
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
