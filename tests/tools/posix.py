"""Modules that only POSIX has. Elsewhere, a test that uses one is skipped."""

from __future__ import annotations

import os
from typing import Any

try:
    import fcntl
    import resource
except ImportError:

    class _Missing:
        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # looked up by pytest
                raise AttributeError(name)
            import pytest  # slow to import

            pytest.skip(f"this system lacks {name}")

    fcntl = resource = _Missing()  # type: ignore[assignment]

try:
    os.stat("no such file")
except OSError as error:
    MISSING = error.strerror  # what this system says of a file that is missing

__all__ = ["MISSING", "fcntl", "resource"]
