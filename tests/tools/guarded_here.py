"""`glft_schema.families.apart` in this process, through the same JSON: for tests that
change the package here, or open many folders.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from glft_schema.families import pre_tokenizers
from glft_schema.families.apart import Call, answer, request_of, result_of
from tests.golden.record_conversions import PRE


@contextmanager
def guarded_here(module: str) -> Iterator[Call]:
    """Yields what `guarded` yields."""

    def call(function: str, folder: Path, *arguments: Any, file: Path) -> Any:
        return result_of(answer(module, request_of(function, folder, arguments)), folder, file)

    yield call


class AnyFingerprint(dict[str, str]):
    """A table of pre-tokenizers in which none is unknown."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> str:
        return PRE


def know_tokenizers(patch: pytest.MonkeyPatch) -> None:
    """Makes the tokenizers of tiny folders known, in this process."""
    patch.setattr("glft_schema.families.folders.start_apart", guarded_here)
    patch.setattr("glft_schema.families.vocabulary.PRE_TOKENIZERS", AnyFingerprint(pre_tokenizers.PRE_TOKENIZERS))
