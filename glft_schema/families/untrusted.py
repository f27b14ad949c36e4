"""Checks of a folder before other libraries read it: code, and files beyond the folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glft_schema.errors import FormatError, OptionError, safe, shown
from glft_schema.families.config import CONFIG, check_token_count, read_json
from glft_schema.files.shards import is_file_name
from glft_schema.storage.file_source import check_size, read_regular
import json

TRUST = "--trust-remote-code accepts it"
CODE = ("auto_map", "configuration_files", "fast_tokenizer_files", "custom_pipelines")  # fields that name code, or a file that may
REFERENCE = re.compile(r"[\w./-]+--[A-Za-z_][\w.]*\.[A-Za-z_]\w*")  # a class of another folder: ``folder--module.Class``
LISTS = ("configuration_files", "fast_tokenizer_files")  # fields with names of files
READ = (".json", ".jinja", ".txt", ".model")  # endings of files that transformers reads as a whole


def check_no_code(folder: Path) -> None:
    """Raises OptionError if a folder has code, names some, or leads to other folders.

    Code is a Python file, a field of `CODE` or a reference to a class, in any JSON file. A link may
    lead to a file of the folder, or of a repository in Hugging Face's cache that it belongs to.
    """
    for path in _files(folder):
        if path.suffix == ".py":
            raise OptionError(f"{safe(str(path), 1000)}: expected a folder without code, found Python files: {TRUST}")
        if path.suffix == ".json" and (found := next(_code(_any_json(path)), None)):
            raise OptionError(f"{safe(str(path), 1000)}: expected a folder without code, found {found}: {TRUST}")


def _files(folder: Path) -> Iterator[Path]:
    """Yields all files below a folder. Raises OptionError for links that leave it."""
    root = folder.resolve()
    blobs = root.parents[1] / "blobs" if root.parent.name == "snapshots" else root
    for parent, folders, files in os.walk(folder, onerror=_raise):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink() and not any(path.resolve().is_relative_to(own) for own in (root, blobs)):
                problem = "expected links to files of the folder, found one that leaves it"
                raise OptionError(f"{safe(str(path), 1000)}: {problem}: {TRUST}")
        yield from (path for path in (Path(parent, name) for name in files) if path.is_file())


def _raise(error: OSError) -> None:
    raise error


def _any_json(path: Path) -> Any:
    """Returns the content of a JSON file, or None if it is not JSON, so that no library reads it."""
    stored = read_regular(path)
    try:
        return json.loads(stored.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def _code(value: Any) -> Iterator[str]:
    """Yields fields and references to code in JSON."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield from (field for field in CODE if field in value)
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, str) and REFERENCE.fullmatch(value):
            yield shown(value)
