"""Each known fault of a client: the test of a fixed one fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import glft_schema
from glft_schema import Container
from glft_schema.files.splitting import split
from tests.foreign import npm
from tests.foreign.clients import FAULTS, Fault
from tests.foreign.our_reading import ours
from tests.foreign.readings import Reading


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.client}: {fault.files}")
def test_fault(request: pytest.FixtureRequest, read: Callable[[str, Path], Reading], tmp_path: Path, fault: Fault) -> None:
    path = tmp_path / "file.gguf"
    Container.build_file(fault.example(), path)
    if fault.by == "write":
        (error,) = npm.rewritten(request.getfixturevalue("packages"), [(path, tmp_path / "again.gguf")])
        assert fault.shows(Reading(error), ours(path))
        return
    if fault.by == "read a set":
        with glft_schema.open(path) as file:
            path, *_ = split(file, tmp_path / "part", max_tensors=1)
    client = f"{fault.client}_default" if fault.by == "read by default" else fault.client
    assert fault.shows(read(client, path), ours(path))
