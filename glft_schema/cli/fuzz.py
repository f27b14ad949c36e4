"""`glft fuzz FILE-OR-FORMAT`: does this package keep its promises for any bytes? And files for the tests of other readers."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from glft_schema.cli.terminal import FAILED, REFUSED, blame, progress_bar, say
from glft_schema.errors import OptionError, safe
from glft_schema.files.container import Container
from glft_schema.formats.format import Format
from glft_schema.formats.registry import FORMATS, format_named
from glft_schema.storage.file_source import read_regular

if TYPE_CHECKING:
    from glft_schema.display import Progress
    from glft_schema.testing.fuzzing import Case, Failure, Fuzzed

INTERRUPTED = 130  # as shells have it
SAME = "The same one gives the same files in the same environment: see the page on fuzzing."


class Wanted(NamedTuple):
    """What to fuzz: a format or a file, what to try first as it is, and the format of all that; of a manifest, only these."""

    of: Format | bytes
    given: list[Case]
    format: Format
    only_given: bool = False


def fuzz(
    source: Annotated[str, typer.Argument(metavar="FILE-OR-FORMAT", help="A weights file, glft or gguf, or a manifest.")],
    examples: Annotated[int, typer.Option(min=0, help="How many files to try.")] = 1000,
    seed: Annotated[int, typer.Option(help=SAME)] = 0,
    corpus: Annotated[Path | None, typer.Option(metavar="DIR", help="Write files for other readers' tests there.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the file goes that shows a failure.")] = Path(),
) -> None:
    """Try random, damaged and corrupted files on this package.

    Each is read or refused with a field and a byte; what is read is built again byte for byte; time and memory stay in bounds;
    of a file with one rule broken exactly that is reported. Of a FORMAT files are made up, a FILE is damaged, and the files of
    a manifest are tried as they are. The smallest file that shows a failure is written to DIR, with exit code 1.
    """
    try:
        import hypothesis.configuration as _configured  # noqa: F401
    except ImportError:
        print("glft: fuzz needs hypothesis: pip install 'glft_schema[fuzz]'", file=sys.stderr)
        raise typer.Exit(REFUSED) from None
    with blame(Path(source)), _storage():
        try:
            _fuzz(source, examples, seed, corpus, out)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None


def _fuzz(source: str, examples: int, seed: int, corpus: Path | None, out: Path) -> None:
    from glft_schema.testing import corpora, fuzzing

    wanted = _wanted(source)
    if out != Path():
        _refuse_no_folder(out, "--out")
    if corpus is not None:
        _refuse_corpus(source, wanted, corpus)
    with progress_bar("fuzzing") as bar, _no_lost_interrupts(bar) as progress:
        fuzzed = fuzzing.fuzz(wanted.of, 0 if wanted.only_given else examples, seed=seed, progress=progress, given=wanted.given)
    if fuzzed.failure:
        options = "" if wanted.only_given else f" --examples {examples} --seed {seed}"
        _report(fuzzed, fuzzed.failure, wanted, out, f"glft fuzz {quote(source)}{options}")
        raise typer.Exit(INTERRUPTED if fuzzed.interrupted else FAILED)
    so_far = "interrupted; " if fuzzed.interrupted else ""
    print(f"{safe(source)}: {so_far}no failure in {_counts(fuzzed)}{'' if wanted.only_given else f'; seed {seed}'}")
    if read := " and ".join(f"{count} of the {kind}" for kind, count in fuzzed.read.items() if count):
        print(f"read all the same: {read}")
    print(f"at most {fuzzed.seconds:.2f} s and {fuzzed.memory:,} bytes of memory for a file")
    if fuzzed.interrupted:
        raise typer.Exit(INTERRUPTED)
    if corpus is not None:
        cases = fuzzing.corpus(wanted.of, examples, seed=seed)
        manifest = corpora.write_corpus(cases, corpus, format=wanted.format, seed=seed)
        print(f"{manifest}: {len(cases)} files")


@contextmanager
def _storage() -> Iterator[None]:
    """Keeps what hypothesis stores out of the folder that the user is in, unless its variable says where it goes."""
    from hypothesis.configuration import set_hypothesis_home_dir

    if os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY"):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="glft-fuzz-") as folder:
        set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            set_hypothesis_home_dir(None)


@contextmanager
def _no_lost_interrupts(progress: Progress) -> Iterator[Progress]:
    """Raises an interrupt that came where Python cannot raise one, as in garbage collection, when progress is told next."""
    lost: list[object] = []
    hook = sys.unraisablehook

    def keep(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            lost.append(None)
        else:
            hook(unraisable)

    def told(text: str, done: float) -> None:
        if lost:
            raise KeyboardInterrupt
        progress(text, done)

    sys.unraisablehook = keep
    try:
        yield told
    finally:
        sys.unraisablehook = hook


def _wanted(source: str) -> Wanted:
    from glft_schema.testing.corpora import format_of_corpus, read_corpus
    from glft_schema.testing.fuzzing import GIVEN, Case

    path = Path(source)
    if not path.exists() or path.is_dir():
        try:
            format = format_named(source)
        except OptionError as error:
            raise OptionError(f"{error}, which is no file") from None
        return Wanted(format, [], format)
    if path.suffix == ".json":
        given = read_corpus(path)
        return Wanted(b"", given, format_of_corpus(path), only_given=True)
    stored = read_regular(path)
    known = next((format for format in FORMATS if stored[:4] in format.magics), None)
    return Wanted(stored, [Case(stored, GIVEN)], known or Container.parse_file(path).format)  # which says what it is instead


def _refuse_no_folder(path: Path, option: str) -> None:
    """Raises OptionError where there is no folder at `path`, and none can be made."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise OptionError(f"expected a folder for {option}, found {safe(str(there))}, which is none")
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError:
        raise OptionError(f"expected a folder for {option}, found {safe(str(there))}, which cannot be written to") from None


