"""Mutations that break exactly one rule or field, see `glft_schema.testing.corruptions`."""

from __future__ import annotations

from random import Random
from typing import TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glft_schema import Container, FormatError
from glft_schema.testing import corruptions
from glft_schema.testing.damage import damaged

T = TypeVar("T")

ENTROPY = 1 << 10  # random bytes for an example


def drawn(strategy: st.SearchStrategy[T], random: Random) -> T | None:
    """Returns an example of a strategy from random bytes, or None if they give none."""
    found: list[T] = []

    @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def keep(example: T) -> None:
        found.append(example)

    keep.hypothesis.fuzz_one_input(random.randbytes(ENTROPY))
    return found[0] if found else None


def mutated(stored: bytes, random: Random) -> bytes | None:
    """Returns a corruption of a valid file, or damage to another; None if no example is drawn."""
    try:
        file = Container.parse(stored)
    except FormatError:
        return drawn(damaged(stored), random)
    try:
        return drawn(corruptions(file).map(lambda made: made.stored), random)
    except Exception as error:
        raise AssertionError(f"expected a corruption, found none of {stored.hex()}") from error
