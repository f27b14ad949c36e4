"""Seeds of folders and index files keep the promises, whole and damaged."""

from __future__ import annotations

from random import Random
from types import ModuleType

import pytest

from tests.families.conftest import libraries  # noqa: F401
from tests.fuzz import folders, index_files
from tests.fuzz.seeds import LONGEST
from tests.tools.depth import FULL

EXAMPLES = {folders: 500 if FULL else 10, index_files: 5000 if FULL else 100}


@pytest.mark.parametrize("kind", EXAMPLES, ids=["folders", "index_files"])
def test_promises_hold(kind: ModuleType) -> None:
    seeds, random = list(kind.seeds()), Random(1)
    assert sum(len(stored) <= LONGEST for stored in seeds) >= len(seeds) - 1
    for stored in seeds:
        kind.check_promises(stored)
    for _ in range(EXAMPLES[kind]):
        damaged = bytearray(random.choice(seeds))
        damaged[random.randrange(len(damaged))] = random.randrange(256)
        kind.check_promises(bytes(damaged[: random.choice((None, random.randrange(1, len(damaged) + 1)))]))
