"""`glft kernels`: builds, lists and removes steps of encoders, compiled for this machine."""

from __future__ import annotations

from typing import Annotated

from click.exceptions import Exit

from glft_schema.cli.commands import Commands
from glft_schema.cli.options import Texts, argument, command, flag, option
from glft_schema.cli.terminal import FAILED, echo, option_errors
from glft_schema.display import counted
from glft_schema.kernels import BuiltKernel, installed
from glft_schema.kernels import build as build_kernels
from glft_schema.kernels import remove as remove_kernels
from glft_schema.tensor_types.kernels.folder import kernel_folder


def build(
    types: Annotated[Texts, argument("[TYPE]...", "Tensor types. Default: all quantized types.")] = (),
    jobs: Annotated[int | None, option("N", "Processes. Default: one per two processors.", min=1)] = None,
) -> None:
    """Compiles steps of the encoders of tensor types, to quantize faster.

    Takes 5 to 25 seconds per step, needs a C++ compiler, and is done once per machine and version
    of torch. All programs of this user then use the kernels unasked. A kernel is kept only if it
    writes the same numbers as torch's operations one by one, in less time. Dequantizing needs no
    kernels.

    The folder is GLFT_KERNELS_FOLDER, or glft_schema/kernels in the user's folder of caches. The
    variable GLFT_KERNELS is "off" to use no kernels, or "auto" to build missing ones in the
    background.

    Examples:
        glft kernels build
        glft kernels build q4_k q6_k --jobs 2
    """
    with option_errors():
        found = build_kernels(types, jobs=jobs, built=lambda kernel: echo(_line(kernel)))
    if not found:
        echo("no kernels: the encoders of these types have no steps to compile")
    elif all(kernel.problem for kernel in found):
        raise Exit(FAILED)


def list_() -> None:
    """Lists the kernels, and why one is not used."""
    with option_errors():
        found = installed()
    echo(*(map(_line, found) if found else [f"no kernels in {kernel_folder()}"]))


def remove(
    names: Annotated[Texts, argument("[NAME]...", "Steps. Default: all.")] = (),
    stale: Annotated[bool, flag("Only damaged kernels, and those for another torch or machine.")] = False,
) -> None:
    """Removes kernels.

    Examples:
        glft kernels remove
        glft kernels remove --stale
    """
    with option_errors():
        count = remove_kernels(names, stale=stale)
    echo(f"removed {counted(count, 'kernel')}")


commands = [command(function) for function in (build, list_, remove)]
kernels = Commands("kernels", commands={made.name or "": made for made in commands}, help="Compiles encoders for this machine.")


def _line(kernel: BuiltKernel) -> str:
    if kernel.problem:
        return f"{kernel.name:16} not used: {kernel.problem}"
    assert kernel.numbers_per_second is not None
    speed = f"{kernel.numbers_per_second * 1e-9:5.1f} billion numbers/s in one thread"
    return f"{kernel.name:16} {speed}, {kernel.times_as_fast:.1f} times as fast as operations"
