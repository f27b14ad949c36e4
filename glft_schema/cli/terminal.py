"""What the verbs share: how they print, a line for an error, progress bars, tables, and options that appear in several."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from glft_schema.display import Progress, aligned
from glft_schema.errors import FormatError, OptionError, TensorError, printable, shown
from glft_schema.errors import safe as safe  # which the verbs take from here
from glft_schema.files.shards import NAME, shard_path
from glft_schema.weights.checkpoints import INDEX_SUFFIX

FAILED = 1  # a verification that did not hold
REFUSED = 2  # bad input, as for a wrong option
WIDEST = 1000  # characters of a line that are printed
COLOUR = re.compile("(\x1b\\[[0-9;]*m)")

Value = TypeVar("Value")
Exclude = Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Leave out tensors that match. Repeatable.")]


def say(*lines: str, error: bool = False, coloured: bool = False) -> None:
    """Prints lines, cut to `WIDEST`. Whatever they are made of steers no terminal, and begins no line of its own.

    Args:
        lines: what to print, one each.
        error: to stderr.
        coloured: let colours through.
    """
    for line in lines:
        parts = COLOUR.split(line) if coloured else [line]
        text = "".join(part if i % 2 else printable(part, WIDEST) for i, part in enumerate(parts))
        try:
            print(text, file=sys.stderr if error else sys.stdout)
        except OSError as failed:
            failed.filename = "standard output"
            raise


@contextmanager
def blame(path: os.PathLike[str], tensors: os.PathLike[str] | None = None) -> Iterator[None]:
    """Turns an error about `path`, or about the file that it names itself, into one line on stderr and exit code 2.

    Args:
        path: the file to blame.
        tensors: the file to blame for a tensor; `path` unless given.
    """
    try:
        with request():
            yield
    except TensorError as error:
        path, reason = tensors or path, str(error)
    except FormatError as error:
        path, reason = Path(error.file or path), f"{error.text} [{error.rule}]" if error.rule else error.text
        reason += f"; glft --limit {error.limit}=NUMBER ... raises it" if error.limit else ""
    except BrokenPipeError:
        raise  # whoever reads our output has had enough
    except OSError as error:
        reason = error.strerror or str(error)
        path = Path(error.filename) if isinstance(error.filename, str) else path
    else:
        return
    say(f"glft: {path}: {reason}", error=True)
    raise typer.Exit(REFUSED)


@contextmanager
def request() -> Iterator[None]:
    """Turns an error in what was asked for into one line on stderr and exit code 2."""
    try:
        yield
    except OptionError as error:
        say(f"glft: {error}", error=True)  # of the request, not of a file
        raise typer.Exit(REFUSED) from None


def once(option: str, what: str, given: Iterable[tuple[str, str, Value]]) -> dict[str, Value]:
    """Returns the values of a repeatable option by key.

    Args:
        option: the option, for the error.
        what: what a key of the option is called.
        given: key, text and value of each use of the option.

    Raises:
        OptionError: for a repeated key, whose first value would be lost.
    """
    texts: dict[str, str] = {}
    values: dict[str, Value] = {}
    for key, text, value in given:
        if key in texts:
            both = f"{shown(texts[key])} and {shown(text)}"
            raise OptionError(f"{option}: expected each {what} once, found {shown(key)} twice: {both}")
        texts[key], values[key] = text, value
    return values


def refuse_overwriting(out: Path, source: Path) -> None:
    """Raises OptionError where writing `out` would replace what is read from `source`: a file, a set, or a folder of shards."""
    if not out.exists():
        return
    folder = source if source.is_dir() else source.parent
    of_folder = source.is_dir() or source.name.endswith(INDEX_SUFFIX)
    named = NAME.fullmatch(str(source))
    shards = [shard_path(named["prefix"], i, int(named["count"])) for i in range(int(named["count"]))] if named else []
    read = [source, *(shard for shard in shards if shard.exists())]
    if any(out.samefile(path) for path in read) or (of_folder and out.parent.samefile(folder)):
        raise OptionError("expected another file to write to, found the one to be read")


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """Shows a bar on stderr while the block runs, where that is a terminal.

    Yields:
        A function to call with what is being done and how much of the whole is done, from 0 to 1.
    """
    if not sys.stderr.isatty():
        yield lambda text, done: None
        return
    from rich import progress
    from rich.console import Console
    from rich.markup import escape

    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TimeElapsedColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda text, done: bar.update(task, description=escape(f"{title}: {printable(text, 50)}"), completed=done)


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], right: int) -> list[str]:
    """Returns aligned lines; the last `right` columns are numbers."""
    return aligned((head, *rows), right)
