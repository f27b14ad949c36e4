"""`glft fuzz FILE-OR-FORMAT`: does this package keep its promises for any bytes? And files for the tests of other readers."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from glft_schema.cli.terminal import FAILED, REFUSED, blame, progress_bar
from glft_schema.container import Container, format_for, format_named
from glft_schema.errors import FormatError, SchemeError
from glft_schema.formats.format import Format

if TYPE_CHECKING:
    from glft_schema.fuzzing import Case, Failure


def fuzz(
    source: Annotated[str, typer.Argument(metavar="FILE-OR-FORMAT", help="A weights file, glft or gguf, or a manifest.")],
    examples: Annotated[int, typer.Option(min=0, help="How many files to try.")] = 1000,
    seed: Annotated[int, typer.Option(help="The same one gives the same files.")] = 0,
    corpus: Annotated[Path | None, typer.Option(metavar="DIR", help="Write files for other readers' tests there.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the file goes that shows a failure.")] = Path(),
) -> None:
    """Try random, damaged and corrupted files on this package.

    Each is read or refused with a field and a byte; what is read is built again byte for byte; time and memory stay in bounds;
    of a file with one rule broken exactly that is reported. Of a FORMAT files are made up, a FILE is damaged, and the files of
    a manifest are tried as they are. The smallest file that shows a failure is written to DIR, with exit code 1.
    """
    try:
        from glft_schema import corpora, fuzzing
    except ImportError as error:
        print(f"glft: {error}", file=sys.stderr)
        raise typer.Exit(REFUSED) from None
    with blame(Path(source)):
        of, given = _source(source)
        with progress_bar("fuzzing") as bar:
            fuzzed = fuzzing.fuzz(of, examples if source[-5:] != ".json" else 0, seed, bar, given)
        counts = ", ".join(f"{count} {kind}" for kind, count in fuzzed.counts.items() if count)
        if fuzzed.failure:
            _report(fuzzed.failure, of, out, f"glft fuzz {quote(source)} --examples {examples} --seed {seed}")
            raise typer.Exit(FAILED)
        print(f"{source}: no failure in {counts or 'no files'}; seed {seed}")
        print(f"at most {fuzzed.seconds:.2f} s and {fuzzed.memory:,} bytes of memory for a file")
        if corpus is not None:
            cases = fuzzing.corpus(of, examples, seed)
            manifest = corpora.write_corpus(cases, corpus, _format(of, source), seed=seed)
            print(f"{manifest}: {len(cases)} files")


def _source(source: str) -> tuple[Format | bytes, list[Case]]:
    """Returns what to fuzz, and what to try first as it is."""
    from glft_schema.corpora import read_corpus
    from glft_schema.fuzzing import GIVEN, Case

    path = Path(source)
    if not path.exists():
        try:
            return format_named(source), []
        except SchemeError as error:
            raise SchemeError(f"{error}, which is no file") from None
    if path.suffix == ".json":
        return b"", read_corpus(path)
    stored = path.read_bytes()
    return stored, [Case(stored, GIVEN)]


def _format(of: Format | bytes, name: str) -> Format:
    """Returns the format of what is fuzzed; of a file that is not valid, what its name says."""
    if isinstance(of, Format):
        return of
    try:
        return Container.parse(of).format
    except FormatError:
        return format_for(name, None)


def _report(failure: Failure, of: Format | bytes, out: Path, command: str) -> None:
    """Writes the file that shows a failure, and prints what it is and how to see it again."""
    from glft_schema.corpora import write_corpus

    case, name = failure.case, f"fuzz-{failure.case.sha256[:12]}.json"
    manifest = write_corpus([case], out, _format(of, ""), name, problem=str(failure.error), found_by=command)
    print(f"failed: {failure.error}")
    print(f"the smallest file found, {len(case.stored)} bytes, {case.kind}, is beside {manifest}; to see it again:")
    print(f"  glft fuzz {quote(str(manifest))}")
