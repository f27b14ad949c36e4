"""Corpora: directories of test files, with a JSON manifest of what must be reported for each."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from glft_schema.errors import FormatError, LimitError, OptionError, TruncatedError, quote
from glft_schema.files.container import Container
from glft_schema.formats.format import Format
from glft_schema.formats.registry import format_named
from glft_schema.storage.atomic import atomic_write
from glft_schema.storage.dtypes import name_of
from glft_schema.storage.opening import read_regular
from glft_schema.storage.tensor_bytes import array_bytes
from glft_schema.testing.damage import Corruption
from glft_schema.testing.fuzzing import CORRUPTED, VALID, Case

MANIFEST = "manifest.json"
ACCEPT, REFUSE, EITHER = "accept", "refuse", "either"  # verdicts of every reader, whatever its rule sets
FIELDS = [field.name for field in fields(Corruption)][1:]  # without the bytes
ERRORS = {error.__name__: error for error in (FormatError, TruncatedError, LimitError)}
NOT_IN_NAMES = re.compile(r"[^\w.-]", re.ASCII)  # kinds and rules may come from an untrusted manifest


def write_corpus(
    cases: Iterable[Case],
    folder: str | os.PathLike[str],
    *,
    format: Format,
    manifest: str = MANIFEST,
    contents: bool = True,
    **more: Any,
) -> Path:
    """Writes files and then their manifest to a directory, which is created if it is missing.

    Args:
        cases: the files.
        folder: the directory.
        format: their format.
        manifest: the manifest's name.
        contents: list the tensors of valid files, which are parsed for this.
        more: further entries of the manifest.

    Returns:
        The manifest's path.

    Raises:
        OSError: if a file cannot be written.
    """
    to = Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    entries = []
    for case in cases:
        label = case.kind if case.corruption is None else case.corruption.rule or "field"
        name = f"{NOT_IN_NAMES.sub('-', label)[:64]}-{case.sha256[:12]}.{format.name.lower()}"
        _write(to / name, case.stored)
        entries.append(_entry(case, name, format, contents))
    content = {"format": format.name, "made_by": f"glft_schema {metadata.version('glft_schema')}", **more, "files": entries}
    path = to / manifest
    _write(path, f"{json.dumps(content, indent=2)}\n".encode())
    return path


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as stream:
        stream.write(content)


def _entry(case: Case, file: str, format: Format, contents: bool) -> dict[str, Any]:
    """Returns the manifest's entry for a case that is stored as `file`."""
    entry: dict[str, Any] = {"file": file, "sha256": case.sha256, "bytes": len(case.stored), "kind": case.kind}
    if case.kind == VALID:
        tensors = {"tensors": _contents(case.stored)} if contents else {}
        verdict = ACCEPT if case.rules and {*format.rule_sets} <= {*case.rules} else EITHER
        return {**entry, "verdict": verdict, "rules": list(case.rules), **tensors}
    if (corruption := case.corruption) is None:
        return entry
    entry["verdict"] = EITHER if corruption.error in (None, LimitError) else REFUSE
    entry |= {"field" if name == "path" else name: getattr(corruption, name) for name in FIELDS}
    return {**entry, "error": corruption.error and corruption.error.__name__, "expected": corruption.expected}


def _contents(stored: bytes) -> list[dict[str, Any]]:
    """Returns the expected contents: tensors, with the SHA-256 of numbers of known types."""
    tensors = []
    for tensor in Container.parse(stored).tensors.values():
        stored_name = tensor.name.encode("utf-8", "surrogateescape")
        entry = {"name": stored_name.decode("utf-8", "replace"), "type": tensor.type.name, "shape": list(tensor.shape)}
        if entry["name"] != tensor.name:  # JSON has no bytes that are not UTF-8
            entry["name_hex"] = stored_name.hex()
        if not tensor.type.bytes_only:
            numbers = tensor.array()
            entry |= {"dtype": name_of(numbers.dtype), "values": hashlib.sha256(array_bytes(numbers)).hexdigest()}
        tensors.append(entry)
    return tensors


def read_corpus(manifest: str | os.PathLike[str]) -> list[Case]:
    """Returns the files of a manifest.

    Raises:
        OSError: if a file cannot be read.
        OptionError: if `manifest` is not one, or a file's SHA-256 differs from the listed one.
    """
    path = Path(manifest)
    try:
        entries = json.loads(read_regular(path))["files"]
        return [_case(entry, path.parent) for entry in entries]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"expected a manifest of glft fuzz, found {quote(str(path))}: {quote(error)}") from None


def format_of_corpus(manifest: str | os.PathLike[str]) -> Format:
    """Returns the format of the files of a manifest. Raises OptionError if it is unknown."""
    return format_named(json.loads(read_regular(manifest)).get("format"))


def _case(entry: dict[str, Any], folder: Path) -> Case:
    stored = read_regular(folder / Path(entry["file"]).name)
    case = Case(stored, entry["kind"], tuple(entry.get("rules", ())))
    if case.sha256 != entry["sha256"]:
        raise OptionError(f"expected {quote(entry['file'])} with SHA-256 {entry['sha256']}, found {case.sha256}")
    if case.kind != CORRUPTED:
        return case
    values = {name: entry["field" if name == "path" else name] for name in FIELDS}
    findings = tuple((rule, path) for rule, path in entry["findings"])
    values |= {"error": ERRORS.get(entry["error"]), "sets": tuple(entry["sets"]), "findings": findings}
    return replace(case, corruption=Corruption(stored, **values))
