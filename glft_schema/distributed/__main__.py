"""`python -m glft_schema.distributed`: `glft quantize` and `glft convert`, shared by all ranks."""

from __future__ import annotations

import os

# Before torch is imported: if another rank is gone, its store would log the stack in C++.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import wraps
from typing import Any, TextIO, cast

import click
from click.exceptions import Exit

from glft_schema.cli import main
from glft_schema.cli.commands import Commands
from glft_schema.cli.convert import convert
from glft_schema.cli.options import command as made_command
from glft_schema.cli.quantize import quantize
from glft_schema.cli.terminal import FAILED, REFUSED, echo
from glft_schema.distributed.ranks import TIMEOUT, Ranks, RanksError
from glft_schema.distributed.writing import together
from glft_schema.errors import OptionError, QuantizationWarning
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
    After a failure, the same command resumes the unfinished file; torchrun --max-restarts repeats
    it.
    """


class _RefusedError(ValueError):
    """An error that a command has reported."""


class _Stderr:
    """Standard error that records the last line written to it.

    Args:
        stream: the real standard error.
        is_first: whether this is rank 0; other ranks show no progress bars.
    """

    def __init__(self, stream: Any, is_first: bool) -> None:
        self.last = ""
        self._stream, self._is_first = stream, is_first

    def write(self, text: str) -> int:
        self.last = text.strip() or self.last
        return int(self._stream.write(text))

    def isatty(self) -> bool:
        return self._is_first and bool(self._stream.isatty())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _run_on_all(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command that all ranks run together. Rank 0 prints the report."""

    @wraps(command)
    def run(**arguments: Any) -> None:
        try:
            context = click.get_current_context()
            ranks = Ranks.of_environment(context.find_root().params["timeout"])
            with _leaving(ranks), _speaking(ranks) as stderr, together(_inputs(arguments), ranks=ranks) as context.obj:
                try:
                    command(**arguments)
                except Exit as done:
                    if done.exit_code:
                        raise _RefusedError(stderr.last.removeprefix("glft: ")) from None
        except _RefusedError:
            raise Exit(REFUSED) from None
        except (RanksError, OptionError) as error:
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
def _speaking(ranks: Ranks) -> Iterator[_Stderr]:
    """Lets rank 0 print the report and a progress bar, the others only errors and lost weights."""
    stderr = _Stderr(sys.stderr, ranks.is_first)
    with ExitStack() as opened:
        opened.enter_context(redirect_stderr(cast(TextIO, stderr)))
        if not ranks.is_first:
            opened.enter_context(redirect_stdout(opened.enter_context(open(os.devnull, "w"))))
            opened.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", QuantizationWarning)
        yield stderr


for command in (quantize, convert):
    app.add_command(made_command(_run_on_all(command)))

if __name__ == "__main__":
    main(app)
