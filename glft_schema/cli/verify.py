"""`glft verify`: checks a file's rules, hashes and values, and compares it with its source."""

from __future__ import annotations

import errno
import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from click.exceptions import Exit

from glft_schema.checks.derivation import VERDICTS, WITHOUT_IMPORTANCE, Derivation, check_derivation
from glft_schema.checks.manifests import FileHash, compare_hashes, hash_file, read_manifest
from glft_schema.checks.roles import check_fit
from glft_schema.checks.rule_sets import ALL_SETS, report
from glft_schema.checks.values import INCOMPLETE, UNKNOWN, ValueFinding, check_values
from glft_schema.cli.inspect import gaps_text
from glft_schema.cli.options import Exclude, Json, Texts, argument, flag, option
from glft_schema.cli.terminal import FAILED, MAX_LINE, echo, file_errors, progress_bar
from glft_schema.codec.rules import REQUIRED, RULE_SETS
from glft_schema.codec.typed_text import as_json_value
from glft_schema.describe.comparisons import errors_data
from glft_schema.display import align, format_count, percent, wrap
from glft_schema.errors import Finding, FormatError, OptionError, Repair, quote, safe
from glft_schema.families.loader import LLAMA_CPP
from glft_schema.files.container import Container, open_damaged
from glft_schema.files.file import File
from glft_schema.formats.gguf_names import LAYER
from glft_schema.formats.imatrix import is_old_matrix
from glft_schema.formats.registry import find_format
from glft_schema.limits import current
from glft_schema.storage.source import BytesSource
from glft_schema.storage.streams import START
from glft_schema.tensor_types.differences import NumberErrors
from glft_schema.weights.checkpoints import open_beside, open_entries
from glft_schema.weights.importance import read_importance

SHA256 = re.compile("(sha256:)?[0-9a-fA-F]{64}")
FINDINGS = 20  # shown of the violations of a file
CHANGES = 100  # of a repair


class Outcome(NamedTuple):
    """The result of a check."""

    lines: list[str]
    data: Any  # for --json
    holds: bool


def verify(
    file: Annotated[Path, argument("FILE", "Weights file; for a set, its first file.")],
    rules: Annotated[Texts, option("SET", f"Rule set to enforce: {', '.join(ALL_SETS)}. Repeatable.")] = (),
    sha256: Annotated[str | None, option("HEX", "Published SHA-256 that FILE must match.")] = None,
    manifest: Annotated[Path | None, option("MANIFEST", "Output of glft hash or sha256sum; - for standard input.")] = None,
    fits: Annotated[Path | None, option("BASE", "Model that FILE, an adapter, must fit.")] = None,
    derives_from: Annotated[Path | None, option("BASE", "Checkpoint; FILE must be its quantization, byte for byte.")] = None,
    tolerance: Annotated[
        float | None, option("ERROR", "With --derives-from: weights may differ by so much, instead of bytes.", min=0)
    ] = None,
    imatrix: Annotated[Path | None, option("FILE", "With --derives-from: the importance matrix used.")] = None,
    values: Annotated[bool, flag("Check for NaN, infinities and reserved codes.")] = False,
    exclude: Exclude = (),
    as_json: Json = False,
) -> None:
    """Verifies a file's rules, hashes and values.

    Rule sets are spec (the specification), ggml (llama.cpp's reader), rust (the safetensors
    library) and required (every reader). lora, controlvector, mmproj and imatrix are llama.cpp's
    requirements for such GGUF files. llama.cpp is ggml plus the requirements of its model loader:
    metadata keys and types, tensors and dims, the vocabulary. An architecture that cannot be
    checked is a violation.

    Without --rules, all sets that apply to the file are checked. Violations for which llama.cpp
    refuses the file are failures; others are only listed. If the llama.cpp set cannot be checked,
    as for an unknown architecture, the first line says so, and only violations of ggml are
    failures.

    --sha256 compares the SHA-256 of the file with HEX. --manifest compares the hashes of the file
    and, if listed, of its tensors. Without a hash, a changed bit of a weight cannot be detected.
    --values fails on NaN, infinities and reserved codes, and lists subnormal scales and all-zero
    tensors. In a truncated file, it checks the complete tensors, and the exit code is 2. --fits
    checks that llama.cpp would load FILE for BASE: a LoRA adapter must fit its architecture and
    tensors, a control vector its size and layers.

    --derives-from quantizes each tensor of BASE to its type in FILE, and compares the bytes. It
    fails unless all tensors are copied or exact (equal bytes). Other tensors differ, are missing or
    extra, or, without --imatrix, are unknown if their type can use an importance matrix. With
    --tolerance, a tensor may also have other bytes if its dequantized weights are that close. glft
    compare shows the quantization error itself.

    The exit code is 1 if a check fails, and 2 if a file cannot be read.

    Examples:
        glft verify model.gguf --rules llama.cpp --values
        glft verify q4_k_m.gguf --derives-from f16.gguf
    """
    if manifest:
        with file_errors(manifest):
            hashes = read_manifest(_read(manifest))
    with file_errors(file):
        parsed, fault = _open(file, sha256)
    with file_errors(file), parsed:
        if fault:
            if values and parsed.tensors:
                _print(parsed, {"values": values_outcome(parsed, exclude)}, as_json)
            raise fault
        if tolerance is not None and derives_from is None:
            raise OptionError("--tolerance requires --derives-from")
        _check_options(parsed, rules, exclude, imatrix, derives_from is not None, values)
        outcomes = {"rules": rules_outcome(parsed, rules)}
        if fits is not None:
            with file_errors(fits), Container.parse_file(fits) as base:
                outcomes["fits"] = fits_outcome(parsed, base)
        if manifest or sha256:
            with progress_bar("hashing") as bar:
                hashed = hash_file(parsed, progress=bar)
            if manifest:
                with file_errors(manifest):
                    outcomes["manifest"] = manifest_outcome(hashed, hashes, str(manifest))
            if sha256:
                outcomes["sha256"] = manifest_outcome(hashed, [FileHash(sha256[-64:].lower(), parsed.name)], "--sha256")
        if values:
            outcomes["values"] = values_outcome(parsed, exclude)
        if derives_from is not None:
            outcomes["derives_from"] = base_outcome(parsed, derives_from, imatrix, exclude, tolerance)
        _print(parsed, outcomes, as_json)
    if not all(outcome.holds for outcome in outcomes.values()):
        raise Exit(FAILED)


