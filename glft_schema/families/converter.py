"""Converts Hugging Face folders to GGUF with llama.cpp's converter, in a separate process.

The result is a file whose bytes are computed when they are read: see `families/facade.py`.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple
from weakref import finalize

from glft_schema.errors import FormatError, OptionError, install, one_line, safe
from glft_schema.families.facade import PAIR
from glft_schema.families.processes import Confined
from glft_schema.families.untrusted_folders import check_no_code
from glft_schema.files.container import open as open_container
from glft_schema.files.file import File
from glft_schema.files.parsing import parse_source
from glft_schema.storage.source import Source, StrPath

LOG = logging.getLogger("glft_schema")
SCRIPT, PACKAGE = "convert_hf_to_gguf.py", "convert-hf-to-gguf"
INSTALLED = "installed"  # instead of a path
ADVICE = f"llama.cpp's converter (--converter installed, after {install('converter')}; or --converter PATH)"
FACADE = Path(__file__).with_name("facade.py")
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
        names = (safe(str(name), 1000) for name in (folder, self.name))
        LOG.warning("%s: running llama.cpp's converter, %s, which is not part of glft_schema", *names)
        return parse_source(ConvertedSource(script, folder, self.name, self.outtype or kept))


def type_of(folder: Path) -> str:
    """Returns the converter's type that keeps all matrices of a folder."""
    types = {
        tensor.type.name
        for path in folder.glob("model*.safetensors")
        for tensor in open_container(path, whole_set=False).tensors.values()
        if len(tensor.shape) > 1
    }
    return SIXTEEN_BITS.get(types.pop(), "f32") if len(types) == 1 else "f32"


class ConvertedSource(Source):
    """The GGUF file that a converter makes from a folder.

    Args:
        script: the converter.
        folder: the model.
        converter: its name, for errors.
        outtype: its type of matrices.
    """

    def __init__(self, script: Path, folder: Path, converter: str, outtype: str) -> None:
        arguments = [str(script), str(folder.absolute()), "--outtype", outtype, "--outfile", os.devnull]
        self._folder, self._converter, self._turn = folder, converter, threading.Lock()
        confined = Confined(FACADE, arguments)
        self._confined, self._process, self._end = confined, confined.process, finalize(self, confined.end)
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
        view, left = memoryview(bytearray(nbytes)), self._head[start : start + nbytes]
        view[: len(left)] = left
        with self._turn:
            self._receive(view[len(left) :], PAIR.pack(start + len(left), nbytes - len(left)))
        return view

    def _private(self, start: int, nbytes: int) -> memoryview:
        return self._view(start, nbytes)

    def _receive(self, part: memoryview, request: bytes = b"") -> None:
        """Fills a buffer from the process. Raises FormatError if the process ends first."""
        if not part:
            return
        if self._confined.exchange(request, part):
            return
        code = self._process.wait()
        lines = self._confined.messages().decode("utf-8", "replace").split("\n")
        reason = next((line for line in reversed(lines) if line.strip()), "nothing")
        ended = f"ended by signal {-code}" if code < 0 else one_line(reason.removeprefix("ERROR:hf-to-gguf:"), 500)
        raise FormatError(f"llama.cpp's converter ({self._converter}) failed: {ended}", file=str(self._folder))

    def _release(self) -> None:
        self._end()
