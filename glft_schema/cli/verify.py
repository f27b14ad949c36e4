"""`glft verify FILE [--against SOURCE]`: is the file whole, and is it what its source should have become?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from glft_schema.checkpoints import StoredTensor, open_checkpoint
from glft_schema.cli.terminal import FAILED, Exclude, blame, progress_bar, safe, say, table
from glft_schema.container import Container, findings
from glft_schema.errors import SchemeError, shown
from glft_schema.file import File
from glft_schema.rules import LENIENT, RULE_SETS, Finding
from glft_schema.verify import Comparison, compare


def verify(
    file: Annotated[Path, typer.Argument(help="A weights file.")],
    against: Annotated[Path | None, typer.Option(metavar="SOURCE", help="The checkpoint that it was made from.")] = None,
    tolerance: Annotated[float, typer.Option(min=0, help="The largest error of a number that passes.")] = 0.0,
    rules: Annotated[
        list[str] | None, typer.Option(metavar="SET", help=f"Rules to check: {', '.join(RULE_SETS)}. Repeatable.")
    ] = None,
    exclude: Exclude = None,
) -> None:
    """Check a file against its format, and against the checkpoint that it was made from.

    Rules are those of the format's specification (spec), of llama.cpp's reader (ggml), or what no reader can do without
    (lenient). Unless SET is given, what breaks the first two is reported, but is no failure. Each tensor is compared with its
    source after quantizing: the two are expected to be equal. Exit code 1 where a rule is broken or tensors are not equal.
    """
    with blame(file), Container.parse_file(file) as parsed:
        if exclude and against is None:
            raise SchemeError("expected --against with --exclude, found none")
        if unknown := set(rules or ()).intersection(RULE_SETS) - {*parsed.format.rule_sets, LENIENT}:
            raise SchemeError(f"expected a rule set of {parsed.format.name}, found {shown(unknown.pop())}")
        sets = rules or parsed.format.rule_sets
        found = [(shard, finding) for shard in parsed.shards for finding in findings(shard, sets)]
        state = f"{len(found)} broken of the rules" if found else "all rules hold"
        say(
            f"{file}: {parsed.format.name}, {len(parsed.tensors)} tensors, {parsed.nbytes:,} bytes, {state} ({', '.join(sets)})"
        )
        if found:
            say(*_findings(found, len(parsed.shards) > 1))
        if gaps := sum(gap.nbytes for gap in parsed.tensors.gaps):
            say(f"{gaps:,} bytes of padding and gaps, {parsed.tensors.trailing:,} of them after the last payload")
        if against is None:
            if found and rules:
                raise typer.Exit(FAILED)
            return
        with blame(against):
            source = open_checkpoint(against, exclude or [])
        results = _compare(parsed, source)
    failed = [result for result in results if result.problem or not result.error <= tolerance]
    worst = max((result.error for result in results), default=0.0)
    if failed:
        rows = [(safe(r.name), str(r.type or ""), r.problem or "differs", f"{r.error:g}") for r in failed]
        say(*table(("tensor", "dtype", "problem", "max error"), rows, right=1))
        say(f"{len(failed)} of {len(results)} tensors are not what {against} should have become")
        raise typer.Exit(FAILED)
    say(f"{len(results)} tensors are what {against} should have become, max error {worst:g}")


def _findings(found: list[tuple[File, Finding]], of_set: bool) -> list[str]:
    head = ("rule", "field", "problem", "byte")
    rows = [(finding.rule, finding.path, finding.problem, f"{finding.offset}") for _, finding in found]
    if of_set:
        return table(
            ("file", *head), [(safe(Path(file.name).name), *row) for (file, _), row in zip(found, rows, strict=True)], 1
        )
    return table(head, rows, right=1)


def _compare(file: File, source: Mapping[str, StoredTensor]) -> list[Comparison]:
    results = []
    with progress_bar("comparing") as bar:
        for result in compare(file, source):
            results.append(result)
            bar(result.name, len(results) / max(len(source), 1))
    return results
