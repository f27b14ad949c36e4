"""`glft verify FILE`: does it keep to its format, is it what a manifest or its source says, and are its numbers sound?"""

from __future__ import annotations

import errno
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from glft_schema.checks.compare import Comparison, compare
from glft_schema.checks.manifests import FileHash, compare_hashes, hash_file, read_manifest
from glft_schema.checks.values import UNKNOWN, Oddity, check_values
from glft_schema.cli.terminal import FAILED, Exclude, blame, progress_bar, say, table
from glft_schema.codec.rules import REQUIRED, RULE_SETS
from glft_schema.errors import OptionError, safe, shown
from glft_schema.files.container import Container
from glft_schema.files.file import File
from glft_schema.files.parsing import check_rules
from glft_schema.limits import current
from glft_schema.weights.checkpoints import open_checkpoint
from glft_schema.weights.stored_tensors import StoredTensor


@dataclass
class Outcome:
    """What came of a check.

    Attributes:
        lines: for people.
        data: for `--json`.
        holds: whether it passed.
    """

    lines: list[str]
    data: Any
    holds: bool


def verify(
    file: Annotated[Path, typer.Argument(help="A weights file.")],
    against: Annotated[Path | None, typer.Option(metavar="SOURCE", help="The checkpoint that it was made from.")] = None,
    tolerance: Annotated[float, typer.Option(min=0, help="The largest error of a number that passes.")] = 0.0,
    rules: Annotated[
        list[str] | None, typer.Option(metavar="SET", help=f"Rules to check: {', '.join(RULE_SETS)}. Repeatable.")
    ] = None,
    manifest: Annotated[
        Path | None, typer.Option(metavar="MANIFEST", help="Hashes, of glft hash or sha256sum; - is standard input.")
    ] = None,
    values: Annotated[bool, typer.Option("--values", help="Look at the numbers: NaN, infinities, reserved codes.")] = False,
    exclude: Exclude = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Check a file against its format, a manifest, and the checkpoint that it was made from; look at its numbers.

    Rules are those of the format's specification (spec), of llama.cpp's reader (ggml), or of every reader (required).
    Unless SET is given, what breaks the first two is reported, but is no failure. With --manifest the file, and each
    tensor where the manifest has them, is compared with its SHA-256. With --values NaN, infinities and codes that stand
    for nothing are failures; subnormal scales and tensors that are all zero are reported. With --against each tensor is
    compared with its source after quantizing: the two are expected to be equal. Exit code 1 where any of these fails, 2
    where a file cannot be read.
    """
    if manifest:
        with blame(manifest):
            hashes = read_manifest(_stored(manifest))
    with blame(file), Container.parse_file(file, mmap=False) as parsed:
        if exclude and against is None and not values:
            raise OptionError("expected --against or --values with --exclude, found neither")
        if unknown := set(rules or ()).intersection(RULE_SETS) - {*parsed.format.rule_sets, REQUIRED}:
            raise OptionError(f"expected a rule set of {parsed.format.name}, found {shown(unknown.pop())}")
        outcomes = {"rules": rules_outcome(parsed, rules or parsed.format.rule_sets, bool(rules))}
        if manifest:
            with progress_bar("hashing") as bar:
                found = hash_file(parsed, progress=bar)
            with blame(manifest):
                outcomes["manifest"] = manifest_outcome(found, hashes, manifest)
        if values:
            outcomes["values"] = values_outcome(parsed, exclude or [])
        if against is not None:
            with blame(against):
                source = open_checkpoint(against, exclude or [])
            outcomes["against"] = source_outcome(parsed, source, against, tolerance)
        holds = all(outcome.holds for outcome in outcomes.values())
        if as_json:
            about = {"file": parsed.name, "format": parsed.format.name, "tensors": len(parsed.tensors), "bytes": parsed.nbytes}
            data = {**about, "holds": holds, **{name: outcome.data for name, outcome in outcomes.items()}}
            print(json.dumps(data, indent=2, allow_nan=False))
        else:
            say(*(line for outcome in outcomes.values() for line in outcome.lines))
    if not holds:
        raise typer.Exit(FAILED)


def _stored(manifest: Path) -> bytes:
    if str(manifest) == "-":
        if sys.stdin is None:
            raise OSError(errno.EBADF, "it is closed", "standard input")
        return sys.stdin.buffer.read(current().manifest + 1)
    with manifest.open("rb") as stream:
        return stream.read(current().manifest + 1)


def rules_outcome(file: File, sets: list[str] | tuple[str, ...], binding: bool) -> Outcome:
    """Looks for broken rules; whether they are failures is asked for by `binding`."""
    found = [(Path(shard.name).name, finding) for shard in file.shards for finding in check_rules(shard, sets)]
    state = f"{len(found)} broken of the rules" if found else "all rules hold"
    name, size = safe(file.name), f"{len(file.tensors)} tensors, {file.nbytes:,} bytes"
    lines = [f"{name}: {file.format.name}, {size}, {state} ({', '.join(sets)})"]
    if found:
        head = ("file", "rule", "field", "problem", "byte")
        rows = [(safe(name), f.rule, f.path, f.problem, f"{f.offset}") for name, f in found]
        first = 0 if len(file.shards) > 1 else 1  # the column of files is there for sets
        lines += table(head[first:], [row[first:] for row in rows], 1)
    if gaps := sum(gap.nbytes for gap in file.tensors.gaps):
        lines.append(f"{gaps:,} bytes of padding and gaps, {file.tensors.trailing:,} of them after the last payload")
    broken = [{"file": name, "rule": f.rule, "field": f.path, "problem": f.problem, "byte": f.offset} for name, f in found]
    return Outcome(lines, {"checked": list(sets), "broken": broken}, not (found and binding))


def manifest_outcome(found: list[FileHash], manifest: list[FileHash], path: Path) -> Outcome:
    """Compares a file's hashes with those of a manifest."""
    verdict, origin = compare_hashes(found, manifest), safe(str(path))
    lines = [f"{safe(name)}: {problem}" for name, problem in verdict.files]
    if verdict.tensors:
        lines += table(("tensor", "problem"), [(safe(name), problem) for name, problem in verdict.tensors], 0)
        lines.append(f"{len(verdict.tensors)} of {verdict.compared} tensors are not as in {origin}")
    elif verdict.compared is not None:
        lines.append(f"{verdict.compared} tensors have the SHA-256 that is in {origin}")
    if not verdict.files:
        lines.append(f"{len(found)} {'files have' if len(found) > 1 else 'file has'} the SHA-256 that is in {origin}")
    elif verdict.compared is not None and not verdict.tensors:
        lines.append("no tensor is different: it is the header, the metadata, the places of payloads, or bytes beside them")
    differing = {kind: dict(part) for kind, part in vars(verdict).items() if kind != "compared"}
    return Outcome(lines, {"compared": verdict.compared, **differing}, verdict.holds)


def values_outcome(file: File, exclude: list[str]) -> Outcome:
    """Looks for NaN, infinities, and what else is odd about the numbers."""
    odd, known, looked_at = list[Oddity](), 0, 0
    with progress_bar("looking at values") as bar:
        for tensor, found in check_values(file, exclude):
            odd += found
            known += not any(oddity.kind == UNKNOWN for oddity in found)
            looked_at += 1
            bar(tensor.name, looked_at / len(file.tensors))
    odd.sort(key=lambda oddity: not oddity.is_fault)  # those first that are
    rows = [(safe(o.tensor), o.field, o.meaning or o.kind, f"{o.count:,}", str(list(o.index)), f"{o.byte:,}") for o in odd]
    lines = table(("tensor", "field", "found", "numbers", "first weight", "at byte"), rows, 3) if odd else []
    faulty = {oddity.tensor for oddity in odd if oddity.is_fault}
    looked = f"{known} of {len(file.tensors)} tensors were looked at"
    if faulty:
        lines.append(f"{looked}: {len(faulty)} have NaN, infinities or codes that stand for nothing")
    else:
        lines.append(f"{looked}: they have no NaN, no infinity, and no code that stands for nothing")
    data = {"looked_at": known, "odd": [{**asdict(oddity), "fault": oddity.is_fault} for oddity in odd]}
    return Outcome(lines, data, not faulty)


def source_outcome(file: File, source: Mapping[str, StoredTensor], path: Path, tolerance: float) -> Outcome:
    """Compares a file with the checkpoint that it was made from."""
    results = list[Comparison]()
    with progress_bar("comparing") as bar:
        for result in compare(file, source):
            results.append(result)
            bar(result.name, len(results) / max(len(source), 1))
    failed = [result for result in results if result.problem or not result.error <= tolerance]
    worst = max((result.error for result in results), default=0.0)
    if failed:
        rows = [(safe(r.name), str(r.type or ""), r.problem or "differs", f"{r.error:g}") for r in failed]
        lines = table(("tensor", "dtype", "problem", "max error"), rows, right=1)
        lines.append(f"{len(failed)} of {len(results)} tensors are not what {path} should have become")
    else:
        lines = [f"{len(results)} tensors are what {path} should have become, max error {worst:g}"]
    differing = {r.name: {"problem": r.problem or "differs", "max_error": _as_json(r.error)} for r in failed}
    return Outcome(lines, {"compared": len(results), "max_error": _as_json(worst), "differing": differing}, not failed)


def _as_json(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)
