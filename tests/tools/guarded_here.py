"""`glft_schema.families.guarded` in this process, through the same JSON: for tests that change the
package here, or open many folders.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glft_schema.families.guarded import Call, answer, request_of, result_of


@contextmanager
def guarded_here(module: str) -> Iterator[Call]:
    """Yields what `guarded` yields."""

    def call(function: str, folder: Path, *arguments: Any, file: Path) -> Any:
        return result_of(answer(module, request_of(function, folder, arguments, file)), folder)

    yield call
