"""Modules that only POSIX has. Elsewhere, a test that uses one is skipped."""

from __future__ import annotations

from typing import Any

try:
    import fcntl
    import resource
except ImportError:

    class _Missing:
        def __getattr__(self, name: str) -> Any:
            import pytest  # slow to import

            pytest.skip(f"this system lacks {name}")

    fcntl = resource = _Missing()  # type: ignore[assignment]

__all__ = ["fcntl", "resource"]