def _open(file: Path, sha256: str | None) -> tuple[File, FormatError | None]:
    """Opens the file, and returns the error that ends its parse, if any."""
    if sha256 is not None and not SHA256.fullmatch(sha256):
        raise OptionError(f"expected 64 hexadecimal digits for --sha256, found {quote(sha256)}")
    if is_old_matrix(file):
        raise OptionError("imatrix.dat has no rules to verify: use glft inspect, or convert it with glft imatrix IN OUT.gguf")
    return open_damaged(file, mmap=False)


def _check_options(
    file: File, rules: Texts | None, exclude: Texts, imatrix: Path | None, is_derived: bool, values: bool
) -> None:
    """Raises OptionError for options that do not go together, or do not suit the format."""
    if exclude and not is_derived and not values:
        raise OptionError("--exclude requires --derives-from or --values")
    if imatrix and not is_derived:
        raise OptionError("--imatrix requires --derives-from")
    if unknown := set(rules or ()).intersection(RULE_SETS) - {*file.format.rule_sets, REQUIRED}:
        raise OptionError(f"expected a rule set of {file.format.name}, found {quote(unknown.pop())}")


def _print(file: File, outcomes: dict[str, Outcome], as_json: bool) -> None:
    if as_json:
        about = {"file": file.name, "format": file.format.name, "tensors": len(file.tensors), "bytes": file.nbytes}
        holds = all(outcome.holds for outcome in outcomes.values())
        data = {**about, "holds": holds, **{name: outcome.data for name, outcome in outcomes.items()}}
        print(json.dumps(data, indent=2, allow_nan=False))
    else:
        echo(*(line for outcome in outcomes.values() for line in outcome.lines))


def _read(manifest: Path) -> bytes:
    if str(manifest) == "-":
        if sys.stdin is None:
            raise OSError(errno.EBADF, "is closed", "standard input")
        return sys.stdin.buffer.read(current().manifest + 1)
    with manifest.open("rb") as stream:
        stored = stream.read(current().manifest + 1)
    if len(stored) > START and (format := find_format(BytesSource(stored))):
        raise OptionError(f"expected the output of glft hash or sha256sum for --manifest, found a {format.name} file")
    return stored


