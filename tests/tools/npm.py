"""Packages from npm, installed into a folder once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

OPTIONS = ("--ignore-scripts", "--omit=optional", "--loglevel=error", "--no-audit", "--no-fund")
PATIENCE = ("--fetch-retries=1", "--fetch-timeout=20000")  # npm waits minutes for an unreachable registry


def installed(cache: Path, *packages: str) -> Path:
    """Installs packages, such as ``name@1.0``, into a folder once, and returns it.

    Skips the test if node is missing or npm cannot fetch them.
    """
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("needs node and npm")
    if not all((cache / "node_modules" / package.rpartition("@")[0]).exists() for package in packages):
        command = ["npm", "install", *OPTIONS, *PATIENCE, "--prefix", cache, *packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"npm cannot fetch {', '.join(packages)}: {done.stderr[-300:]}")
    return cache


def node(cache: Path, *arguments: str | Path, given: str = "") -> str:
    """Runs node with the packages of a folder and standard input; returns what it prints."""
    environment = os.environ | {"NODE_PATH": str(cache / "node_modules")}
    done = subprocess.run(["node", *arguments], input=given, env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
