"""A process that answers pickled requests, for readers that may crash or need limits."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tools.unmeasured import unmeasured

ROOT = Path(__file__).parents[2]


class Process:
    """A Python process that runs `serve`, started by a request, and again after a crash.

    Args:
        arguments: for Python, such as ``-m`` and a module.
        environment: variables to add to the environment.
    """

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._command = [sys.executable, *arguments]
        self._environment = unmeasured() | environment
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, request: object) -> Any:
        """Returns the reply. Raises EOFError with the signal or exit code if the process ends."""
        if self._process is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self._process = subprocess.Popen(self._command, cwd=ROOT, env=self._environment, **pipes)
        process = self._process
        assert process.stdin
        assert process.stdout
        pickle.dump(request, process.stdin)
        process.stdin.flush()
        try:
            return pickle.load(process.stdout)
        except EOFError:
            self.close()
            code = process.returncode
            raise EOFError(signal.Signals(-code).name if code < 0 else f"exit code {code}") from None

    def close(self) -> None:
        if self._process:
            self._process.communicate()
            self._process = None


def serve(answer: Callable[[Any], object]) -> None:
    """Answers requests from standard input until it ends; prints go to standard error."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while sys.stdin.buffer.peek(1):
        pickle.dump(answer(pickle.load(sys.stdin.buffer)), output)
        output.flush()