def rules_outcome(file: File, rules: Sequence[str]) -> Outcome:
    """Checks rule sets, by default those that apply to the file."""
    verdict = report(file, list(rules))
    findings = [(Path(file.shards[i].name).name, finding) for i, finding in verdict.findings]
    state = format_count(findings, "rule violation") if findings else "all rules hold"
    size = f"{format_count(file.tensors, 'tensor')}, {file.nbytes:,} bytes"
    lines = [f"{safe(file.name)}: {file.format.name}, {size}, {state} ({', '.join(verdict.sets)})"]
    if verdict.not_checked:
        lines[0] += f"; {LLAMA_CPP}: not checked, {verdict.not_checked}"
    elif verdict.failures and not rules:
        lines[0] += f"; {LLAMA_CPP} refuses the file"
    is_set, parts = len(file.shards) > 1, _repair(file, [finding.repair for _, finding in findings])
    lines += _findings(findings, is_set, FINDINGS)
    if parts:
        repaired = sum(finding.repair is not None for _, finding in findings)
        lines += [f"to repair {repaired} of {format_count(findings, 'violation')}:", *(f"  {part} \\" for part in parts)]
        lines[-1] = lines[-1].removesuffix(" \\")
    if file.tensors.gaps:
        lines.append(gaps_text(file))
    data: dict[str, Any] = {"checked": verdict.sets, "enforced": verdict.enforced, "failures": len(verdict.failures)}
    data |= {"not_checked": {LLAMA_CPP: verdict.not_checked} if verdict.not_checked else {}}
    data |= {"repair": " ".join(map(str.strip, parts)) or None, "broken": _findings_data(findings)}
    return Outcome(lines, data, not verdict.failures)


def _findings(found: list[tuple[str, Finding]], is_set: bool, most: int) -> list[str]:
    """Returns a paragraph per violation, shared by tensors that differ only in block number."""
    alike = dict[tuple[str, ...], list[Finding]]()
    for name, finding in found:
        problem = LAYER.sub("blk.*.", finding.problem)
        path = finding.path if problem == finding.problem else re.sub("[0-9]+", "*", finding.path)
        alike.setdefault((name, path, problem, finding.rule), []).append(finding)
    lines = list[str]()
    for (name, path, problem, rule), (first, *others) in islice(alike.items(), most):
        text = f"{path}: {problem} ({1 + len(others)} tensors, the first at byte {first.offset})" if others else first.text
        lines += wrap(f"{safe(name)}: {text} [{rule}]" if is_set else f"{text} [{rule}]")
    hidden = len(alike) - most
    return [*lines, *([f"  ... and {hidden:,} more: --json"] if hidden > 0 else [])]


def _repair(file: File, repairs: Iterable[Repair | None]) -> list[str]:
    """Returns the lines of a repair command; none if no repair is known or can be printed."""
    changes = islice(dict.fromkeys(filter(None, repairs)), CHANGES)
    options = [f"    --{action} {shlex.quote(f'{name}={new}')}" for action, name, new in changes if "=" not in name]
    parts = [f"glft edit {shlex.quote(file.name)} -o NEW{Path(file.name).suffix}", *options]
    can_repair = options and len(file.shards) == 1  # glft edit edits no sets
    return parts if can_repair and all(part.isprintable() and len(part) < MAX_LINE for part in parts) else []


def _findings_data(found: list[tuple[str, Finding]]) -> list[dict[str, Any]]:
    return [
        {"file": name, "rule": f.rule, "field": f.path, "name": f.tensor or f.key, "problem": f.problem, "byte": f.offset}
        for name, f in found
    ]


def fits_outcome(adapter: File, base: File) -> Outcome:
    """Tells whether an adapter fits a model."""
    findings = [(Path(adapter.name).name, finding) for finding in check_fit(adapter, base)]
    lines = [f"{safe(adapter.name)} fits {safe(base.name)}"]
    if findings:
        lines = [f"{safe(adapter.name)} does not fit {safe(base.name)}: {format_count(findings, 'misfit')}"]
        lines += _findings(findings, False, len(findings))
    return Outcome(lines, {"base": base.name, "misfits": _findings_data(findings)}, not findings)


