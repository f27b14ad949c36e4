"""`glft verify`: checks a file's rules, hashes and values, and compares it with its source."""

from __future__ import annotations

import json
import re
from contextlib import closing
from typing import Annotated, Any, Protocol

from click.exceptions import Exit

from glft_schema.checks.derivation import Derivation, DerivationReport, check_derivation
from glft_schema.checks.hub import compare_with_hub
from glft_schema.checks.manifests import FileHash, compare_hashes, hash_file, read_manifest
from glft_schema.checks.roles import FitReport, check_fit
from glft_schema.checks.rule_sets import ALL_SETS, report
from glft_schema.checks.values import value_report
from glft_schema.cli.options import Exclude, Input, Json, Texts, argument, flag, option
from glft_schema.cli.terminal import FAILED, echo, file_errors, progress_bar
from glft_schema.codec.rules import REQUIRED, RULE_SETS
from glft_schema.errors import FormatError, OptionError, quote
from glft_schema.files.container import Container, open_damaged
from glft_schema.files.file import File
from glft_schema.formats.imatrix import is_old_matrix
from glft_schema.formats.registry import find_format
from glft_schema.limits import current
from glft_schema.storage.opening import open_source
from glft_schema.storage.source import BytesSource
from glft_schema.storage.streams import START
from glft_schema.weights.checkpoints import open_beside, open_entries
from glft_schema.weights.importance import read_importance

SHA256 = re.compile("(sha256:)?[0-9a-fA-F]{64}")


class Outcome(Protocol):
    """The result of a check."""

    @property
    def holds(self) -> bool:
        """Whether the check succeeds."""

    def lines(self) -> list[str]:
        """Returns it as text."""

    def data(self) -> dict[str, Any]:
        """Returns it for JSON."""


def verify(
    file: Annotated[Input, argument("FILE", "Weights file; for a set, its first file.")],
    rules: Annotated[Texts, option("SET", f"Rule set to enforce: {', '.join(ALL_SETS)}. Repeatable.")] = (),
    strict: Annotated[
        bool, flag("For scanners: fail on any violation, bad value, or anything unchecked. Includes --values.")
    ] = False,
    sha256: Annotated[str | None, option("HEX", "Published SHA-256 that FILE must match.")] = None,
    hub: Annotated[
        str | None, option("OWNER/REPO", "Repository on the Hub that FILE must match; @REVISION at its end, by default main.")
    ] = None,
    manifest: Annotated[Input | None, option("MANIFEST", "Output of glft hash or sha256sum; - for standard input.")] = None,
    fits: Annotated[Input | None, option("BASE", "Model that FILE, an adapter, must fit.")] = None,
    derives_from: Annotated[Input | None, option("BASE", "Checkpoint; FILE must be its quantization, byte for byte.")] = None,
    tolerance: Annotated[
        float | None, option("ERROR", "With --derives-from: weights may differ by so much, instead of bytes.", min=0)
    ] = None,
    imatrix: Annotated[Input | None, option("FILE", "With --derives-from: the importance matrix used.")] = None,
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

    With --strict, which is for scanners, all violations are failures, such as a chat template that
    accesses private attributes or renders nothing, and so is anything that cannot be checked: an
    unknown architecture, role or tensor type.

    --sha256 compares the SHA-256 of the file with HEX, --hub with the one of the repository's
    current file on the Hugging Face Hub, by one request. --manifest compares the hashes of the file
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
        glft verify model.gguf --strict --hub OWNER/REPO
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
                _print(parsed, {"values": _check_values(parsed, exclude)}, as_json)
            raise fault
        if tolerance is not None and derives_from is None:
            raise OptionError("--tolerance requires --derives-from")
        if strict and rules:
            raise OptionError("expected --strict, which checks all rule sets, or --rules, found both")
        _check_options(parsed, rules, exclude, imatrix, derives_from is not None, values or strict)
        outcomes: dict[str, Outcome] = {"rules": report(parsed, rules, strict=strict)}
        if fits is not None:
            with file_errors(fits), Container.parse_file(fits) as base:
                outcomes["fits"] = FitReport(parsed.name, base.name, check_fit(parsed, base))
        hashed = list[FileHash]()
        if manifest or sha256:
            with progress_bar("hashing") as bar:
                hashed = hash_file(parsed, progress=bar)
            if manifest:
                with file_errors(manifest):
                    outcomes["manifest"] = compare_hashes(hashed, hashes, name=str(manifest))
            if sha256:
                outcomes["sha256"] = compare_hashes(hashed, [FileHash(sha256[-64:].lower(), parsed.name)], name="--sha256")
        if hub:
            with progress_bar("hashing") as bar:
                outcomes["hub"] = compare_with_hub(parsed, hub, bar, hashed)
        if values or strict:
            outcomes["values"] = _check_values(parsed, exclude, strict)
        if derives_from is not None:
            outcomes["derives_from"] = _check_derivation(parsed, derives_from, imatrix, exclude, tolerance)
        _print(parsed, outcomes, as_json)
    if not all(outcome.holds for outcome in outcomes.values()):
        raise Exit(FAILED)


def _open(file: Input, sha256: str | None) -> tuple[File, FormatError | None]:
    """Opens the file, and returns the error that ends its parse, if any."""
    if sha256 is not None and not SHA256.fullmatch(sha256):
        raise OptionError(f"expected 64 hexadecimal digits for --sha256, found {quote(sha256)}")
    if is_old_matrix(file):
        raise OptionError("imatrix.dat has no rules to verify: use glft inspect, or convert it with glft imatrix IN OUT.gguf")
    return open_damaged(file, mmap=False)


def _check_options(
    file: File, rules: Texts | None, exclude: Texts, imatrix: Input | None, is_derived: bool, values: bool
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
        data = {**about, "holds": holds, **{name: outcome.data() for name, outcome in outcomes.items()}}
        print(json.dumps(data, indent=2, allow_nan=False))
    else:
        echo(*(line for outcome in outcomes.values() for line in outcome.lines()))


def _check_values(file: File, exclude: Texts, strict: bool = False) -> Outcome:
    with progress_bar("checking values") as bar:
        return value_report(file, exclude, bar, strict)


def _check_derivation(file: File, base: Input, imatrix: Input | None, exclude: Texts, tolerance: float | None) -> Outcome:
    importance, found = None, list[Derivation]()
    if imatrix is not None:
        with file_errors(imatrix):
            importance = read_importance(imatrix)
    with file_errors(base), progress_bar("comparing") as bar:
        entries = open_beside(open_entries(base), base, file)
        for derivation in check_derivation(file, entries, importance=importance, exclude=exclude):
            found.append(derivation)
            bar(derivation.name, len(found) / max(len(entries.tensors), len(found)))
    return DerivationReport(file.name, str(base), str(imatrix) if imatrix else None, tolerance, found)


def _read(manifest: Input) -> bytes:
    with closing(open_source(manifest)) as source:
        stored = bytes(source.read(0, min(source.size, current().manifest + 1)))
    if len(stored) > START and (format := find_format(BytesSource(stored))):
        raise OptionError(f"expected the output of glft hash or sha256sum for --manifest, found a {format.name} file")
    return stored
