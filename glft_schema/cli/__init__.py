"""The `glft` command: one module per verb."""

from __future__ import annotations

import io
import sys
import warnings

import typer

from glft_schema.cli.export import export
from glft_schema.cli.inspect import inspect
from glft_schema.cli.lab import lab
from glft_schema.cli.verify import verify

app = typer.Typer(
    help="Model-weight containers: export, inspect, verify.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (export, inspect, lab, verify):
    app.command()(verb)


def main() -> None:
    """Runs the command line."""
    warnings.showwarning = _one_line
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names that the terminal's encoding does not have
    app()


def _one_line(message: Warning | str, *place: object, **more: object) -> None:
    print(f"glft: warning: {message}", file=sys.stderr)
