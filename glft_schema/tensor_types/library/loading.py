"""Finds the compiled functions of this installation, and loads the library for this processor.

The environment variable ``GLFT_LIBRARY=off`` disables compiled functions in a process.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import platform
import shlex
import sys
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from glft_schema.errors import OptionError, one_line, quote
from glft_schema.scalar.kinds import KINDS, OUTPUTS

MODE = "GLFT_LIBRARY"  # the environment variable
LOG = logging.getLogger("glft_schema")
PACKAGE = Path(__file__).parents[2]
FOLDER = Path(__file__).with_name("compiled")
MANIFEST = "manifest.json"
SOURCES = (  # files that the functions' bits depend on
    "scalar/*.py",
    "scalar/*.h",
    "tensor_types/*.py",
    "tensor_types/*.bin",
    "tensor_types/encoders/*.py",
    "tensor_types/ggml/*.py",
    "tensor_types/library/building.py",
    "tensor_types/library/machine.c",
    "tensor_types/library/printing.py",
)
DTYPES = {KINDS[kind].dtype: suffix for kind, suffix in OUTPUTS.items()}  # of weights, and the suffix in C
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
SYSTEMS = {"darwin": "macos"}

Compiled = Callable[..., None]
_FUNCTIONS: dict[str, Compiled | None] = {}
_UNSAID = [True]  # one message per process


class LibraryError(Exception):
    """Libraries that cannot be used; the text says why."""


def function_of(scheme: str, dtype: str) -> Compiled | None:
    """Returns the compiled decoder of a type, or None if there is no usable one.

    The function takes addresses and counts: ``(blocks, w, n)``, or for types of rows ``(FIELD, ...,
    w, rows, columns)``, see `printing.TypesInC.decoder`. It checks nothing, may run in several
    threads, and releases the GIL.

    Args:
        scheme: the type's name in schemes.
        dtype: of the weights: float32, float16 or bfloat16.

    Raises:
        OptionError: if ``GLFT_LIBRARY`` is invalid.
    """
    return function_named(scheme + DTYPES[dtype])


def encoder_of(scheme: str, by_importance: bool) -> Compiled | None:
    """Returns the compiled encoder of a type, like `function_of`. It takes ``(w, [importance,]
    blocks, rows, columns)``, or for types of rows each FIELD in place of the blocks, see
    `printing.TypesInC.encoder`."""
    return function_named(f"encode_{scheme}{'_by_importance' * by_importance}")


def function_named(name: str) -> Compiled | None:
    """Returns a function by its name in the library, like `function_of` and `encoder_of`."""
    if mode := os.environ.get(MODE):
        if mode != "off":
            raise OptionError(f"expected {MODE}=off or unset, found {quote(mode)}")
        return None
    if name not in _FUNCTIONS:  # without a lock, which a forked child could inherit locked
        library = _of_package()
        try:
            _FUNCTIONS[name] = None if library is None else library.function(name)
        except LibraryError as error:
            _FUNCTIONS[name] = None
            _say(logging.WARNING, f"{error}: some types are converted by slower formulas; {command()} compiles them again")
    return _FUNCTIONS[name]


def add(library: Library) -> None:
    """Makes functions of another library available. Raises LibraryError if one fails its
    self-test."""
    _FUNCTIONS.update({name: library.function(name) for name in library.names})


def forget() -> None:
    """Forgets the loaded functions, so that this process looks for the library again."""
    _FUNCTIONS.clear()
    _of_package.cache_clear()
    _UNSAID[:] = [True]


@lru_cache
def _of_package() -> Library | None:
    if not (FOLDER / MANIFEST).exists():
        _say(logging.WARNING, f"no compiled functions: types are converted by slower formulas; {command()} compiles them")
        return None
    try:
        return Library(FOLDER)
    except LibraryError as error:
        _say(logging.WARNING, f"{error}: types are converted by slower formulas; {command()} compiles them again")
    return None


def _say(level: int, message: str) -> None:
    try:
        _UNSAID.pop()  # of two threads, only one succeeds
    except IndexError:
        return
    LOG.log(level, message)


def command() -> str:
    """Returns the command that compiles the library again."""
    return f"`{shlex.quote(sys.executable)} -m glft_schema.tensor_types.compiling`"


class Library:
    """A library that was loaded from a folder for this processor; see `building.build`."""

    def __init__(self, folder: Path) -> None:
        """Loads the library for this processor. Raises LibraryError if it cannot be used."""
        try:
            manifest = json.loads((folder / MANIFEST).read_bytes())
            if manifest["machine"] != this_machine():
                raise LibraryError(f"the functions are compiled for {quote(manifest['machine'])}, not for {this_machine()}")
            if manifest["sources"] != digest_of_sources():
                raise LibraryError("the functions are compiled from other sources")
            self._functions: dict[str, dict[str, Any]] = manifest["functions"]
            levels: dict[str, str] = manifest["levels"]
            self._dll = _open(folder, levels["1"])
            if len(levels) > 1 and (level := str(self._dll.x86_64_level())) != "1":
                self._dll = _open(folder, levels[level])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LibraryError(f"the compiled functions are damaged: {one_line(str(error))}") from None

    @property
    def names(self) -> list[str]:
        """The names of the functions."""
        return list(self._functions)

    def function(self, name: str) -> Compiled | None:
        """Returns a function after its self-test, or None if the library has no such function.

        The self-test runs it on stored inputs, and compares the outputs with those of plain Python.

        Raises:
            LibraryError: if the outputs differ, or the library is damaged.
        """
        if name not in self._functions:
            return None
        try:
            test, function = self._functions[name], getattr(self._dll, name)
            inputs, counts = [bytes.fromhex(content) for content in test["inputs"]], test["counts"]
            inputs[0] *= test.get("repeats", 1)
            outputs = [ctypes.create_string_buffer(size) for size in test["outputs"]]
            function.argtypes = [ctypes.c_void_p] * (len(inputs) + len(outputs)) + [ctypes.c_int64] * len(counts)
            function.restype = None
            function(*inputs, *outputs, *counts)
            if sha256(b"".join(output.raw for output in outputs)).hexdigest() != test["expected"]:
                raise LibraryError(f"the compiled function {name} fails its self-test")
        except (ValueError, KeyError, TypeError, AttributeError, ctypes.ArgumentError) as error:
            raise LibraryError(f"the compiled functions are damaged: {one_line(str(error))}") from None
        compiled: Compiled = function
        return compiled


def _open(folder: Path, name: str) -> ctypes.CDLL:
    """Loads a library whose name ends with the digest of its content."""
    if digest(folder / name) != name.partition(".")[0].rpartition("-")[2]:
        raise ValueError(f"{name} does not match its digest")
    return ctypes.CDLL(str(folder / name))


def digest(*paths: Path) -> str:
    """Returns a digest of the contents of files."""
    contents = sha256()
    for path in paths:
        content = path.read_bytes()
        contents.update(b"%d\n" % len(content) + content)
    return contents.hexdigest()[:32]


def digest_of_sources() -> str:
    """Returns a digest of the files that functions are compiled from."""
    return digest(*(path for pattern in SOURCES for path in sorted(PACKAGE.glob(pattern))))


def this_machine() -> str:
    """Returns the architecture and the system, such as ``x86_64-linux``."""
    machine, system = platform.machine().lower(), platform.system().lower()
    return f"{ARCHITECTURES.get(machine, machine)}-{SYSTEMS.get(system, system)}"
