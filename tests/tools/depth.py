"""How much a test tries: everything with ``--full``, a part by default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import settings

FULL = settings.default.max_examples >= 300  # examples of a property in the full tier
T = TypeVar("T")


def some(rows: T, step: int = 8) -> T:
    """Returns all rows of an array with ``--full``, and one of `step` by default."""
    return rows if FULL else rows[::step]  # type: ignore[index]


def some_by_default(parameters: Sequence[Any], step: int) -> list[Any]:
    """Returns parameters of a test: all with ``--full``, and one of `step` by default."""
    return [each if not number % step else in_full(each) for number, each in enumerate(parameters)]


def in_full(parameter: Any) -> Any:
    """Returns parameters of a test, a tuple if there are several, that run only with ``--full``."""
    return pytest.param(*(parameter if isinstance(parameter, tuple) else [parameter]), marks=pytest.mark.full)
