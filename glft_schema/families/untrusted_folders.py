"""Checks a folder for code, and for links that leave it, before other libraries read it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from glft_schema.errors import FormatError, OptionError, quote, safe
from glft_schema.families.config import CONFIG, check_token_count, read_json
from glft_schema.files.shards import is_file_name
from glft_schema.storage.opening import check_size, read_regular

CODE = ("auto_map", "configuration_files")  # fields of code, and of other configs, which may have it
REFERENCE = re.compile(r"[\w./-]+--[A-Za-z_][\w.]*\.[A-Za-z_]\w*")  # a class of another folder: folder--module.Class
ENDINGS = (".json", ".jinja", ".txt", ".model")  # of files that transformers reads as a whole
FILE_LISTS = ((CONFIG, "configuration_files"), ("tokenizer_config.json", "fast_tokenizer_files"))  # fields with names of files


def check_no_code(folder: Path) -> None:
    """Raises OptionError if a folder contains or refers to code, or a link leaves it.

    All JSON files are searched, in all folders below. A link may lead to the blobs of Hugging
    Face's cache if the folder is a snapshot there.
    """
    for path in _files(folder):
        if path.suffix == ".py":
            raise _distrust(path, "without code, found Python files")
        if path.suffix == ".json" and (found := next(_code(_content(path)), None)):
            raise _distrust(path, f"without code, found {found}")


def _distrust(path: Path, problem: str) -> OptionError:
    return OptionError(f"{safe(str(path), 1000)}: expected a folder {problem}: --trust-remote-code accepts it")


def _files(folder: Path) -> Iterator[Path]:
    """Yields all files below a folder. Raises OptionError for a link that leaves it."""
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if leaves(path, folder):  # resolves junctions of Windows, too, which `is_symlink` does not see
                raise _distrust(path, "without links to other folders, found one")
            if path.is_file():
                yield path


def leaves(path: Path, folder: Path) -> bool:
    """Returns whether a path in a folder leads out of it by a link, other than to a cached blob.

    Blobs are the files of Hugging Face's cache. Only links in a snapshot may lead there.
    """
    root, real = (Path(os.path.realpath(one)) for one in (folder, path))
    is_blob = root.parent.name == "snapshots" and real.parent == root.parents[1] / "blobs" and real.is_file()
    return not (real.is_relative_to(root) or is_blob)


def check_links(folder: Path, paths: Iterable[Path]) -> None:
    """Raises FormatError for a path in a folder that leads out of it by a link."""
    for path in paths:
        if leaves(path, folder):
            raise FormatError("expected a file in the folder, found a link that leaves it", file=str(path))


def _content(path: Path) -> Any:
    """Returns the content of a JSON file; None if it is invalid, since no library can parse it."""
    stored = read_regular(path)
    try:
        return json.loads(stored.decode("utf-8"))
    except ValueError:
        return None
    except RecursionError:  # a library may have more of the stack left
        raise FormatError("expected JSON with fewer nested values", file=str(path)) from None


def _code(value: Any) -> Iterator[str]:
    """Yields the fields of `CODE` and the references to classes in JSON."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield from (field for field in CODE if isinstance(value.get(field), (dict, list, str)))  # a number: of a token
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, str) and REFERENCE.fullmatch(value):
            yield quote(value)


def check_loadable(folder: Path) -> None:
    """Checks a folder before transformers loads its files in this process.

    Raises:
        FormatError: if a file refers to another by more than a file name.
        LimitError: if a file or the vocabulary is too large.
    """
    for path in folder.iterdir():
        if path.suffix in ENDINGS and path.is_file():
            check_size(path, path.stat().st_size)
    if (folder / CONFIG).is_file():
        check_token_count(read_json(folder / CONFIG).get("vocab_size"), folder)
    listed = [(folder / name, field) for name, field in FILE_LISTS]
    for path, field in [*listed, *((path, "weight_map") for path in folder.glob("*.index.json"))]:
        names = read_json(path).get(field, []) if path.is_file() else []
        for name in names.values() if isinstance(names, dict) else names:
            if not is_file_name(name):
                raise FormatError(f"expected the name of a file in the directory, found {quote(name)}", field, file=str(path))
