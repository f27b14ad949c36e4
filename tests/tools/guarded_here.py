"""The functions of `glft_schema.families.guarded` without its process: in this one, through the same
JSON. For tests that change the package in this process, or run it often.
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
