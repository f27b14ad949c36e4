"""The `glft` command: one module per verb."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import warnings
from importlib import metadata
from typing import Annotated, TextIO

import typer

from glft_schema.cli.convert import convert
from glft_schema.cli.explain import explain
from glft_schema.cli.fuzz import fuzz
from glft_schema.cli.get_tensor import get_tensor
from glft_schema.cli.hash import hash
from glft_schema.cli.inspect import inspect
from glft_schema.cli.lab import lab
from glft_schema.cli.schema import schema
from glft_schema.cli.split import merge, split
from glft_schema.cli.terminal import FAILED, REFUSED, once, request, say
from glft_schema.cli.verify import verify
from glft_schema.cli.view import view
from glft_schema.errors import OptionError, shown
from glft_schema.limits import DEFAULTS, Limits

app = typer.Typer(
    no_args_is_help=True,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (convert, explain, fuzz, get_tensor, hash, inspect, lab, merge, schema, split, verify, view):
    app.command()(verb)


VERSION = typer.Option("--version", is_eager=True, help="Print the version and exit.")
LIMIT = typer.Option("--limit", metavar="NAME=NUMBER", help=f"Raise a limit, before the verb: {', '.join(DEFAULTS)}.")


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[bool, VERSION] = False,
    limit: Annotated[list[str] | None, LIMIT] = None,
) -> None:
    """Model-weight containers, GLFT and GGUF: read, write, convert, check and explain them."""
    if version:
        print(f"glft_schema {metadata.version('glft_schema')}")
        raise typer.Exit
    with request():
        context.with_resource(limits_in(limit or []))


def limits_in(given: list[str]) -> Limits:
    """Returns the limits that are given as ``NAME=NUMBER``. Raises OptionError for anything else, and for a repeated name."""
    limits: list[tuple[str, str, int]] = []
    for text in given:
        name, _, number = text.partition("=")
        if name not in DEFAULTS or not re.fullmatch("[0-9]{1,20}", number):
            raise OptionError(f"expected NAME=NUMBER with one of {', '.join(DEFAULTS)}, found {shown(text)}")
        limits.append((name, number, int(number)))
    return Limits(**once("--limit", "name", limits))


def main() -> None:
    """Runs the command line."""
    warnings.showwarning = _one_line
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()  # what whoever started us has closed
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names that the terminal's encoding does not have
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except ModuleNotFoundError as error:  # torch above all: verbs that compute no tensor run without it
        say(f"glft: this needs the package {error.name}, which is not installed", error=True)
        sys.exit(REFUSED)
    except BrokenPipeError:  # whoever reads our output has had enough
        _leave_output()
        sys.exit(FAILED)
    except OSError as error:  # a full disk that the output goes to; verbs say themselves what is wrong with files
        _leave_output()
        print(f"glft: standard output: {error.strerror or error}", file=sys.stderr)
        sys.exit(REFUSED)


def _nowhere() -> TextIO:
    return open(os.devnull, "w")


def _end(number: int, frame: object) -> None:
    """Ends as shells have it, but only after files that are half written are removed."""
    sys.exit(128 + number)


def _leave_output() -> None:
    """Sends elsewhere what is still to be printed at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(message: Warning | str, *place: object, **more: object) -> None:
    say(f"glft: warning: {message}", error=True)
