"""Runs programs in an empty folder, with few environment variables and without network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

CONFINED = Path(__file__).with_name("confined_process.py")
PACKAGES = str(Path(__file__).parents[2])  # the folder of this package
KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # variables
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
WRITTEN = 1 << 26  # bytes of a file that the process may write
TAIL = 1 << 16  # bytes of its messages that are read


class Confined:
    """A running program, which `confined_process.py` starts.

    Args:
        program: the path of its file.
        arguments: its arguments.
        memory: bytes of data.
        seconds: of processor time.
        variables: added to its environment.

    Attributes:
        process: with pipes to its input and output.
    """

    def __init__(
        self, program: Path, arguments: Sequence[str], memory: int | None = None, seconds: int | None = None, **variables: str
    ) -> None:
        path = [entry for entry in sys.path if os.path.isabs(entry)]
        path = path if PACKAGES in path else [*path, PACKAGES]
        settings = {"program": str(program), "path": path, "memory": memory, "seconds": seconds, "file": WRITTEN}
        self._home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._messages: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        home = {"HOME": self._home.name, "TMPDIR": self._home.name}
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-u", str(CONFINED), json.dumps(settings), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            cwd=self._home.name,
            env={**kept, **home, **OFFLINE, **variables},
        )

    def exchange(self, request: bytes, answer: memoryview) -> bool:
        """Sends a request and fills `answer`. Returns whether the process sent all of it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(request)
            self.process.stdin.flush()
        found: int = self.process.stdout.readinto(answer)  # type: ignore[attr-defined]
        return found == len(answer)

    def messages(self) -> bytes:
        """Returns the end of what the process wrote to stderr."""
        self._messages.seek(max(0, self._messages.seek(0, os.SEEK_END) - TAIL))
        return self._messages.read()

    def end(self) -> None:
        """Ends the process, closes its files and removes its folder."""
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self._messages):
            if file:
                with suppress(OSError):  # a request that the process did not read
                    file.close()
        self._home.cleanup()
