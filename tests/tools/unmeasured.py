"""Processes that are not measured by coverage: measuring takes time and memory, and these are about both."""

from __future__ import annotations

import os


def unmeasured() -> dict[str, str]:
    """Returns the environment without what lets coverage into a process."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COV")}
