"""The table of other clients, without the clients: pinned versions, and files that we read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from glft_schema import Container
from tests.foreign.clients import CLIENTS, FAULTS, Fault
from tests.foreign.our_reading import ours

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_extra_has_the_versions_of_the_table() -> None:
    (extra,) = re.findall(r"^foreign = \[(.*?)^\]", PYPROJECT.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    pinned = dict(re.findall(r'"([^"=]+)==([^";]+)', extra))
    assert pinned == {client.package: client.version for client in CLIENTS if client.registry == "PyPI"}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.client}: {fault.files}")
def test_what_clients_get_wrong_is_read(tmp_path: Path, fault: Fault) -> None:
    path = tmp_path / "file.gguf"
    value = fault.example()
    Container.build_file(value, path)
    found = ours(path)
    assert list(found.metadata) == list(value["metadata"])
    assert list(found.tensors) == [row["name"] for row in value["tensor_infos"]]
