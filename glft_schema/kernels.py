"""Kernels: formulas compiled ahead of time for this machine; see `tensor_types.kernels`."""

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
from functools import partial
from pathlib import Path
from typing import NamedTuple

from glft_schema.errors import OptionError, one_line, shown
from glft_schema.formats.registry import FORMATS
from glft_schema.lazy import torch
from glft_schema.storage.atomic import lock
from glft_schema.storage.source import BytesSource
from glft_schema.tensor_types.engine.decoders import CONVERTED, convert, converter, decoder, decoding
from glft_schema.tensor_types.engine.decoding import dequantize_chunks
from glft_schema.tensor_types.engine.steps import STEPS, Call, recorded
from glft_schema.tensor_types.kernels.building import Example, build_kernel, build_step
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
from glft_schema.tensor_types.kernels.in_use import MODE, Function, Identity, difference, forget_kernels
from glft_schema.tensor_types.tensor_type import TensorType

__all__ = ["BuiltKernel", "build", "installed", "remove"]

ROWS = (2, 3, 17, 1000)  # of the examples that a kernel is compared on, besides those that it is timed on
TIMED = 1 << 22  # numbers
SAMPLE = (64, 2048)  # weights that the steps of encoders are recorded from
UNUSUAL = (0.0, 0.0, 1e-44, 1e-30, 1e-8, 1e-4, 100.0)  # by which some of its rows are multiplied


class BuiltKernel(NamedTuple):
    """A kernel in the folder.

    Attributes:
        name: a tensor type, as in schemes, a dtype that weights are converted to, or a step of
            encoders.
        numbers_per_second: that one thread writes; None if the kernel failed.
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
    encoders: bool = False,
    jobs: int | None = None,
    built: Callable[[BuiltKernel], object] = lambda kernel: None,
) -> list[BuiltKernel]:
    """Builds kernels into the folder of kernels: ``GLFT_KERNELS_FOLDER``, or
    ``~/.cache/glft_schema/kernels``.

    Building takes 5 to 25 seconds per kernel and requires a C++ compiler. A kernel of a type is
    kept only if it writes the same numbers as the operations one by one, in less time. Existing
    kernels are kept.

    Args:
        types: as in schemes; by default all quantized types, except those that are registered only
            in this process. Two kernels that convert to float16 and bfloat16 are added.
        encoders: also build kernels for the steps of the types' encoders.
        jobs: processes; by default one per two processors, at most eight.
        built: called with each kernel when it is there.

    Raises:
        OptionError: for an unknown type, or if the folder cannot be used.
    """
    quantized, folder = _quantized(), kernel_folder()
    names = [*([_known(name, quantized) for name in types] or quantized), *CONVERTED]
    try:
        make_folder(folder)
    except (UntrustedError, OSError) as error:
        raise OptionError(f"no kernels can be built: {error}") from None
    kernels, types_of_steps = [], dict[str, str]()
    if encoders:
        types_of_steps = {step: name for name in names if name in quantized for step in _steps(quantized[name])}
    with _alone(folder), ThreadPoolExecutor(jobs or min(max(available_processors() // 2, 1), 8)) as pool:
        futures = [
            pool.submit(_present_or_built, folder.resolve(), name, types_of_steps.get(name, ""))
            for name in (*names, *types_of_steps)
        ]
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
        names: of types or dtypes; by default all, also damaged kernels.
        stale: only those that were built for something else, or are damaged.

    Raises:
        OptionError: for an unknown name, or if the folder cannot be used.
    """
    quantized, count = _quantized(), 0
    chosen = {name.lower() if name.lower() in CONVERTED else _known(name, quantized) for name in names}
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
    return {type_.scheme: type_ for format in FORMATS for type_ in format.types if not type_.exact}


def _known(name: str, quantized: Mapping[str, TensorType]) -> str:
    if name.lower() not in quantized:
        raise OptionError(f"expected a quantized type, found {shown(name)}")
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


def _present_or_built(folder: Path, name: str, type_: str = "") -> BuiltKernel:
    """Returns a kernel that is there and whole, or builds it in a process of its own.

    Args:
        folder: of kernels.
        name: of a type or dtype, or a step and its variant.
        type_: the type whose encoder has the step.
    """
    try:
        identity = _identity(name)
        path = folder / file_name(identity.name, identity.key())
    except ValueError as error:
        return BuiltKernel(name, None, None, str(error))
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
        return BuiltKernel(name, None, None, one_line(lines[-1] if lines else str(error)))


def _damage(folder: Path, manifest: Manifest) -> str | None:
    """Returns what is wrong with the library of a manifest, or None."""
    try:
        if manifest.library is not None:
            library_path(folder, manifest)
    except UntrustedError:
        return "its library is damaged: run glft kernels build again"
    return None


def build_here(folder: str, name: str, type_name: str) -> None:
    """Builds a kernel in this process, see `_present_or_built`.

    Kernels of formulas are compared on random bits: also NaN and infinite scales occur.
    """
    if type_name:
        step, tensors, constants = _steps(_quantized()[type_name])[name]
        build_step(Path(folder), _identity(name), step.function, step.last, tensors, constants)
        return
    if (type_ := _quantized().get(name)) is None:
        make, count = partial(_converting, getattr(torch, name)), TIMED
    else:
        make, count = partial(_decoding, type_), TIMED // _cell(type_)
    *_, (function, _) = made = [make(rows) for rows in (*ROWS, count)]
    examples = [example for _, example in made]
    build_kernel(Path(folder), _identity(name), function, examples, only_if_faster=type_ is not None)


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


def _decoding(type_: TensorType, rows: int) -> tuple[Function, Example]:
    cell = _cell(type_)
    payload = BytesSource(_random(type_.nbytes([rows, cell])).numpy().tobytes())
    fields = type_.columns(type_.cut(payload, 0, [rows, cell], range(rows), range(cell)))
    out = torch.empty(rows, cell)
    function, seen = decoding(type_.formula, fields, out)
    return function, Example([*fields.values(), seen], out, lambda: dequantize_chunks(type_.formula, fields, out))


def _converting(dtype: torch.dtype, rows: int) -> tuple[Function, Example]:
    arguments = [_random(4 * rows).view(torch.float32), torch.empty(rows, dtype=dtype)]
    return convert, Example(arguments, arguments[1], lambda: convert(arguments))


def _random(nbytes: int) -> torch.Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(nbytes))


def _identity(name: str) -> Identity:
    step, _, variant = name.partition(" ")
    if step in STEPS:
        return STEPS[step].identity(variant)
    if (type_ := _quantized().get(name)) is None:
        return converter(name)
    return decoder(name, type_.formula, _cell(type_))


def _cell(type_: TensorType) -> int:
    return type_.kernel_cell(type_.least_row)


def _about(manifest: Manifest, problem: str | None = None) -> BuiltKernel:
    about = manifest.about
    problem = about.get("problem") or problem
    return BuiltKernel(manifest.kernel, about.get("numbers_per_second"), about.get("times_as_fast"), problem)


def _stale(manifest: Manifest) -> str | None:
    """Returns what a kernel was built for, unless this process can use it."""
    if manifest.kernel not in {*_quantized(), *CONVERTED, *STEPS}:
        return "built for a type that is not registered"
    name = f"{manifest.kernel} {manifest.key['variant']}" if manifest.kernel in STEPS else manifest.kernel
    try:
        key = _identity(name).key()
    except ValueError as error:
        return str(error)
    return None if manifest.key == key else f"built for {difference(manifest.key, key)}"
