"""Output, error lines, progress bars and options that the commands share."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from glft_schema.cli.options import Input
from glft_schema.display import MAX_LINE, Progress, size_text
from glft_schema.errors import FormatError, OptionError, TensorError, TruncatedError, printable, quote
from glft_schema.files.shards import NAME, shard_path
from glft_schema.formats.registry import indexed_format
from glft_schema.storage.locations import is_remote, shown, without_secrets
from glft_schema.storage.source import StrPath
from glft_schema.storage.system import is_broken_pipe
from glft_schema.words import suggestion

if TYPE_CHECKING:
    from glft_schema.weights.save import Writer

FAILED = 1  # exit code of a check that failed
INTERRUPTED, BROKEN_PIPE = 130, 141  # a shell's exit codes for SIGINT and SIGPIPE
REFUSED = 2  # exit code for bad input, as click's for a bad option
RED, GREEN, YELLOW, PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"
STARTED = time.monotonic()
COLOUR = re.compile("(\x1b\\[[0-9;]*m)")

Value = TypeVar("Value")


def echo(*lines: str, error: bool = False, coloured: bool = False, colour: str = "") -> None:
    """Prints lines, cut to `MAX_LINE`, with control characters and newlines escaped.

    Args:
        lines: the lines.
        error: print to stderr.
        coloured: keep escape sequences of colours.
        colour: escape sequence of a colour for whole lines, if the stream is a terminal.
    """
    for line in lines:
        parts = COLOUR.split(line) if coloured else [line]
        text = "".join(part if i % 2 else printable(part, MAX_LINE) for i, part in enumerate(parts))
        if colour and has_colours(sys.stderr if error else sys.stdout):
            text = f"{colour}{text}{PLAIN}"
        elif error and text.startswith("glft:") and has_colours(sys.stderr):
            text = f"{RED}glft:{PLAIN}{text[5:]}"
        try:
            print(text, file=sys.stderr if error else sys.stdout)
        except OSError as failure:
            if is_broken_pipe(failure):
                raise BrokenPipeError(errno.EPIPE, failure.strerror) from None
            failure.filename = "standard output"
            raise


def colour(text: str, colour: str) -> str:
    """Returns text with an escape sequence of a colour, if stdout is a terminal."""
    return f"{colour}{text}{PLAIN}" if has_colours(sys.stdout) else text


def has_colours(stream: Any) -> bool:
    """Returns whether to use colours: on a terminal, unless ``NO_COLOR`` is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def echo_written(paths: Sequence[str | Path], *following: object) -> None:
    """Prints the size of written files, the time taken, and a command to run next.

    Prints nothing if stdout is not a terminal.
    """
    if sys.stdout.isatty():
        files = [file for path in map(Path, paths) for file in (path.iterdir() if path.is_dir() else [path])]
        nbytes = size_text(sum(file.stat().st_size for file in files))
        rest = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        echo(f"wrote {paths[0]}{rest}: {nbytes} in {time.monotonic() - STARTED:.1f} s")
        echo(f"next: glft {shlex.join(map(str, following))}")


class RefusedError(click.ClickException, ValueError):
    """A refused file or option: one line on stderr, and exit code 2."""

    exit_code = REFUSED

    def show(self, file: Any = None) -> None:
        """Prints the line."""
        echo(f"glft: {without_secrets(self.message)}", error=True)


@contextmanager
def file_errors(path: StrPath, tensors: StrPath | None = None) -> Iterator[None]:
    """Turns errors about files into `RefusedError`.

    Args:
        path: the file to name, unless the error names one.
        tensors: the file to name for an error about a tensor; `path` by default.
    """
    try:
        yield
    except TensorError as error:
        path, reason = tensors or path, str(error)
    except FormatError as error:
        path, reason = error.file or path, f"{error.text} [{error.rule}]" if error.rule else error.text
        reason += f"; to raise the limit: glft --limit {error.limit}=NUMBER ..." if error.limit else ""
        # after a wrong n_kv, the first row of tensors has too long a name, or impossible dims
        is_misplaced = isinstance(error, TruncatedError) or error.path.endswith(" -> 0 -> dims")
        if is_misplaced and "truncated" not in reason:
            reason += "; the file may be truncated, or a count, length or offset before it is wrong"
    except BrokenPipeError:
        raise  # the reader of our output has closed it
    except OSError as error:
        reason = error.strerror or str(error)
        path = error.filename if isinstance(error.filename, str) else path
        reason += _neighbour(Path(path)) if isinstance(error, FileNotFoundError) and not is_remote(path) else ""
    else:
        return
    raise RefusedError(f"{shown(path)}: {reason}")


