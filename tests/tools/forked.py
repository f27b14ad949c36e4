"""Processes forked from one that has imported torch and the package.

A module runs as by ``python -m MODULE``, and a program as by ``python -c PROGRAM``: with its own
arguments, environment, folder, output, exit code and signals. It starts in a tenth of a second,
where a new interpreter imports for two. A function runs in the same way, and returns a value.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FORKS = "forkserver" in multiprocessing.get_all_start_methods()  # Windows starts interpreters instead
CONTEXT = multiprocessing.get_context("forkserver" if FORKS else "spawn")
CONTEXT.set_forkserver_preload(["tests.tools.imported"])


class Forked:
    """A running module, with the part of `subprocess.Popen` that tests use.

    Args:
        job: a module, as after ``python -m``; ``-c`` for a program, the first of the arguments; or
            a function of a module.
        arguments: its arguments.
        environment: variables to add to those of this process.
        most_bytes: size of files above which writes fail.
        folder: the working directory; this process's by default.
    """

    def __init__(
        self,
        job: str | Callable[..., object],
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        most_bytes: int | None = None,
        folder: Path | None = None,
    ) -> None:
        self._output = tempfile.TemporaryDirectory()
        self.returned: Any = None  # by a function that has ended
        variables = {**os.environ, **(environment or {})}
        given = (job, arguments, variables, os.fspath(folder or os.getcwd()), self._output.name, most_bytes)
        self._process = CONTEXT.Process(target=_run, args=given, daemon=True)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits. Returns the output and the errors. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        out, error = (Path(self._output.name, name).read_text("utf-8") for name in ("out", "error"))
        if (returned := Path(self._output.name, "returned")).exists():
            self.returned = pickle.loads(returned.read_bytes())
        self._output.cleanup()
        return out, error


def run(module: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a module to its end; see `Forked`."""
    process = Forked(module, *map(str, arguments), **options)
    out, error = process.communicate()
    return subprocess.CompletedProcess([module, *map(str, arguments)], process.returncode or 0, out, error)


def _run(job: Any, given: tuple[Any, ...], variables: dict[str, str], cwd: str, output: str, most: int | None) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:0] = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
    paths = ((os.devnull, os.O_RDONLY), *((f"{output}/{name}", os.O_WRONLY | os.O_CREAT) for name in ("out", "error")))
    for number, (path, flags) in enumerate(paths):
        os.dup2(opened := os.open(path, flags), number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    if most is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    if callable(job):
        Path(output, "returned").write_bytes(pickle.dumps(job(*given)))
        return
    sys.argv = [job, *map(str, given)]
    if job != "-c":
        runpy.run_module(job, run_name="__main__", alter_sys=True)
        return
    del sys.argv[1]
    exec(compile(given[0], "<string>", "exec"), {"__name__": "__main__"})
