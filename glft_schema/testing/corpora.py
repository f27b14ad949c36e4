"""Files to try, in a folder: each under its name, and a manifest in JSON that says what has to be reported of it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from glft_schema.errors import FormatError, LimitError, OptionError, TruncatedError, shown
from glft_schema.formats.format import Format
from glft_schema.formats.registry import format_named
from glft_schema.storage.atomic import atomic_write
from glft_schema.storage.file_source import read_regular
from glft_schema.testing.fuzzing import CORRUPTED, VALID, Case, as_entry
from glft_schema.testing.strategies import Corruption

MANIFEST = "manifest.json"
ERRORS = {error.__name__: error for error in (FormatError, TruncatedError, LimitError)}
NOT_IN_NAMES = re.compile(r"[^\w.-]", re.ASCII)  # kinds and rules may come from a manifest, and so from a stranger


def write_corpus(
    cases: Iterable[Case], folder: str | os.PathLike[str], *, format: Format, manifest: str = MANIFEST, **more: Any
) -> Path:
    """Writes files and then their manifest into a folder, made where it is not there, and returns the manifest's path.

    Args:
        cases: the files.
        folder: where they go.
        format: their format.
        manifest: the manifest's name.
        more: what else the manifest says.

    Raises:
        OSError: from the system.
    """
    to = Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    entries = []
    for case in cases:
        what = case.kind if case.corruption is None else case.corruption.rule or "field"
        name = f"{NOT_IN_NAMES.sub('-', what)[:64]}-{case.sha256[:12]}.{format.name.lower()}"
        _write(to / name, case.stored)
        entries.append(as_entry(case, name))
    made = {"format": format.name, "made_by": f"glft_schema {metadata.version('glft_schema')}", **more, "files": entries}
    path = to / manifest
    _write(path, f"{json.dumps(made, indent=2)}\n".encode())
    return path


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as stream:
        stream.write(content)


def read_corpus(manifest: str | os.PathLike[str]) -> list[Case]:
    """Returns the files that a manifest lists.

    Raises:
        OSError: where one cannot be read.
        OptionError: where it is no such manifest, or a file is not the one that it lists.
    """
    path = Path(manifest)
    try:
        entries = json.loads(read_regular(path))["files"]
        return [_case(entry, path.parent) for entry in entries]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"expected a manifest of files to try, found {shown(str(path))}: {shown(error)}") from None


def format_of_corpus(manifest: str | os.PathLike[str]) -> Format:
    """Returns the format of the files that a manifest lists. Raises as `read_corpus` does."""
    made = json.loads(read_regular(manifest))
    return format_named(made.get("format"))


def _case(entry: dict[str, Any], folder: Path) -> Case:
    stored = read_regular(folder / Path(entry["file"]).name)
    case = Case(stored, entry["kind"], tuple(entry.get("rules", ())))
    if case.sha256 != entry["sha256"]:
        raise OptionError(f"expected {shown(entry['file'])} with SHA-256 {entry['sha256']}, found {case.sha256}")
    if case.kind != CORRUPTED:
        return case if case.kind == VALID else Case(stored, case.kind)
    kind = entry["error"]
    error = ERRORS.get(kind)
    findings = tuple((rule, path) for rule, path in entry["findings"])
    made = Corruption(
        stored,
        entry["sentence"],
        entry["field"],
        entry["offset"],
        entry["rule"],
        error,
        entry["reported"],
        entry["within"],
        tuple(entry["sets"]),
        findings,
    )
    return Case(stored, CORRUPTED, corruption=made)
