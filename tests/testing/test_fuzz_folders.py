"""Seeds of folders and index files keep the promises, whole and damaged."""

from __future__ import annotations

from random import Random
from types import ModuleType

import pytest

from glft_schema.errors import FormatError
from glft_schema.testing.fuzzing import PropertyError
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


@pytest.mark.parametrize("kind", EXAMPLES, ids=["folders", "index_files"])
def test_a_broken_promise_is_seen(kind: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is not documented, a message of two lines, and a file beyond the folder."""
    opener = "open_folder" if kind is folders else "open"
    stored = next(iter(kind.seeds()))
    monkeypatch.setattr(kind, opener, lambda *paths: {}["none"])
    with pytest.raises(PropertyError, match=r"escaped: .* found KeyError: 'none'"):
        kind.check_promises(stored)

    def fail(*paths: object) -> None:
        raise FormatError("a\nb")

    monkeypatch.setattr(kind, opener, fail)
    with pytest.raises(PropertyError, match="reported: expected one short line, found 'a"):
        kind.check_promises(stored)


def test_a_file_beyond_the_folder_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    beyond = b'\0{"weight_map": {"z": "../outside.safetensors"}}'
    index_files.check_promises(beyond)
    monkeypatch.setattr("glft_schema.files.shards.is_file_name", lambda name: True)
    with pytest.raises(PropertyError, match=r"opened: expected files of the folder, found .*outside\.safetensors"):
        index_files.check_promises(beyond)
