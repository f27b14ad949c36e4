"""`glft kernels`: builds, lists and removes steps of encoders, compiled for this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from glft_schema.cli.commands import PLAIN
from glft_schema.cli.terminal import FAILED, echo, option_errors
from glft_schema.kernels import BuiltKernel, installed
from glft_schema.kernels import build as build_kernels
from glft_schema.kernels import remove as remove_kernels
from glft_schema.tensor_types.kernels.folder import kernel_folder

kernels = typer.Typer(no_args_is_help=True, help="Compiles encoders for this machine.", **PLAIN)
Types = Annotated[list[str] | None, typer.Argument(metavar="[TYPE]...", help="Tensor types. Default: all quantized types.")]


@kernels.command()
def build(
    types: Types = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", min=1, help="Processes. Default: one per two processors.")] = None,
) -> None:
    """Compiles steps of the encoders of tensor types, to quantize faster.

    Takes 5 to 25 seconds per step, needs a C++ compiler, and is done once per machine and version
    of torch. All programs of this user then use the kernels unasked. A kernel is kept only if it
    writes the same numbers as torch's operations one by one, in less time. Dequantizing needs no
    kernels.

    The folder is GLFT_KERNELS_FOLDER, or glft_schema/kernels in the user's folder of caches. The
    variable GLFT_KERNELS is "off" to use no kernels, or "auto" to build missing ones in the
    background.
    """
    with option_errors():
        found = build_kernels(types or (), jobs=jobs, built=lambda kernel: echo(_line(kernel)))
    if not found:
        echo("no kernels: the encoders of these types have no steps to compile")
    elif all(kernel.problem for kernel in found):
        raise typer.Exit(FAILED)


@kernels.command("list")
def list_() -> None:
    """Lists the kernels, and why one is not used."""
    with option_errors():
        found = installed()
    echo(*(map(_line, found) if found else [f"no kernels in {kernel_folder()}"]))


@kernels.command()
def remove(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Steps. Default: all.")] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Only damaged kernels, and those for another torch or machine.")
    ] = False,
) -> None:
    """Removes kernels."""
    with option_errors():
        count = remove_kernels(names or (), stale=stale)
    echo(f"removed {count} kernel{'' if count == 1 else 's'}")


def _line(kernel: BuiltKernel) -> str:
    if kernel.problem:
        return f"{kernel.name:16} not used: {kernel.problem}"
    assert kernel.numbers_per_second is not None
    speed = f"{kernel.numbers_per_second * 1e-9:5.1f} billion numbers/s in one thread"
    return f"{kernel.name:16} {speed}, {kernel.times_as_fast:.1f} times as fast as operations"
