"""Clients from npm, installed into pytest's cache."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from glft_schema.formats.gguf import VALUE_TYPES
from tests.foreign.clients import CLIENTS, HUGGINGFACE
from tests.foreign.readings import Info, Reading
from tests.tools import npm
from tests.tools.real_files import kept

SCRIPTS = ("headers.mjs", "rewrite.mjs")
PACKAGES = [f"{client.package}@{client.version}" for client in CLIENTS if client.registry == "npm"]


def installed(request: pytest.FixtureRequest) -> Path:
    """Returns the folder, in pytest's cache, of the packages and our scripts.

    Without scripts and optional dependencies, node-llama-cpp comes without llama.cpp, which reading
    headers does not need.
    """
    with kept(request, "foreign-" + "-".join(PACKAGES).replace("/", "-")) as cache:
        npm.installed(cache, *PACKAGES)
        for script in SCRIPTS:  # next to the packages, for import
            shutil.copy(Path(__file__).with_name(script), cache)
        return cache


def run(cache: Path, script: str, *arguments: str, given: Any) -> Any:
    """Runs a script on JSON and returns the JSON that it prints."""
    return json.loads(npm.node(cache, cache / script, *arguments, given=json.dumps(given)))


def readings(cache: Path, client: str, paths: Sequence[Path]) -> list[Reading]:
    return [reading(found) for found in run(cache, "headers.mjs", client, given=[str(path) for path in paths])]


def reading(found: dict[str, Any]) -> Reading:
    if "error" in found:
        return Reading(found["error"])
    types = {}
    for key, _, *codes in found["metadata"]:
        if names := [VALUE_TYPES[code].name for code in codes if code is not None]:
            types[key] = f"array[{names[1]}]" if names[1:] else names[0]
    infos = {}
    for name, numbers, *_ in found["tensors"]:
        *dims, code, offset, position = map(int, numbers)
        infos[name] = Info(tuple(dims), code, offset, position)
    assert len(infos) == int(found["counts"][0])
    return Reading(
        metadata={key: value for key, value, *_ in found["metadata"]},
        types=types,
        infos=infos,
        version=found["version"],
        order=found.get("order", ""),
    )


def rewritten(cache: Path, paths: Sequence[tuple[Path, Path]]) -> list[str]:
    """Reads and rewrites files with @huggingface/gguf; returns an error or '' for each."""
    return run(cache, "rewrite.mjs", HUGGINGFACE, given=[[str(path) for path in pair] for pair in paths])
