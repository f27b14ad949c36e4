"""`glft fuzz`: fuzzes this package, and writes test corpora for other readers."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, NamedTuple

from click.exceptions import Exit

from glft_schema.cli.options import argument, option
from glft_schema.cli.terminal import FAILED, INTERRUPTED, RefusedError, echo, file_errors, progress_bar, refuse_set
from glft_schema.errors import OptionError, install, safe
from glft_schema.files.container import Container
from glft_schema.formats.format import Format
from glft_schema.formats.registry import find_format, format_named
from glft_schema.storage.opening import read_regular
from glft_schema.storage.source import BytesSource

if TYPE_CHECKING:
    from glft_schema.display import Progress
    from glft_schema.testing.fuzzing import Case, Failure, Fuzzed


class FuzzTarget(NamedTuple):
    """The source of the files to try."""

    source: Format | bytes  # a format to generate files of, or a file to damage
    given: list[Case]  # tried first
    format: Format
    is_replay: bool = False  # tries only the given cases, those of a manifest


def fuzz(
    source: Annotated[str, argument("FILE-OR-FORMAT", "Weights file, manifest of an earlier run, or a format such as gguf.")],
    examples: Annotated[int, option("N", "Number of files to try.", min=0)] = 1000,
    seed: Annotated[int, option("N", "Random seed; reproducible in the same environment.")] = 0,
    corpus: Annotated[Path | None, option("DIR", "Also write a test corpus for other readers to this empty directory.")] = None,
    out: Annotated[Path, option("DIR", "Directory for the failing file, if any.")] = Path(),
) -> None:
    """Fuzzes the parser with generated and corrupted files.

    If the argument is a format, the inputs are generated files; if it is a weights file, damaged
    copies of it; if it is a manifest, the files that it lists.

    Each file must be parsed, or rejected with a field and an offset. A parsed file must be rebuilt
    byte for byte. Time and memory must stay bounded. For a file with one broken rule, exactly that
    rule must be reported.

    On a failure, the smallest failing file found is written to the --out directory, and the exit
    code is 1.

    Examples:
        glft fuzz gguf --examples 100
        glft fuzz model.gguf --seed 1
    """
    try:
        import hypothesis.configuration as _configured  # noqa: F401
    except ImportError:
        raise RefusedError(f"fuzz needs hypothesis: {install('fuzz')}") from None
    with file_errors(Path(source)), _hypothesis_storage():
        try:
            _fuzz(source, examples, seed, corpus, out)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise Exit(INTERRUPTED) from None


def _fuzz(source: str, examples: int, seed: int, corpus: Path | None, out: Path) -> None:
    from glft_schema.testing import corpora, fuzzing

    target = _target(source)
    if out != Path():
        _check_directory(out, "--out")
    if corpus is not None:
        _check_corpus(source, target, corpus)
    with progress_bar("fuzzing") as bar, _no_lost_interrupts(bar) as progress:
        count = 0 if target.is_replay else examples
        fuzzed = fuzzing.fuzz(target.source, count, seed=seed, progress=progress, given=target.given)
    if fuzzed.failure:
        options = "" if target.is_replay else f" --examples {examples} --seed {seed}"
        _report(fuzzed, fuzzed.failure, target, out, f"glft fuzz {quote(source)}{options}")
        raise Exit(INTERRUPTED if fuzzed.interrupted else FAILED)
    interrupted = "interrupted; " if fuzzed.interrupted else ""
    print(f"{safe(source)}: {interrupted}no failure in {_counts(fuzzed)}{'' if target.is_replay else f'; seed {seed}'}")
    if read := " and ".join(f"{count} of the {kind}" for kind, count in fuzzed.read.items() if count):
        print(f"parsed despite the damage: {read}")
    print(f"at most {fuzzed.seconds:.2f} s and {fuzzed.memory:,} bytes of memory per file")
    if fuzzed.interrupted:
        raise Exit(INTERRUPTED)
    if corpus is not None:
        cases = fuzzing.corpus(target.source, examples, seed=seed)
        manifest = corpora.write_corpus(cases, corpus, format=target.format, seed=seed)
        print(f"{manifest}: {len(cases)} files")


@contextmanager
def _hypothesis_storage() -> Iterator[None]:
    """Keeps hypothesis out of the working directory, unless the user has set its directory."""
    from hypothesis.configuration import set_hypothesis_home_dir

    if os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY"):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="glft-fuzz-") as directory:
        set_hypothesis_home_dir(directory)
        try:
            yield
        finally:
            set_hypothesis_home_dir(None)


@contextmanager
def _no_lost_interrupts(progress: Progress) -> Iterator[Progress]:
    """Raises, at the next call of progress, an interrupt that Python lost.

    Python cannot raise an interrupt that comes during garbage collection, for instance.
    """
    lost: list[object] = []
    hook = sys.unraisablehook

    def note_interrupt(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            lost.append(None)
        else:
            hook(unraisable)

    def checked_progress(text: str, done: float) -> None:
        if lost:
            raise KeyboardInterrupt
        progress(text, done)

    sys.unraisablehook = note_interrupt
    try:
        yield checked_progress
    finally:
        sys.unraisablehook = hook


def _target(source: str) -> FuzzTarget:
    from glft_schema.testing.corpora import format_of_corpus, read_corpus
    from glft_schema.testing.fuzzing import GIVEN, Case

    path = Path(source)
    if not path.exists() or path.is_dir():
        try:
            format = format_named(source)
        except OptionError as error:
            raise OptionError(f"{error}, which is not a file") from None
        return FuzzTarget(format, [], format)
    refuse_set(path)
    if path.suffix == ".json":
        return FuzzTarget(b"", read_corpus(path), format_of_corpus(path), is_replay=True)
    stored = read_regular(path)
    format = find_format(BytesSource(stored)) or Container.parse_file(path).format  # or raises, with a hint
    return FuzzTarget(stored, [Case(stored, GIVEN)], format)


def _check_directory(path: Path, option: str) -> None:
    """Raises OptionError unless `path` is or can become a writable directory."""
    parent = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not parent.is_dir():
        raise OptionError(f"expected a directory for {option}, found the file {safe(str(parent))}")
    try:
        tempfile.TemporaryFile(dir=parent).close()
    except OSError:
        raise OptionError(f"expected a writable directory for {option}, found {safe(str(parent))}") from None


def _check_corpus(source: str, target: FuzzTarget, corpus: Path) -> None:
    """Raises an error if a corpus of `target` is impossible, or cannot be written to `corpus`."""
    if target.is_replay:
        raise OptionError("expected a file or a format with --corpus, found a manifest")
    _check_directory(corpus, "--corpus")
    if corpus.is_dir() and any(corpus.iterdir()):
        raise OptionError(f"expected an empty directory for --corpus, found {safe(str(corpus))}")
    if isinstance(target.source, bytes):
        Container.parse_file(source)  # corruptions start from a valid file


def _counts(fuzzed: Fuzzed) -> str:
    total, distinct = fuzzed.counts.total(), len(fuzzed.hashes)
    kinds = ", ".join(f"{count} {kind}" for kind, count in fuzzed.counts.items() if count)
    return f"{total} files, {distinct} of them distinct: {kinds}" if total else "no files"


def _report(fuzzed: Fuzzed, failure: Failure, target: FuzzTarget, out: Path, command: str) -> None:
    """Prints the failure, writes its file, and prints the command that reproduces it."""
    from glft_schema.testing.corpora import write_corpus

    case, name = failure.case, f"fuzz-{failure.case.sha256[:12]}.json"
    echo(f"failed: {failure.error}")
    sys.stdout.flush()
    if fuzzed.interrupted:
        print(f"interrupted; a smaller file may exist. Before this failure, none in {_counts(fuzzed)}")
    label = "the file" if fuzzed.interrupted or case in target.given else "the smallest file found"
    label += f", {len(case.stored)} bytes, {case.kind},"
    try:
        about = {"problem": str(failure.error), "found_by": command}
        manifest = write_corpus([case], out, format=target.format, manifest=name, contents=False, **about)
    except OSError as error:
        print(f"{label} could not be written")
        print(f"glft: {safe(str(error.filename or out))}: {error.strerror or error}", file=sys.stderr)
        return
    print(f"{label} is next to {manifest}; to reproduce:")
    print(f"  glft fuzz {quote(str(manifest))}")
