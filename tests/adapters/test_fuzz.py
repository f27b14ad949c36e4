"""Adapters of any bytes are read or refused, by the promises of the coverage-guided search."""

from __future__ import annotations

from random import Random

import pytest

from glft_schema.testing.fuzzing import PropertyError
from tests.fuzz.adapters import check_promises, read, seeds
from tests.tools.depth import FULL

SEEDS = list(seeds())
TEXTS = (b"true", b"null", b"[]", b"{}", b"-1", b"0", b"1e999", b'""', b"(a+)+", b"\xff" * 8, b"\0" * 8, b"lora_A", b"F16")


def damaged(stored: bytes, random: Random) -> bytes:
    """Returns bytes with some of them replaced, removed or added."""
    changed = bytearray(stored)
    for _ in range(random.randint(1, 3)):
        start = random.randrange(1, len(changed) + 1)
        end = min(start + random.choice([0, 1, 1, 8]), len(changed))
        changed[start:end] = random.choice((b"", random.randbytes(end - start), random.choice(TEXTS)))
    return bytes(changed)


def test_the_promises_hold() -> None:
    random = Random(0)
    for stored in (b"", *SEEDS):
        check_promises(stored)
    for _ in range(3000 if FULL else 150):
        stored = damaged(random.choice(SEEDS), random)
        try:
            check_promises(stored)
        except PropertyError as error:
            pytest.fail(f"{stored!r}: {error}")


def test_seeds_are_read_and_refused() -> None:
    verdicts = {(stored[0], read(stored) is None) for stored in SEEDS}
    assert verdicts == {(file, is_refused) for file in range(3) for is_refused in (False, True)}
