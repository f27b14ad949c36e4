"""Findings as lines of text, as data, and as a command that repairs the file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from glft_schema.display import MAX_LINE, wrap
from glft_schema.errors import Finding, Repair, safe
from glft_schema.files.file import File
from glft_schema.formats.gguf_names import LAYER
from glft_schema.storage.locations import STDIN_NAME

CHANGES = 100  # of a repair


def finding_lines(found: list[tuple[str, Finding]], is_set: bool, most: int) -> list[str]:
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


def findings_data(found: list[tuple[str, Finding]]) -> list[dict[str, Any]]:
    """Returns findings for JSON."""
    return [
        {"file": name, "rule": f.rule, "field": f.path, "name": f.tensor or f.key, "problem": f.problem, "byte": f.offset}
        for name, f in found
    ]


def repair_lines(file: File, repairs: Iterable[Repair | None]) -> list[str]:
    """Returns the lines of a repair command; none if no repair is known or can be printed."""
    changes = islice(dict.fromkeys(filter(None, repairs)), CHANGES)
    options = [f"    --{action} {shlex.quote(f'{name}={new}')}" for action, name, new in changes if "=" not in name]
    parts = [f"glft edit {shlex.quote(file.name)} -o NEW{Path(file.name).suffix}", *options]
    can_repair = options and len(file.shards) == 1 and file.name != STDIN_NAME  # glft edit edits no sets
    return parts if can_repair and all(part.isprintable() and len(part) < MAX_LINE for part in parts) else []