def _refuse_corpus(source: str, wanted: Wanted, corpus: Path) -> None:
    """Raises OptionError where no corpus can be made of what is wanted, or be written where it should go."""
    if wanted.only_given:
        raise OptionError("expected a file or a format to make a corpus of, found a manifest")
    _refuse_no_folder(corpus, "--corpus")
    if corpus.is_dir() and any(corpus.iterdir()):
        raise OptionError(f"expected an empty folder for --corpus, found {safe(str(corpus))}, which has files")
    if isinstance(wanted.of, bytes):
        Container.parse_file(source)  # only a valid file can be broken


def _counts(fuzzed: Fuzzed) -> str:
    """Returns how many files of which kinds were tried."""
    total, distinct = fuzzed.counts.total(), len(fuzzed.hashes)
    kinds = ", ".join(f"{count} {kind}" for kind, count in fuzzed.counts.items() if count)
    return f"{total} files, {distinct} of them distinct: {kinds}" if total else "no files"


def _report(fuzzed: Fuzzed, failure: Failure, wanted: Wanted, out: Path, command: str) -> None:
    """Prints what the failure is, writes the file that shows it, and says how to see it again."""
    from glft_schema.testing.corpora import write_corpus

    case, name = failure.case, f"fuzz-{failure.case.sha256[:12]}.json"
    say(f"failed: {failure.error}")
    sys.stdout.flush()
    if fuzzed.interrupted:
        print(f"interrupted, so that there may be a smaller file; before it there was no failure in {_counts(fuzzed)}")
    which = "the file" if fuzzed.interrupted or case in wanted.given else "the smallest file found"
    try:
        manifest = write_corpus([case], out, format=wanted.format, manifest=name, problem=str(failure.error), found_by=command)
    except OSError as error:
        print(f"{which}, {len(case.stored)} bytes, {case.kind}, is lost")
        print(f"glft: {safe(str(error.filename or out))}: {error.strerror or error}", file=sys.stderr)
        return
    print(f"{which}, {len(case.stored)} bytes, {case.kind}, is beside {manifest}; to see it again:")
    print(f"  glft fuzz {quote(str(manifest))}")
