"""Clients from npm, installed into pytest's cache."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from glft_schema.formats.gguf import VALUE_TYPES
from tests.foreign.clients import CLIENTS, HUGGINGFACE
from tests.foreign.readings import Info, Reading
from tests.tools.real_files import kept

UNREACHED = re.compile("ENOTFOUND|EAI_AGAIN|ETIMEDOUT|ECONNREFUSED|ECONNRESET|ENETUNREACH")
SCRIPTS = ("headers.mjs", "rewrite.mjs")
PACKAGES = [f"{client.package}@{client.version}" for client in CLIENTS if client.registry == "npm"]


def installed(request: pytest.FixtureRequest) -> Path:
    """Returns the folder, in pytest's cache, of the packages and our scripts.

    Skips the test if npm cannot fetch them. node-llama-cpp is installed without scripts and optional
    dependencies, and so without llama.cpp, which reading headers does not need.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    with kept(request, "foreign-" + "-".join(PACKAGES).replace("/", "-")) as cache:
        if not (cache / "installed").exists():
            options = ["--ignore-scripts", "--omit=optional", "--loglevel=error", "--no-audit", "--no-fund"]
            patience = ["--fetch-retries=1", "--fetch-timeout=20000"]  # npm waits minutes for an unreachable registry
            command = ["npm", "install", *options, *patience, "--prefix", cache, *PACKAGES]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode and (code := UNREACHED.search(done.stderr)):
                pytest.skip(f"npm's registry cannot be reached: {code[0]}")
            assert done.returncode == 0, done.stderr[-2000:]
            (cache / "installed").touch()
        for script in SCRIPTS:  # next to the packages, for import
            shutil.copy(Path(__file__).with_name(script), cache)
        return cache


def run(cache: Path, script: str, *arguments: str, given: Any) -> Any:
    """Runs a script on JSON and returns the JSON that it prints."""
    command = ["node", cache / script, *arguments]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def readings(cache: Path, client: str, paths: Sequence[Path]) -> list[Reading]:
    """Reads the headers of files with a client."""
    return [reading(found) for found in run(cache, "headers.mjs", client, given=[str(path) for path in paths])]


def reading(found: dict[str, Any]) -> Reading:
    """Returns a result of the script as a `Reading`."""
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
    found = run(cache, "rewrite.mjs", HUGGINGFACE, given=[[str(path) for path in pair] for pair in paths])
    assert isinstance(found, list)
    return found
