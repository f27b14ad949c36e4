"""Builds kernels: compiles a function with AOTInductor, and compares it with the operations."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

from glft_schema.errors import one_line
from glft_schema.lazy import torch
from glft_schema.tensor_types.kernels.folder import UNFINISHED, Manifest, write_kernel
from glft_schema.tensor_types.kernels.in_use import Function, Identity, Kernel
from glft_schema.tensor_types.kernels.library import Library, Shim
from glft_schema.tensor_types.kernels.machine import OPTIONS

RUNS = 15  # of which the best counts
LENGTH = 8209  # of most tensors of a step's example: a prime, so that it equals no fixed size


def build_step(
    folder: Path,
    identity: Identity,
    step: Callable[..., tuple[torch.Tensor, ...] | None],
    last: bool,
    tensors: Sequence[torch.Tensor],
    constants: Mapping[str, Any],
) -> Manifest:
    """Compiles a step of encoders into the folder of kernels, see `engine.steps`.

    Args:
        folder: see `folder`.
        identity: of the kernel.
        step: the function.
        last: whether the last dims have any length, or else the first.
        tensors: an example of its arguments.
        constants: its keywords.

    Returns:
        The kernel's manifest, without a library if the kernel could not be compiled, wrote other
        bits, or was not faster than the operations; `about` says why.

    Raises:
        ValueError: as `fingerprint`.
    """
    axes = [(tensor, (tensor.dim() - 1 if last else 0) if tensor.dim() else None) for tensor in tensors]
    lengths = [tensor.shape[axis] for tensor, axis in axes if axis is not None]
    found = list(dict.fromkeys(lengths))
    most = max(found, key=lengths.count)  # other lengths are of tables, which indices must fit

    def example(length: int) -> list[torch.Tensor]:
        """Returns the tensors, most of them with another length."""
        return [
            tensor.clone() if axis is None or tensor.shape[axis] != most else _stretched(tensor, axis, length)
            for tensor, axis in axes
        ]

    given = example(LENGTH)
    made = step(*[tensor.clone() for tensor in given], **constants) or ()
    arguments = [*given, *(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in made)]
    names = [{} if axis is None else {axis: found.index(tensor.shape[axis])} for tensor, axis in axes]
    names += [{dim: found.index(most) for dim, size in enumerate(tensor.shape) if size == LENGTH} for tensor in made]
    dims = [torch.export.Dim(f"n{number}", min=2) for number in range(len(found))]
    dynamic = [{dim: dims[number] for dim, number in named.items()} for named in names]
    layout = [
        _layout(tensor, [-1 - named[dim] if dim in named else size for dim, size in enumerate(tensor.shape)])
        for tensor, named in zip(arguments, names, strict=True)
    ]

    def function(arguments: Sequence[torch.Tensor]) -> None:
        results = step(*arguments[: len(tensors)], **constants) or ()
        for out, result in zip(arguments[len(tensors) :], results, strict=True):
            out.copy_(result)

    def compared(kernel: Kernel) -> dict[str, Any]:
        for length in (2, 3, 17, 1000, LENGTH):
            arguments = example(length)
            expected, actual = ([tensor.clone() for tensor in arguments] for _ in range(2))
            results, made = step(*expected, **constants) or (), kernel.run(actual)
            if made is None:
                return {"problem": "it was compiled for another layout"}
            if not all(map(_equal, (*expected, *results), (*actual, *made))):
                return {"problem": f"it writes other numbers, for a length of {length}"}
        return _timed(
            lambda: kernel.run(arguments), lambda: step(*arguments, **constants), sum(map(torch.Tensor.numel, tensors))
        )

    return _built(folder, identity, function, arguments, layout, dynamic, compared)


def _stretched(tensor: torch.Tensor, axis: int, length: int) -> torch.Tensor:
    """Returns a tensor with another length of an axis, repeated or cut."""
    repeats = [-(-length // tensor.shape[axis]) if axis == dim else 1 for dim in range(tensor.dim())]
    return tensor.repeat(repeats).narrow(axis, 0, length).contiguous()


def _layout(tensor: torch.Tensor, sizes: list[int]) -> dict[str, Any]:
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "sizes": sizes}


def _built(
    folder: Path,
    identity: Identity,
    function: Function,
    arguments: list[torch.Tensor],
    layout: list[dict[str, Any]],
    dynamic: list[dict[int, Any]],
    compared: Callable[[Kernel], dict[str, Any]],
) -> Manifest:
    """Compiles, compares and writes a kernel."""
    key, about, library = identity.key(), dict[str, Any](), None
    try:
        library = _compiled(function, arguments, dynamic, dict(identity.options), folder)
        with tempfile.NamedTemporaryFile(prefix=UNFINISHED, suffix=".so", dir=folder) as file:
            file.write(library)
            file.flush()
            about = compared(Kernel(layout, Library(Path(file.name), Shim())))
    except Exception as error:  # from torch, the code generator, or the compilers that it starts
        about = {"problem": one_line(f"{type(error).__name__}: {error}"), "retry": True}
    if about.get("times_as_fast", 1) < 1:
        about["problem"] = f"it takes {1 / about['times_as_fast']:.2f} times as long as the operations"
    if "problem" in about:
        library = None
    manifest = Manifest(identity.name, key, sha256(library).hexdigest() if library else None, layout, about)
    write_kernel(folder, manifest, library)
    return manifest


def _compiled(
    function: Function,
    arguments: list[torch.Tensor],
    dynamic: list[dict[int, Any]],
    options: Mapping[str, Any],
    folder: Path,
) -> bytes:
    """Returns a library, the bytes of an ELF or Mach-O file."""

    class Module(torch.nn.Module):
        def forward(self, arguments: list[torch.Tensor]) -> tuple[()]:
            function(arguments)
            return ()

    from torch._inductor import aot_compile

    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder) as temporary, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the code generator's own
        program = torch.export.export(Module(), (arguments,), dynamic_shapes=(dynamic,), strict=True)
        path = os.path.join(temporary, "kernel.so")
        aot_compile(program.module(), (arguments,), options={**OPTIONS, **options, "aot_inductor.output_path": path})
        return Path(path).read_bytes()


def _timed(ours: Callable[[], object], theirs: Callable[[], object], numbers: int) -> dict[str, Any]:
    """Times a kernel against the operations, in one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # others may be building on this machine
    try:
        times = [(_seconds(ours), _seconds(theirs)) for _ in range(RUNS)]
    finally:
        torch.set_num_threads(threads)
    kernel, operations = map(min, zip(*times, strict=True))
    return {"numbers_per_second": round(numbers / kernel), "times_as_fast": round(operations / kernel, 2)}


def _equal(expected: torch.Tensor, found: torch.Tensor) -> bool:
    """Tells whether numbers are equal bit for bit; a NaN equals any NaN."""
    if not expected.is_floating_point():
        return torch.equal(expected, found)
    bits = getattr(torch, f"int{8 * expected.itemsize}")
    return bool(((expected.contiguous().view(bits) == found.view(bits)) | expected.isnan() & found.isnan()).all())


def _seconds(run: Callable[[], object]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start
