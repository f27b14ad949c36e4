"""The `glft` command, with one module per subcommand."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import warnings
from collections.abc import Iterable
from functools import partial

import click

from glft_schema import lazy
from glft_schema.cli.commands import Glft
from glft_schema.cli.completing import completer
from glft_schema.cli.options import bytes_of
from glft_schema.cli.terminal import BROKEN_PIPE, REFUSED, echo, unique, waiting
from glft_schema.errors import OptionError, quote
from glft_schema.limits import DEFAULTS, Limits
from glft_schema.storage.locations import session
from glft_schema.storage.system import configure_output, is_broken_pipe
from glft_schema.words import suggestion

ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]
LIMIT = f"Override a resource limit; goes before the command. Names: {', '.join(DEFAULTS)}. Repeatable."


@click.command(cls=Glft)
@click.version_option(package_name="glft_schema", message="glft_schema %(version)s", help="Print the version and exit.")
@click.option("--limit", metavar="NAME=NUMBER", multiple=True, help=LIMIT, shell_complete=completer("limits"))
@click.option("--download", is_flag=True, help="Download a URL as a whole if its server does not serve ranges.")
@click.pass_context
def app(context: click.Context, limit: tuple[str, ...], download: bool) -> None:
    """Inspects, verifies, compares, converts, edits and writes files of model weights.

    The exit code is 0 for success, 1 if a check fails or files differ, and 2 if a file or an
    option is refused.
    """
    most = ["download=1000000GiB"] if download and not any(text.startswith("download=") for text in limit) else []
    context.with_resource(limits_in([*limit, *most]))
    context.with_resource(session())


def limits_in(texts: Iterable[str]) -> Limits:
    """Parses ``NAME=NUMBER``. Raises OptionError for any other form, and for a repeated name."""
    limits: list[tuple[str, str, int]] = []
    for text in texts:
        name, _, number = text.partition("=")
        try:
            limits.append((name, number, bytes_of(number if name in DEFAULTS else "")))
        except OptionError:
            hint = "" if name in DEFAULTS else suggestion(name, DEFAULTS)
            raise OptionError(
                f"expected NAME=NUMBER, NAME being one of {', '.join(DEFAULTS)}, found {quote(text)}{hint}"
            ) from None
    return Limits(**unique("--limit", "name", limits))


def main(command: click.Command | None = None) -> None:
    """Runs a command line app, by default `glft`."""
    if sys.stderr and sys.stderr.isatty():
        lazy.while_waiting = partial(waiting, sys.stderr)
    gc.freeze()  # modules live until the process ends: no collection need scan them, the last one included
    warnings.showwarning = lambda message, *_: echo(f"glft: warning: {message}", error=True)
    # None if the parent process closed it
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for number in ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:  # exit as a shell does, but remove partial files first
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            configure_output(stream)
    try:
        try:
            (command or app)()
        finally:
            sys.stdout.flush()
    except ModuleNotFoundError as error:
        echo(f"glft: the package {error.name} is required but not installed", error=True)
        sys.exit(REFUSED)
    except OSError as error:  # such as a full disk; commands report errors of other files themselves
        _discard_output()
        if is_broken_pipe(error):
            sys.exit(BROKEN_PIPE)
        print(f"glft: standard output: {error.strerror or error}", file=sys.stderr)
        sys.exit(REFUSED)


def _discard_output() -> None:
    """Redirects stdout to the null device, so that flushing it at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