def manifest_outcome(hashes: list[FileHash], manifest: list[FileHash], name: str) -> Outcome:
    """Compares the hashes of a file or set with those of a manifest."""
    verdict, origin = compare_hashes(hashes, manifest), safe(name)
    lines = [f"{safe(name)}: {problem}" for name, problem in verdict.files]
    if verdict.tensors:
        lines += align([("tensor", "problem"), *((safe(name), problem) for name, problem in verdict.tensors)], 0)
        lines.append(f"{len(verdict.tensors)} of {verdict.compared} tensors differ from {origin}")
    elif verdict.compared is not None:
        lines.append(f"{format_count(verdict.compared, 'tensor matches', 'tensors match')} {origin}")
    if not verdict.files:
        lines.append(f"{format_count(hashes, 'file matches', 'files match')} {origin}")
    elif verdict.compared is not None and not verdict.tensors:
        lines.append("all tensors match: the header, metadata, offsets or padding differ")
    differing = {kind: dict(part) for kind, part in vars(verdict).items() if kind != "compared"}
    return Outcome(lines, {"compared": verdict.compared, **differing}, verdict.holds)


def values_outcome(file: File, exclude: Sequence[str]) -> Outcome:
    """Checks the values of the tensors."""
    found, checked = list[ValueFinding](), 0
    with progress_bar("checking values") as bar:
        for number, (tensor, findings) in enumerate(check_values(file, exclude), 1):
            found += findings
            checked += not any(finding.kind in (UNKNOWN, INCOMPLETE) for finding in findings)
            bar(tensor.name, number / len(file.tensors))
    found.sort(key=lambda finding: not finding.is_fault)
    rows = [("tensor", "field", "found", "count", "first weight", "at byte")]
    rows += [
        (safe(o.tensor), o.field, o.meaning or o.kind, f"{o.count:,}", str(list(o.index)), f"{o.byte:,}")
        for o in found
        if o.kind != INCOMPLETE
    ]
    faulty = len({finding.tensor for finding in found if finding.is_fault})
    result = f"{faulty or 'none'} with NaN, infinities or reserved codes"
    lines = [*(align(rows, 3) if rows[1:] else []), f"{checked} of {len(file.tensors)} tensors checked, {result}"]
    data = {"checked": checked, "findings": [{**asdict(finding), "fault": finding.is_fault} for finding in found]}
    return Outcome(lines, data, not faulty)


def base_outcome(file: File, base: Path, imatrix: Path | None, exclude: Sequence[str], tolerance: float | None) -> Outcome:
    """Tells whether a file's payloads are copies or encodings of the weights of a base."""
    importance, found = None, list[Derivation]()
    if imatrix is not None:
        with file_errors(imatrix):
            importance = read_importance(imatrix)
    with file_errors(base), progress_bar("comparing") as bar:
        entries = open_beside(open_entries(base), base, file)
        for derivation in check_derivation(file, entries, importance=importance, exclude=exclude):
            found.append(derivation)
            bar(derivation.name, len(found) / max(len(entries.tensors), len(found)))
    counts = Counter(derivation.verdict for derivation in found)
    unconfirmed = [derivation for derivation in found if not derivation.is_within(tolerance)]
    close = [derivation for derivation in found if derivation.is_within(tolerance) and not derivation.is_confirmed]
    verdict = "is not confirmed to derive" if unconfirmed else "derives"
    parts = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
    parts += f" ({len(close)} within {tolerance:g})" if close else ""
    lines = [f"{safe(file.name)} {verdict} from {base}: {parts or 'no tensors'}"]
    if unconfirmed:
        head = ("tensor", "type", "verdict", "problem", "other bytes", "from encoding", "from BASE", "encoding from BASE")
        rows = [
            (safe(d.name), str(d.type or ""), d.verdict, d.problem, percent(d.differing), *map(_relative, d[-3:]))
            for d in unconfirmed
        ]
        lines += align([head, *rows], right=4)
    if any(d.problem == WITHOUT_IMPORTANCE for d in unconfirmed):
        lines.append("give the importance matrix with --imatrix to check tensors that may have used one")
    tensors = [
        {
            "name": d.name,
            "type": d.type and d.type.name,
            "verdict": d.verdict,
            "problem": d.problem,
            **({} if d.differing is None else {"differing": d.differing}),
            **{name: errors_data(part) for name, part in zip(d._fields[-3:], d[-3:], strict=True) if part},
        }
        for d in found
    ]
    about = {
        "base": str(base),
        "imatrix": imatrix and str(imatrix),
        "tolerance": tolerance if tolerance is None else as_json_value(tolerance),
    }
    data = {**about, "counts": dict(counts), "tensors": tensors}
    return Outcome(lines, data, not unconfirmed)


def _relative(errors: NumberErrors | None) -> str:
    return percent(errors.relative if errors else None)
