"""Kernels: steps of encoders, compiled for this machine; see `tensor_types.kernels`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from glft_schema.errors import OptionError, alternatives, one_line, shown
from glft_schema.formats.registry import FORMATS
from glft_schema.lazy import torch
from glft_schema.storage.atomic import lock
from glft_schema.tensor_types.engine.steps import STEPS, Call, recorded
from glft_schema.tensor_types.kernels.building import build_step
from glft_schema.tensor_types.kernels.folder import (
    ENDING,
    UNFINISHED,
    Manifest,
    UntrustedError,
    check_folder,
    file_name,
    kernel_folder,
    library_path,
    make_folder,
    manifests,
    read_manifest,
    remove_unused,
)
from glft_schema.tensor_types.kernels.in_use import MODE, Identity, difference, forget_kernels
from glft_schema.tensor_types.tensor_type import TensorType
from glft_schema.words import suggestion

__all__ = ["BuiltKernel", "build", "installed", "remove"]

SAMPLE = (64, 2048)  # weights that the steps of encoders are recorded from
UNUSUAL = (0.0, 0.0, 1e-44, 1e-30, 1e-8, 1e-4, 100.0)  # by which some of its rows are multiplied


class BuiltKernel(NamedTuple):
    """A kernel in the folder.

    Attributes:
        name: of a step of encoders.
        numbers_per_second: that one thread processes; None if the kernel failed.
        times_as_fast: as the operations one by one; None if the kernel failed.
        problem: why the kernel is not used; None if it is.
    """

    name: str
    numbers_per_second: float | None
    times_as_fast: float | None
    problem: str | None


def build(
    types: Sequence[str] = (),
    *,
    jobs: int | None = None,
    built: Callable[[BuiltKernel], object] = lambda kernel: None,
) -> list[BuiltKernel]:
    """Builds kernels for the steps of types' encoders into the folder of kernels:
    ``GLFT_KERNELS_FOLDER``, or ``~/.cache/glft_schema/kernels``.

    Building takes 5 to 25 seconds per kernel and requires a C++ compiler. A kernel is kept only if
    it writes the same numbers as the operations one by one, in less time. Existing kernels are
    kept.

    Args:
        types: as in schemes; by default all quantized types, except those that are registered only
            in this process.
        jobs: processes; by default one per two processors, at most eight.
        built: called with each kernel when it is there.

    Raises:
        OptionError: for an unknown type, or if the folder cannot be used.
    """
    quantized, folder = _quantized(), kernel_folder()
    names = [_known(name, quantized) for name in types] or list(quantized)
    try:
        make_folder(folder)
    except (UntrustedError, OSError) as error:
        raise OptionError(f"no kernels can be built: {error}") from None
    kernels, types_of_steps = [], {step: name for name in names for step in _steps(quantized[name])}
    with _alone(folder), ThreadPoolExecutor(jobs or min(max(available_processors() // 2, 1), 8)) as pool:
        futures = [pool.submit(_present_or_built, folder.resolve(), *step) for step in types_of_steps.items()]
        try:
            for future in as_completed(futures):
                kernels.append(future.result())
                built(kernels[-1])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    forget_kernels()
    return kernels


def installed() -> list[BuiltKernel]:
    """Returns the kernels in the folder of kernels, and why one is not used.

    Raises OptionError if the folder cannot be used.
    """
    found, folder = [], _existing_folder()
    for path, manifest in manifests(folder) if folder else ():
        if isinstance(manifest, UntrustedError):
            found.append(BuiltKernel(path.name.removesuffix(ENDING), None, None, str(manifest)))
        else:
            found.append(_about(manifest, _stale(manifest) or _damage(path.parent, manifest)))
    return found


def remove(names: Sequence[str] = (), *, stale: bool = False) -> int:
    """Removes kernels. Returns how many.

    Args:
        names: of steps; by default all, also damaged kernels.
        stale: only those that were built for something else, or are damaged.

    Raises:
        OptionError: for an unknown name, or if the folder cannot be used.
    """
    count, chosen = 0, set(names)
    if unknown := next((name for name in names if name not in STEPS), None):
        raise OptionError(
            f"expected a step of encoders, {alternatives(sorted(STEPS))}, found {shown(unknown)}{suggestion(unknown, STEPS)}"
        )
    if (folder := _existing_folder()) is None:
        return 0
    with _alone(folder):
        for path, manifest in manifests(folder):
            if isinstance(manifest, UntrustedError):
                wanted = not chosen
            else:
                wanted = manifest.kernel in (chosen or {manifest.kernel}) and not (stale and _stale(manifest) is None)
            if wanted:
                path.unlink()
                count += 1
    forget_kernels()
    return count


def available_processors() -> int:
    """Returns how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _existing_folder() -> Path | None:
    """Returns the folder, or None if there is none. Raises OptionError if it cannot be used."""
    folder = kernel_folder()
    if not os.path.lexists(folder):
        return None
    try:
        check_folder(folder)
    except (UntrustedError, OSError) as error:
        raise OptionError(str(error)) from None
    return folder


