"""`python -m glft_schema.distributed`: `glft quantize` and `glft convert`, shared by all ranks."""

from __future__ import annotations

import os

# Before torch is imported: if another rank is gone, its store would log the stack in C++.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import wraps
from typing import Any

import click
from click.exceptions import Exit

from glft_schema.cli import main
from glft_schema.cli.commands import Commands
from glft_schema.cli.convert import convert
from glft_schema.cli.options import command as made_command
from glft_schema.cli.quantize import quantize
from glft_schema.cli.terminal import FAILED, echo
from glft_schema.distributed.ranks import TIMEOUT, Ranks, RanksError
from glft_schema.distributed.writing import together
from glft_schema.errors import QuantizationWarning
from glft_schema.storage.source import StrPath

INPUTS = ("source", "like", "imatrix", "recipe", "tensor_type_file")  # arguments of the commands


@click.command(cls=Commands)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=TIMEOUT,
    show_default=True,
    help="Give up if no rank makes progress for this long.",
)
def app(timeout: float) -> None:
    """Quantizes and converts models in several processes, which a launcher starts:

    torchrun --nproc-per-node N [--nnodes M] -m glft_schema.distributed quantize IN OUT Q4_K_M

    All processes need IN and OUT on a shared file system. OUT has the same bytes as with glft.
    If a process fails, all end, and OUT is as before.
    """


def _run_on_all(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command that all ranks run together. Rank 0 prints the report."""

    @wraps(command)
    def run(**arguments: Any) -> None:
        context = click.get_current_context()
        try:
            ranks = Ranks.of_environment(context.find_root().params["timeout"])
            with _leaving(ranks), _quiet(ranks), together(_inputs(arguments), ranks=ranks) as context.obj:
                command(**arguments)
        except RanksError as error:
            echo(f"glft: {error}", error=True)
            raise Exit(FAILED) from None

    return run


@contextmanager
def _leaving(ranks: Ranks) -> Iterator[None]:
    try:
        yield
    finally:
        ranks.leave()


def _inputs(arguments: Mapping[str, Any]) -> list[StrPath]:
    given = {name: arguments[name] for name in INPUTS if arguments.get(name)}
    return [path for name, path in given.items() if name != "recipe" or os.path.isfile(path)]


@contextmanager
def _quiet(ranks: Ranks) -> Iterator[None]:
    """Lets rank 0 print the report, and the others only errors and lost weights."""
    with ExitStack() as opened:
        if not ranks.is_first:
            opened.enter_context(redirect_stdout(opened.enter_context(open(os.devnull, "w", errors="backslashreplace"))))
            opened.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", QuantizationWarning)
        yield


for command in (quantize, convert):
    app.add_command(made_command(_run_on_all(command)))

if __name__ == "__main__":
    main(app)
