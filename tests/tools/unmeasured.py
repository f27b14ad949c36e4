"""Environment of processes whose time and memory are tested: without coverage, which takes both."""

from __future__ import annotations

import os


def unmeasured() -> dict[str, str]:
    """Returns the environment without coverage's variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COV")}