def _quantized() -> dict[str, TensorType]:
    return {type_.scheme: type_ for format in FORMATS for type_ in format.types if type_.is_quantized}


def _known(name: str, quantized: Mapping[str, TensorType]) -> str:
    if name.lower() not in quantized:
        raise OptionError(f"expected a quantized type, found {shown(name)}{suggestion(name, quantized)}")
    return name.lower()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits until no other process changes the folder, and tidies it up in the end."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        while not lock(fd):
            time.sleep(0.1)
        try:
            yield
        finally:
            remove_unused(folder)
    finally:
        os.close(fd)


def _present_or_built(folder: Path, name: str, type_: str) -> BuiltKernel:
    """Returns a kernel that is there and whole, or builds it in a process of its own.

    Args:
        folder: of kernels.
        name: a step and its variant.
        type_: the type whose encoder has the step.
    """
    try:
        identity = _identity(name)
        path = folder / file_name(identity.name, identity.key())
    except ValueError as error:
        return BuiltKernel(name.partition(" ")[0], None, None, str(error))
    with suppress(UntrustedError):
        present = read_manifest(path)
        if "retry" not in present.about and _damage(folder, present) is None:
            return _about(present)
    code = "import sys; from glft_schema.kernels import build_here; build_here(*sys.argv[1:])"
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder) as private:  # the code generator's may be others'
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder), name, type_],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": private, MODE: "off"},
            cwd=folder,  # Python imports modules from there
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    try:
        return _about(read_manifest(path))
    except UntrustedError as error:
        lines = done.stderr.strip().splitlines()
        return BuiltKernel(identity.name, None, None, one_line(lines[-1] if lines else str(error)))


def _damage(folder: Path, manifest: Manifest) -> str | None:
    """Returns what is wrong with the library of a manifest, or None."""
    try:
        if manifest.library is not None:
            library_path(folder, manifest)
    except UntrustedError:
        return "its library is damaged: run glft kernels build again"
    return None


def build_here(folder: str, name: str, type_name: str) -> None:
    """Builds a kernel in this process, see `_present_or_built`."""
    step, tensors, constants = _steps(_quantized()[type_name])[name]
    build_step(Path(folder), _identity(name), step.function, step.last, tensors, constants)


def _steps(type_: TensorType) -> dict[str, Call]:
    """Returns the steps of an encoder, without and with an importance, by name and variant."""
    if not type_.has_encoder:
        return {}
    random = torch.Generator().manual_seed(0)
    weights, importance = torch.randn(SAMPLE, generator=random), torch.rand(SAMPLE[1], generator=random)
    for row, factor in enumerate(UNUSUAL, 1):
        weights[row] *= factor
    weights[1, ::2], importance[::7] = 1.0, 0.0
    with recorded() as calls, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of weights that become 0, and of stale kernels
        for given in [None] * (not type_.needs_importance) + [importance] * type_.takes_importance:
            type_.encode(weights, "w", importance=given)
    return calls


def _identity(name: str) -> Identity:
    step, _, variant = name.partition(" ")
    return STEPS[step].identity(variant)


def _about(manifest: Manifest, problem: str | None = None) -> BuiltKernel:
    about = manifest.about
    problem = about.get("problem") or problem
    return BuiltKernel(manifest.kernel, about.get("numbers_per_second"), about.get("times_as_fast"), problem)


def _stale(manifest: Manifest) -> str | None:
    """Returns what a kernel was built for, unless this process can use it."""
    if manifest.kernel not in STEPS:
        return "built for a step that is not there"
    name = f"{manifest.kernel} {manifest.key['variant']}"
    try:
        key = _identity(name).key()
    except ValueError as error:
        return str(error)
    return None if manifest.key == key else f"built for {difference(manifest.key, key)}"