def _neighbour(path: Path) -> str:
    """Returns the end of an error about a missing file: a file beside it that may be meant."""
    try:
        return suggestion(path.name, {*os.listdir(path.parent)} - {path.name})
    except OSError:
        return ""


def unique(option: str, what: str, uses: Iterable[tuple[str, str, Value]]) -> dict[str, Value]:
    """Returns the values of a repeatable option by key.

    Args:
        option: the option's name, for the error.
        what: what the option calls its key, for the error.
        uses: key, text and value of each use of the option.

    Raises:
        OptionError: for a repeated key, whose first value would be lost.
    """
    texts: dict[str, str] = {}
    values: dict[str, Value] = {}
    for key, text, value in uses:
        if key in texts:
            both = f"{quote(texts[key])} and {quote(text)}"
            raise OptionError(f"{option}: expected each {what} once, found {quote(key)} twice: {both}")
        texts[key], values[key] = text, value
    return values


def common_ranks() -> Writer | None:
    """Returns the processes that run the command together, or None for one process."""
    context = click.get_current_context(silent=True)
    return context.obj if context else None


def refuse_set(path: Input) -> None:
    """Raises OptionError if `path` is a set of files, by its index or directory."""
    if path.is_dir() or indexed_format(path):
        raise OptionError("expected one file, found a set: give its files one by one")


def refuse_overwriting(out: Path, *sources: Input | None) -> None:
    """Raises OptionError if writing `out` would replace a file that is read.

    A source may be a file, the first file of a set, an index of shards, or a folder of shards.
    """
    for source in (source for source in sources if isinstance(source, Path) and out.exists()):
        folder = source if source.is_dir() else source.parent
        in_folder = source.is_dir() or indexed_format(source) is not None
        inputs = [source]
        if name := NAME.fullmatch(str(source)):
            shards = (shard_path(name["prefix"], i, int(name["count"]), name["ending"]) for i in range(int(name["count"])))
            inputs += filter(Path.exists, shards)
        if any(map(out.samefile, inputs)) or (in_folder and out.parent.samefile(folder)):
            raise OptionError("the output would overwrite the input")


@contextmanager
def waiting(stream: TextIO, doing: str, patience: float = 0.5) -> Iterator[None]:
    """Shows what is being done if the block takes longer than `patience` seconds."""
    shown: list[bool] = []

    def show() -> None:
        shown.append(True)
        print(f"{printable(doing, 70)} ...", end="", file=stream, flush=True)

    timer = Timer(patience, show)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        print("\r\x1b[K" * len(shown), end="", file=stream, flush=True)


def rate_text(speed: float | None) -> str:
    """Returns the share done per second as text; empty if it is unknown or at least 100%."""
    return f"{speed:.1%}/s" if speed and speed < 1 else ""


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """Shows a bar on stderr while the block runs, if stderr is a terminal.

    Yields:
        A function to call with the current item and the share that is done, from 0 to 1.
    """
    ranks = common_ranks()
    if not sys.stderr.isatty() or (ranks and not ranks.is_first):
        yield lambda text, done: None
        return
    from rich import progress
    from rich.console import Console
    from rich.markup import escape
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            return Text(rate_text(task.speed))

    named = progress.TextColumn("{task.description}")
    columns = (named, progress.BarColumn(), progress.TaskProgressColumn(), Rate(), progress.TimeRemainingColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda text, done: bar.update(task, description=escape(f"{title}: {printable(text, 50)}"), completed=done)
