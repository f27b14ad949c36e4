"""The kernels that this process uses: found in the folder, checked and loaded once.

The environment variable ``GLFT_KERNELS`` says how: unset, kernels are used if they are there;
``auto`` builds all in the background if one is missing, for later processes; ``off`` uses none.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, NamedTuple

from glft_schema.errors import OptionError, alternatives, one_line, shown
from glft_schema.lazy import torch
from glft_schema.storage.atomic import lock
from glft_schema.storage.tensor_bytes import has_plain_memory
from glft_schema.tensor_types.kernels.fingerprint import fingerprint
from glft_schema.tensor_types.kernels.folder import (
    Manifest,
    UntrustedError,
    check_folder,
    file_name,
    kernel_folder,
    library_path,
    make_folder,
    manifests,
    read_manifest,
)
from glft_schema.tensor_types.kernels.library import Library, shim
from glft_schema.tensor_types.kernels.machine import OPTIONS, machine

Function = Callable[[Sequence["torch.Tensor"]], None]  # what a kernel computes: it writes the last argument

MODE = "GLFT_KERNELS"  # the environment variable
MODES = ("", "auto", "off")
LOG = logging.getLogger("glft_schema")

_LOADED: dict[Identity, Kernel | str] = {}  # or why there is none
_BUILDERS: list[subprocess.Popen[bytes]] = []  # kept, since Python warns of a running process that is dropped
_IMPORTED_IN = os.getpid()


class Identity(NamedTuple):
    """The name of a kernel, and what it is compiled from.

    Attributes:
        name: of a step of encoders.
        functions: what the kernel computes. It is valid only while their code is the same.
        variant: anything else that distinguishes it.
        options: of inductor, besides `machine.OPTIONS`: names and values.
    """

    name: str
    functions: tuple[Callable[..., object], ...]
    variant: str = ""
    options: tuple[tuple[str, int], ...] = ()

    def key(self) -> dict[str, str]:
        """Returns everything that the kernel depends on. Raises ValueError as `fingerprint`."""
        functions, options = fingerprint(*self.functions), str({**OPTIONS, **dict(self.options)})
        return {"kernel": self.name, "functions": functions, "variant": self.variant, **machine(), "options": options}


class Kernel:
    """A loaded kernel, for tensors of one layout.

    The layout lists dtype and sizes of each argument. A negative size is a length of two or more,
    equal wherever it stands. The tensors are contiguous.
    """

    def __init__(self, layout: Sequence[Mapping[str, Any]], library: Library) -> None:
        self._layout = [(getattr(torch, argument["dtype"]), tuple(argument["sizes"])) for argument in layout]
        self._library = library

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...] | None:
        """Runs the kernel, and returns the tensors that it makes.

        Returns None unless the tensors have the layout that the kernel was compiled for.
        """
        lengths: dict[int, int] = {}
        for tensor, (dtype, sizes) in zip(tensors, self._layout, strict=False):
            if (
                not has_plain_memory(tensor)
                or not tensor.is_contiguous()
                or tensor.dtype != dtype
                or tensor.dim() != len(sizes)
            ):
                return None
            for found, size in zip(tensor.shape, sizes, strict=True):
                if found != (size if size >= 0 else lengths.setdefault(size, found)) or (size < 0 and found < 2):
                    return None
        if len({tensor.data_ptr() for tensor in tensors}) < len(tensors):
            return None  # it was compiled for tensors that share no memory
        made = tuple(
            torch.empty([lengths.get(size, size) for size in sizes], dtype=dtype)
            for dtype, sizes in self._layout[len(tensors) :]
        )
        self._library.run([*tensors, *made])
        return made


def find(identity: Identity) -> Kernel | None:
    """Returns a kernel, or None if there is none that can be used.

    Raises OptionError if ``GLFT_KERNELS`` is invalid.
    """
    mode = os.environ.get(MODE, "")
    if mode == "off":
        return None
    if identity not in _LOADED:
        if mode not in MODES:
            raise OptionError(f"expected {MODE} as {alternatives(MODES[1:])}, found {shown(mode)}")
        _LOADED[identity] = _load(identity, mode == "auto")
    found = _LOADED[identity]
    return found if isinstance(found, Kernel) else None


def forget_kernels() -> None:
    """Makes this process look for all kernels again.

    A forked process does: a kernel that its parent was running may wait for a thread that it lacks.
    """
    _LOADED.clear()
    _folder_to_use.cache_clear()
    _say_once.cache_clear()
    _warn_once.cache_clear()


os.register_at_fork(after_in_child=forget_kernels)


def _load(identity: Identity, builds: bool) -> Kernel | str:
    """Returns a kernel, or why there is none. Nothing that is wrong with the folder is an error."""
    interface = shim()
    if interface is None:
        return _say_once(f"torch {torch.__version__} has no interface for kernels: encoders run operation by operation")
    try:
        key = identity.key()
    except Exception as error:  # of any object that the function refers to
        return f"no kernel can be built: {one_line(str(error))}"
    folder = _folder_to_use()
    if isinstance(folder, str):
        if builds and not os.path.lexists(kernel_folder()):
            _build_in_background()
        return folder
    path = folder / file_name(identity.name, key)
    if not path.exists():
        if builds:
            _build_in_background()
        return _why_stale(folder, identity.name, key) or "run glft kernels build"
    try:
        manifest = read_manifest(path)
        if manifest.library is None:
            return str(manifest.about.get("problem", ""))
        return Kernel(manifest.layout, Library(library_path(folder, manifest), interface))
    except (UntrustedError, OSError, AttributeError) as error:
        return _warn(f"passed over a kernel: {error}; glft kernels build replaces it")


@cache
def _folder_to_use() -> Path | str:
    """Returns the folder, or why none can be used."""
    folder = kernel_folder()
    if not os.path.lexists(folder):
        return _say_once(f"no kernels in {folder}: `glft kernels build` makes quantizing up to twice as fast")
    try:
        check_folder(folder)
        return folder.resolve()
    except (UntrustedError, OSError) as error:
        return _warn(f"passed over all kernels: {error}")


def _why_stale(folder: Path, name: str, key: Mapping[str, str]) -> str | None:
    """Warns once if a kernel is there, but was built for something else. Returns the warning."""
    for _, manifest in manifests(folder, name):
        if isinstance(manifest, Manifest) and (manifest.kernel, manifest.key.get("variant")) == (name, key["variant"]):
            return _warn_once(
                f"kernels in {folder} were built for {difference(manifest.key, key)}: run glft kernels build again"
            )
    return None


def difference(found: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """Returns what another kernel was built for."""
    changed = [f"{part} {found.get(part)}" for part in (*machine(), "options") if found.get(part) != expected[part]]
    return ", ".join(changed) or "other code of the step"


def _build_in_background() -> None:
    """Starts a process that builds all kernels, unless one is building or this process is a child.

    It starts in the root folder, since Python imports modules from the current folder.
    """
    if _BUILDERS or getattr(sys, "frozen", False) or not sys.executable or parent_process() or os.getpid() != _IMPORTED_IN:
        return
    folder = kernel_folder()
    try:
        make_folder(folder)
        fd = os.open(folder, os.O_RDONLY)
    except (UntrustedError, OSError) as error:
        _say_once(f"no kernels can be built: {error}")
        return
    try:
        if not lock(fd):
            return
    finally:
        os.close(fd)
    LOG.info("building kernels in the background")
    command, nothing = [sys.executable, "-m", "glft_schema", "kernels", "build", "--jobs", "1"], subprocess.DEVNULL
    with suppress(OSError):  # such as too many processes
        process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True, cwd="/")
        _BUILDERS.append(process)


def _warn(text: str) -> str:
    warnings.warn(f"glft_schema {text}", RuntimeWarning, stacklevel=2)
    return text


def _say(text: str) -> str:
    LOG.info(text)
    return text


_warn_once, _say_once = cache(_warn), cache(_say)
